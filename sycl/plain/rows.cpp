// octet_rows of launch.h in plain SYCL, for devices without ESIMD (tests on a central processor).
#include <sycl/builtins.hpp>
#include <sycl/detail/core.hpp>
#include <sycl/ext/oneapi/free_function_queries.hpp>

#include "launch.h"

namespace {

// exp(x), x clamped to [-87, 88]: the definition in csrc/isa/elementwise.h, operation by operation.
float exp_clamped(float x) {
    x = x > 88.0f ? 88.0f : x;
    x = x < -87.0f ? -87.0f : x;
    const float magic = 12582912.0f, shifted = x * 1.44269504088896341f + magic, n = shifted - magic;
    const float r = sycl::fma(n, -1.42860682030941723e-6f, sycl::fma(n, -0.693145751953125f, x));
    float p = 1.0f / 5040.0f;
    const float terms[] = {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f};
    for (float term : terms) p = sycl::fma(p, r, term);
    const uint32_t exponent = __builtin_bit_cast(uint32_t, shifted) - __builtin_bit_cast(uint32_t, magic) + 127u;
    return p * __builtin_bit_cast(float, exponent << 23);
}

float glu(float g, float u) {
    if (OCTET_GLU == 3) return (g < 0.0f ? 0.0f : g) * u;
    const float z = OCTET_GLU == 1 ? g : 1.5957691216057308f * (g * (1.0f + 0.044715f * (g * g)));  // 2 sqrt(2/pi)
    return g / (1.0f + exp_clamped(-z)) * u;
}

// Columns first ... first + OCTET_CHUNK of a row: after the GLU, if there is one, and rotated.
void load_chunk(const float * row, const float * signs, int k, int first, int rotation, float * v) {
    for (int i = 0; i < OCTET_CHUNK; ++i) {
        v[i] = OCTET_GLU ? glu(row[first + i], row[k + first + i]) : row[first + i];
    }
    if (!rotation) return;
    for (int i = 0; i < OCTET_CHUNK; ++i) v[i] *= signs[first + i];
    for (int b = 0; b < OCTET_CHUNK; b += rotation) {
        for (int h = 1; h < rotation; h *= 2) {
            for (int j = 0; j < rotation; ++j) {
                if (j & h) continue;
                const float x = v[b + j], y = v[b + j + h];
                v[b + j] = x + y;
                v[b + j + h] = x - y;
            }
        }
    }
    const float c = rotation == 128 ? 0.08838834764831845f : rotation == 64 ? 0.125f : 0.17677669529663687f;
    for (int i = 0; i < OCTET_CHUNK; ++i) v[i] *= c;
}

float scale_of(uint32_t amax_bits) {
    return amax_bits >= 0x7f800000u ? __builtin_nanf("") : __builtin_bit_cast(float, amax_bits) / 127.0f;
}

// Half away from zero, into -127 ... 127.
int8_t rounded(float y) {
    y = y > 127.0f ? 127.0f : y < -127.0f ? -127.0f : y;
    const int whole = int(y);
    const float rest = y - float(whole);  // exact
    return int8_t(whole + (rest >= 0.5f) - (rest <= -0.5f));
}

}  // namespace

extern "C" SYCL_EXTERNAL SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(
    (sycl::ext::oneapi::experimental::nd_range_kernel<2>) ) void octet_rows(const float * x, const int32_t * source,
                                                                            const float * signs, void * q, float * d,
                                                                            int32_t k, int32_t stride, int32_t group,
                                                                            int32_t rotation) {
    using octet_device::kTileRows;
    const auto item = sycl::ext::oneapi::this_work_item::get_nd_item<2>();
    const int position = int(item.get_global_id(0)), part = int(item.get_global_id(1));
    const int parts = int(item.get_global_range(1));
    const int first = parts == 1 ? 0 : part * OCTET_CHUNK, last = parts == 1 ? k : first + OCTET_CHUNK;
    const int64_t tile = position / kTileRows, row = position % kTileRows;
    const int32_t from = source[position];
    float v[OCTET_CHUNK] = {};

#if OCTET_HALF
    auto * out = static_cast<sycl::half *>(q) + tile * kTileRows * k + row * 16;
    for (int c = first; c < last; c += OCTET_CHUNK) {
        if (from >= 0) load_chunk(x + int64_t(from) * stride, signs, k, c, rotation, v);
        for (int i = 0; i < OCTET_CHUNK; ++i) out[(c + i) / 16 * 16 * kTileRows + i % 16] = sycl::half(v[i]);
    }
#else
    auto * out = static_cast<int8_t *>(q) + tile * kTileRows * k + row * 32;
    float * scales = d + tile * (k / group) * kTileRows + row;
    // A group is part of a chunk, a chunk, or (the whole row) several of them, which are then loaded twice.
    for (int g = first; g < last; g += group) {
        uint32_t amax = 0;
        for (int c = g / OCTET_CHUNK * OCTET_CHUNK; c < g + group; c += OCTET_CHUNK) {
            if (from >= 0) load_chunk(x + int64_t(from) * stride, signs, k, c, rotation, v);
            for (int i = 0; i < OCTET_CHUNK; ++i) {
                const uint32_t bits = __builtin_bit_cast(uint32_t, v[i]) & 0x7fffffffu;
                if (c + i >= g && c + i < g + group && bits > amax) amax = bits;
            }
        }
        const float scale = scale_of(amax);
        scales[g / group * kTileRows] = scale;
        for (int c = g / OCTET_CHUNK * OCTET_CHUNK; c < g + group; c += OCTET_CHUNK) {
            if (from >= 0 && group > OCTET_CHUNK) load_chunk(x + int64_t(from) * stride, signs, k, c, rotation, v);
            for (int i = 0; i < OCTET_CHUNK; i += 32) {
                if (c + i < g || c + i >= g + group) continue;
                for (int j = 0; j < 32; ++j) {
                    out[(c + i) * kTileRows + j] = scale > 0.0f ? rounded(v[i + j] / scale) : int8_t(0);
                }
            }
        }
    }
#endif
}
