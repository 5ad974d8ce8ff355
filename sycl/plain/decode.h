// One group of 32 weights out of a row's file blocks, by the formats of launch.h (OCTET_FORMAT).
#pragma once

#include <cstdint>
#include <cstring>

#include "launch.h"

namespace octet_device {
namespace {

// What a group of 32 columns decodes to: the weight of column j is value[j] * scale[j / 16].
struct Weights {
    int8_t value[32];
    float scale[2];
};

inline uint32_t bytes_at(const uint8_t * p, int count) {
    uint32_t word = 0;
    for (int i = 0; i < count; ++i) word |= uint32_t(p[i]) << (8 * i);
    return word;
}

inline float half_at(const uint8_t * p) {
    const uint32_t h = bytes_at(p, 2), fraction = h & 0x3ff, exponent = h >> 10 & 31;
    const float magnitude =
        exponent ? __builtin_bit_cast(float, (exponent + (exponent == 31 ? 224 : 112)) << 23 | fraction << 13)
                 : float(fraction) * 0x1p-24f;
    return h >> 15 ? -magnitude : magnitude;
}

// `count` values of magnitudes from the codebook's bytes, minus where a bit of `signs` is set.
inline void put_signed(uint32_t magnitudes, uint32_t signs, int8_t * value) {
    for (int j = 0; j < 4; ++j) {
        const int m = int(magnitudes >> (8 * j) & 255);
        value[j] = int8_t(signs >> j & 1 ? -m : m);
    }
}

// The eighth sign makes the number of minus signs even.
inline uint32_t with_parity(uint32_t seven) {
    uint32_t p = seven ^ seven >> 4;
    p ^= p >> 2;
    return seven | ((p ^ p >> 1) & 1) << 7;
}

constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// 16 bytes: low nibbles are values 0 ... 15, high ones 16 ... 31.
inline void put_nibbles(const uint8_t * b, const int8_t * table, int8_t * value) {
    for (int j = 0; j < 32; ++j) value[j] = table[b[j % 16] >> (4 * (j / 16)) & 15];
}

inline Weights decode(int format, const uint8_t * row, int g, const uint32_t * codebook) {
    Weights w{};
    if (format == kIq3S) {
        const uint8_t * b = row + g / 8 * 110;
        const int i = g % 8;
        w.scale[0] = w.scale[1] = half_at(b) * float(1 + 2 * (b[106 + i / 2] >> (4 * (i & 1)) & 15));
        for (int l = 0; l < 8; ++l) {
            const uint32_t index = b[2 + 8 * i + l] | (b[66 + i] >> l & 1) << 8;
            put_signed(codebook[index], b[74 + 4 * i + l / 2] >> (4 * (l & 1)), w.value + 4 * l);
        }
    } else if (format == kIq3Xxs) {
        const uint8_t * b = row + g / 8 * 98;
        const int i = g % 8;
        const uint32_t aux = bytes_at(b + 66 + 4 * i, 4);
        w.scale[0] = w.scale[1] = half_at(b) * float(1 + 2 * (aux >> 28)) * 0.25f;
        for (int l = 0; l < 8; ++l) {
            const uint32_t signs = with_parity(aux >> (7 * (l / 2)) & 127);
            put_signed(codebook[b[2 + 8 * i + l]], signs >> (4 * (l & 1)), w.value + 4 * l);
        }
    } else if (format == kIq2S) {
        const uint8_t * b = row + g / 8 * 82;
        const int i = g % 8;
        for (int h = 0; h < 2; ++h) {
            w.scale[h] = half_at(b) * float(1 + 2 * (b[74 + i] >> (4 * h) & 15)) * 0.125f;
        }
        for (int l = 0; l < 4; ++l) {
            const uint32_t index = b[2 + 4 * i + l] | (b[66 + i] >> (2 * l) & 3) << 8, signs = b[34 + 4 * i + l];
            put_signed(codebook[2 * index], signs, w.value + 8 * l);
            put_signed(codebook[2 * index + 1], signs >> 4, w.value + 8 * l + 4);
        }
    } else if (format == kIq4Nl) {
        const uint8_t * b = row + g * 18;
        w.scale[0] = w.scale[1] = half_at(b);
        put_nibbles(b + 2, kIq4Values, w.value);
    } else if (format == kQ20) {
        const uint8_t * b = row + g / 2 * 18;
        w.scale[0] = w.scale[1] = half_at(b);
        for (int j = 0; j < 32; ++j) w.value[j] = int8_t((b[2 + 8 * (g % 2) + j / 4] >> (2 * (j % 4)) & 3) - 1);
    } else if (format == kIq2Xs || format == kIq2Xxs) {
        const bool xs = format == kIq2Xs;
        const uint8_t * b = row + g / 8 * (xs ? 74 : 66);
        const int i = g % 8;
        const uint32_t aux = bytes_at(b + 6 + 8 * i, 4);
        for (int h = 0; h < 2; ++h) {
            const uint32_t bits = xs ? uint32_t(b[66 + i] >> (4 * h) & 15) : aux >> 28;
            w.scale[h] = half_at(b) * float(1 + 2 * bits) * 0.125f;
        }
        for (int l = 0; l < 4; ++l) {
            const uint32_t two = bytes_at(b + 2 + 8 * i + 2 * l, 2);
            const uint32_t index = xs ? two & 511 : b[2 + 8 * i + l];
            const uint32_t signs = with_parity(xs ? two >> 9 : aux >> (7 * l) & 127);
            put_signed(codebook[2 * index], signs, w.value + 8 * l);
            put_signed(codebook[2 * index + 1], signs >> 4, w.value + 8 * l + 4);
        }
    } else if (format == kIq4Xs) {
        const uint8_t * b = row + g / 8 * 136;
        const int i = g % 8;
        const int low = b[4 + i / 2] >> (4 * (i & 1)) & 15, high = int(bytes_at(b + 2, 2) >> (2 * i) & 3);
        w.scale[0] = w.scale[1] = half_at(b) * float(low + 16 * high - 32);
        put_nibbles(b + 8 + 16 * i, kIq4Values, w.value);
    } else if (format == kQ40) {
        const uint8_t * b = row + g * 18;
        w.scale[0] = w.scale[1] = half_at(b);
        for (int j = 0; j < 32; ++j) w.value[j] = int8_t((b[2 + j % 16] >> (4 * (j / 16)) & 15) - 8);
    } else if (format == kMxfp4) {
        const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
        const uint8_t * b = row + g * 17;
        w.scale[0] = w.scale[1] = __builtin_bit_cast(float, b[0] >= 2 ? uint32_t(b[0] - 1) << 23 : 0x00200000u << b[0]);
        put_nibbles(b + 1, doubled, w.value);
    } else {
        const uint8_t * b = row + g * 34;
        w.scale[0] = w.scale[1] = half_at(b);
        for (int j = 0; j < 32; ++j) w.value[j] = int8_t(b[2 + j]);
    }
    return w;
}

inline int row_bytes(int format, int k) {
    switch (format) {
        case kIq3S: return k / 256 * 110;
        case kIq3Xxs: return k / 256 * 98;
        case kIq2S: return k / 256 * 82;
        case kIq4Nl: return k / 32 * 18;
        case kQ20: return k / 64 * 18;
        case kIq2Xs: return k / 256 * 74;
        case kIq2Xxs: return k / 256 * 66;
        case kIq4Xs: return k / 256 * 136;
        case kQ40: return k / 32 * 18;
        case kMxfp4: return k / 32 * 17;
        default: return k / 32 * 34;
    }
}

}  // namespace
}  // namespace octet_device
