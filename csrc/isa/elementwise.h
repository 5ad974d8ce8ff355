// Everything but the integer product, in portable C++ whose every operation is rounded by IEEE
// rules. Included once into each file of this folder and vectorized by the compiler for it: the
// bits cannot differ, since contraction is off (-ffp-contract=off) and nothing is reassociated
// but integer sums and maxima.
#pragma once

#include <cstdint>
#include <cstring>

#include "decode.h"
#include "octet/kernels.h"

namespace octet {
namespace {

typedef float Float16 __attribute__((vector_size(64), aligned(4)));

// Butterflies of stride `kStride` < 16 inside 16 lanes: lane j becomes partner + self where bit
// kStride of j is clear, partner - self where it is set.
template <int kStride>
inline void butterfly_in_lanes(Float16 & v) {
    typedef int32_t Int16 __attribute__((vector_size(64)));
    Int16 partner;
    Float16 sign;
    for (int j = 0; j < 16; ++j) {
        partner[j] = j ^ kStride;
        sign[j] = j & kStride ? -1.0f : 1.0f;
    }
#if defined(__clang__)
    Float16 p = __builtin_shufflevector(v, v, 0 ^ kStride, 1 ^ kStride, 2 ^ kStride, 3 ^ kStride, 4 ^ kStride,
                                        5 ^ kStride, 6 ^ kStride, 7 ^ kStride, 8 ^ kStride, 9 ^ kStride, 10 ^ kStride,
                                        11 ^ kStride, 12 ^ kStride, 13 ^ kStride, 14 ^ kStride, 15 ^ kStride);
#else
    Float16 p = __builtin_shuffle(v, partner);
#endif
    v = p + v * sign;
}

template <int kBlock>
inline void rotate_block(float * x, const float * signs) {
    constexpr int kVectors = kBlock / 16;
    Float16 v[kVectors];
    std::memcpy(v, x, sizeof v);
    for (int i = 0; i < kVectors; ++i) {
        Float16 s;
        std::memcpy(&s, signs + 16 * i, sizeof s);
        v[i] = v[i] * s;
        butterfly_in_lanes<1>(v[i]);
        butterfly_in_lanes<2>(v[i]);
        butterfly_in_lanes<4>(v[i]);
        butterfly_in_lanes<8>(v[i]);
    }
    for (int h = 1; h < kVectors; h *= 2) {
        for (int i = 0; i < kVectors; ++i) {
            if (i & h) continue;
            Float16 a = v[i], b = v[i + h];
            v[i] = a + b;
            v[i + h] = a - b;
        }
    }
    // 1 / sqrt(block) rounded to f32.
    constexpr float c = kBlock == 128 ? 0.08838834764831845f : kBlock == 64 ? 0.125f : 0.17677669529663687f;
    for (int i = 0; i < kVectors; ++i) v[i] = v[i] * c;
    std::memcpy(x, v, sizeof v);
}

inline void rotate(float * x, int64_t k, int block, const float * signs) {
    for (int64_t j = 0; j < k; j += block) {
        if (block == 128) rotate_block<128>(x + j, signs + j);
        if (block == 64) rotate_block<64>(x + j, signs + j);
        if (block == 32) rotate_block<32>(x + j, signs + j);
    }
}

inline int8_t * tile_columns(const Tile & t, int64_t chunk, int row, int64_t column) {
    return t.q + (column / chunk * kTileRows + row) * chunk + column % chunk;
}

// A product over all tiles and panels out of one of a tile and a panel: f(panel, tile, rows of it, out).
template <void f(const Panel &, const Tile &, int, float *)>
void for_tiles(const Panel * w, int count, const Tiles & x, int rows, float * out) {
    for (int p = 0; p < count; ++p, out += padded_rows(rows) * kPanelRows) {
        for (int r = 0; r < rows; r += kTileRows) {
            f(w[p], x.at(r / kTileRows), rows - r < kTileRows ? rows - r : kTileRows, out + r * kPanelRows);
        }
    }
}

// One register of the instruction set: where lanes are compared, GCC 12 takes wider vectors apart.
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float FloatLanes __attribute__((vector_size(4 * kLanes)));
typedef int32_t IntLanes __attribute__((vector_size(4 * kLanes)));
typedef int32_t Int4 __attribute__((vector_size(16)));

template <typename Vector>
inline Vector larger(const Vector & a, const Vector & b) {
    return a > b ? a : b;
}

inline int32_t largest_lane(const IntLanes & v) {
    Int4 part[kLanes / 4];
    std::memcpy(part, &v, sizeof v);
    Int4 m = part[0];
    for (int i = 1; i < kLanes / 4; ++i) m = larger(m, part[i]);
    int32_t largest = m[0];
    for (int i = 1; i < 4; ++i) largest = m[i] > largest ? m[i] : largest;
    return largest;
}

inline int32_t sum_of_lanes(const IntLanes & v) {
    Int4 part[kLanes / 4];
    std::memcpy(part, &v, sizeof v);
    Int4 m = part[0];
    for (int i = 1; i < kLanes / 4; ++i) m += part[i];
    return (m[0] + m[1]) + (m[2] + m[3]);
}

// 32 values onto the grid of `scale`, rounded half away from zero. sums[h] += those of 16 columns.
inline void quantize_32(const float * x, float scale, int8_t * q, IntLanes sums[2]) {
    int32_t t[32];
    for (int i = 0; i < 32; i += kLanes) {
        FloatLanes y;
        std::memcpy(&y, x + i, sizeof y);
        y = y / scale;
        // A subnormal scale is rounded coarsely enough for |y| to pass 127.
        y = y > 127.0f ? FloatLanes{} + 127.0f : y;
        y = y < -127.0f ? FloatLanes{} - 127.0f : y;
        IntLanes whole = __builtin_convertvector(y, IntLanes);                   // towards zero
        const FloatLanes rest = y - __builtin_convertvector(whole, FloatLanes);  // exact
        whole -= rest >= 0.5f;                                                   // a comparison that holds is -1
        whole += rest <= -0.5f;
        std::memcpy(t + i, &whole, sizeof whole);
        sums[i / 16] += whole;
    }
    for (int i = 0; i < 32; ++i) q[i] = int8_t(t[i]);
}

inline void quantize(const float * x, const Layout & w, const Tile & tile, int row) {
    const int64_t group = activation_group(w), chunk = activation_chunk(w);
    for (int64_t g = 0; g < w.k / group; ++g) {
        const float * xg = x + g * group;
        // Magnitudes of floats order as their bits do, and infinities and NaNs come last.
        IntLanes magnitudes = {};
        for (int64_t j = 0; j < group; j += kLanes) {
            IntLanes bits;
            std::memcpy(&bits, xg + j, sizeof bits);
            magnitudes = larger(magnitudes, bits & 0x7fffffff);
        }
        const int32_t amax_bits = largest_lane(magnitudes);
        float scale = __builtin_bit_cast(float, amax_bits) / 127.0f;
        if (amax_bits >= 0x7f800000) scale = __builtin_nanf("");
        tile.d[g * kTileRows + row] = scale;
        const bool zero = !(scale > 0.0f);
        IntLanes sums[2] = {};
        for (int64_t j = 0; j < group; j += 32) {
            int8_t * q = tile_columns(tile, chunk, row, g * group + j);
            if (zero)
                std::memset(q, 0, 32);
            else
                quantize_32(xg + j, scale, q, sums);
        }
        // A group is one range, or two of 16 columns.
        if (w.range == 16) {
            tile.offset[2 * g * kTileRows + row] = -128 * sum_of_lanes(sums[0]);
            tile.offset[(2 * g + 1) * kTileRows + row] = -128 * sum_of_lanes(sums[1]);
        } else {
            tile.offset[g * kTileRows + row] = -128 * sum_of_lanes(sums[0] + sums[1]);
        }
    }
}

// exp(x) for x in [-87, 88], clamped to it; NaN stays NaN. Within 1 ulp of the true value.
// x = n ln 2 + r, |r| <= ln(2)/2; e^r by its Taylor series to degree 7, whose remainder
// r^8/8! < 5.2e-9 is below a tenth of an ulp of e^r.
inline float exp_clamped(float x) {
    x = x > 88.0f ? 88.0f : x;
    x = x < -87.0f ? -87.0f : x;
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const float magic = 12582912.0f;
    float shifted = x * 1.44269504088896341f + magic;
    float n = shifted - magic;
    // ln 2 in two parts; the first has 9 trailing zero bits, so n times it is exact.
    float r = __builtin_fmaf(n, -0.693145751953125f, x);
    r = __builtin_fmaf(n, -1.42860682030941723e-6f, r);
    float p = 1.0f / 5040.0f;
    p = __builtin_fmaf(p, r, 1.0f / 720.0f);
    p = __builtin_fmaf(p, r, 1.0f / 120.0f);
    p = __builtin_fmaf(p, r, 1.0f / 24.0f);
    p = __builtin_fmaf(p, r, 1.0f / 6.0f);
    p = __builtin_fmaf(p, r, 0.5f);
    p = __builtin_fmaf(p, r, 1.0f);
    p = __builtin_fmaf(p, r, 1.0f);
    uint32_t exponent = __builtin_bit_cast(uint32_t, shifted) - __builtin_bit_cast(uint32_t, magic) + 127u;
    return p * __builtin_bit_cast(float, exponent << 23);
}

inline float sigmoid_times(float x, float z) {  // x / (1 + exp(-z))
    return x / (1.0f + exp_clamped(-z));
}

inline void glu(Glu op, const float * g, const float * u, float * h, int64_t n) {
    if (op == Glu::swiglu) {
        for (int64_t i = 0; i < n; ++i) h[i] = sigmoid_times(g[i], g[i]) * u[i];
    } else if (op == Glu::geglu) {
        // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) is x sigmoid of twice the argument.
        const float c = 1.5957691216057308f;  // 2 sqrt(2/pi)
        for (int64_t i = 0; i < n; ++i) {
            float x = g[i];
            h[i] = sigmoid_times(x, c * (x * (1.0f + 0.044715f * (x * x)))) * u[i];
        }
    } else {
        for (int64_t i = 0; i < n; ++i) h[i] = (g[i] < 0.0f ? 0.0f : g[i]) * u[i];
    }
}

inline void weighted_sum(const float * y, int64_t stride, const float * w, int count, float * out, int64_t n) {
    for (int e = 0; e < count; ++e) {
        const float * ye = y + e * stride;
        const float we = w ? w[e] : 1.0f;
        if (e == 0) {
            for (int64_t i = 0; i < n; ++i) out[i] = we * ye[i];
        } else {
            for (int64_t i = 0; i < n; ++i) out[i] = out[i] + we * ye[i];
        }
    }
}

inline void product_float(const Panel & w, const float * const * x, int m, float * out) {
    std::memset(out, 0, size_t(m) * kPanelRows * sizeof(float));
    for (int64_t g = 0; g < w.layout->k / 32; ++g) {
        int8_t q[512];
        float value[32][kPanelRows], scale[kPanelRows];
        decode_group(w, g, q);
        for (int j = 0; j < 32; ++j) {
            int64_t column = 32 * g + j;
            if (column % w.layout->range == 0 || j == 0) {
                for (int o = 0; o < kPanelRows; ++o) scale[o] = weight_scale(w, column, o);
            }
            for (int o = 0; o < kPanelRows; ++o) value[j][o] = float(q[64 * (j / 4) + 4 * o + j % 4]) * scale[o];
        }
        for (int r = 0; r < m; ++r) {
            const float * xr = x[r] + 32 * g;
            float * acc = out + r * kPanelRows;
            for (int j = 0; j < 32; ++j) {
                for (int o = 0; o < kPanelRows; ++o) acc[o] = __builtin_fmaf(xr[j], value[j][o], acc[o]);
            }
        }
    }
}

}  // namespace
}  // namespace octet
