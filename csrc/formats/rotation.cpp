// Signs, and the load-time quantizer of weights.
#include "octet/rotation.h"

#include <cmath>
#include <cstring>

namespace octet {

int rotation_block(int64_t k, int wished) {
    for (int b = wished; b >= 32; b /= 2) {
        if (k % b == 0) return b;
    }
    return 0;
}

static uint16_t mix(uint16_t x) {
    x = uint16_t(x ^ x >> 8);
    x = uint16_t(x * 0x88b5u);
    x = uint16_t(x ^ x >> 7);
    x = uint16_t(x * 0xdb2du);
    return uint16_t(x ^ x >> 9);
}

std::vector<float> rotation_signs(int64_t k, uint16_t seed) {
    std::vector<float> signs(size_t(k), 0.0f);
    for (int64_t j = 0; j < k; ++j) {
        uint16_t bits = mix(uint16_t(uint16_t(j) ^ mix(uint16_t(uint16_t(j >> 16) ^ seed))));
        signs[size_t(j)] = bits & 0x8000 ? -1.0f : 1.0f;
    }
    return signs;
}

// A non-negative double to fp16 bits, to nearest, ties to even, rounded once. Returns false beyond fp16.
static bool to_half(double x, uint16_t * half) {
    if (!(x < 65520.0)) return false;  // halfway between 65504 and what would be next
    int exponent = x > 0.0 ? std::ilogb(x) : -15;
    if (exponent < -14) exponent = -14;  // subnormals share the last exponent
    // In units of the last place; nearbyint rounds ties to even in the default mode.
    double ulps = std::nearbyint(std::ldexp(x, 10 - exponent));
    // ulps = 2048 carries into the exponent field by itself.
    *half = uint16_t(uint32_t(exponent + 14) * 1024u + uint32_t(ulps));
    return true;
}

static double half_value(uint16_t h) {
    int exponent = h >> 10;
    return exponent == 0 ? std::ldexp(h & 1023, -24) : std::ldexp(1024 + (h & 1023), exponent - 25);
}

static void rotate_f64(double * y, int block) {
    for (int h = 1; h < block; h *= 2) {
        for (int j = 0; j < block; ++j) {
            if (j & h) continue;
            double a = y[j], b = y[j + h];
            y[j] = a + b;
            y[j + h] = a - b;
        }
    }
    const double c = std::sqrt(1.0 / double(block));  // 1 / block is exact: rounded once
    for (int j = 0; j < block; ++j) y[j] *= c;
}

bool quantize_weights(const float * w, int64_t k, int block, const float * signs, int64_t group, double * y,
                      uint8_t * out) {
    if (group == 0) group = k;
    for (int64_t j = 0; j < k; ++j) y[j] = block ? double(signs[j]) * double(w[j]) : double(w[j]);
    if (block) {
        for (int64_t j = 0; j < k; j += block) rotate_f64(y + j, block);
    }
    for (int64_t first = 0; first < k; first += group) {
        double amax = 0.0;
        for (int64_t j = first; j < first + group; ++j) {
            if (!std::isfinite(y[j])) return false;
            amax = std::fmax(amax, std::fabs(y[j]));
        }
        uint16_t half;
        if (!to_half(amax / 127.0, &half)) return false;
        const double d = half_value(half);
        for (int64_t j = first; j < first + group; ++j) {
            double q = d > 0.0 ? std::round(y[j] / d) : 0.0;  // round: halves away from zero
            q = std::fmin(std::fmax(q, -127.0), 127.0);
            uint8_t * b = out + j / 32 * 34;
            if (j % 32 == 0) std::memcpy(b, &half, 2);
            b[2 + j % 32] = uint8_t(int8_t(q));
        }
    }
    return true;
}

}  // namespace octet
