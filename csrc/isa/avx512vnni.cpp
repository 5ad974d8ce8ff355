// AVX-512 with VNNI: F, BW, DQ, VL, VNNI, and F16C for the scales.
//
// Tile: 16 weight rows in the lanes of one register x up to 16 activation rows. A group of 32
// columns is 8 weight registers, decoded once and used for every row, with the 4 activations of a
// quad broadcast from memory as vpdpbusd's second operand. 8 weights + 16 accumulators + scale and
// dot fit the 32 registers, so a group's accumulators never leave them.
//
// Bound: per row and group 8 vpdpbusd, a convert, a multiply and an fma, 11 operations on two
// ports for 512 products: 5.5 cycles, 93 products a cycle. vpdpbusd multiplies unsigned by
// signed, so weights carry an excess of 128 and each dot starts from -128 * sum(q).
#include <immintrin.h>

#include "elementwise.h"
#include "tables.h"

namespace octet {
namespace {

inline __m512i load512(const void * p) { return _mm512_loadu_si512(p); }

// The table with an excess of 128, in every 128-bit lane.
inline __m512i excess_table(const int8_t * table) {
    __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i *>(table));
    return _mm512_broadcast_i32x4(_mm_xor_si128(t, _mm_set1_epi8(char(0x80))));
}

template <int kBits>
inline void decode(const uint8_t * codes, __m512i table, __m512i w[8]) {
    const __m512i low4 = _mm512_set1_epi8(15), low2 = _mm512_set1_epi8(3);
    if constexpr (kBits == 8) {
        for (int j = 0; j < 8; ++j) w[j] = _mm512_xor_si512(load512(codes + 64 * j), _mm512_set1_epi8(char(0x80)));
    } else if constexpr (kBits == 4) {
        for (int j = 0; j < 4; ++j) {
            __m512i v = load512(codes + 64 * j);
            w[j] = _mm512_shuffle_epi8(table, _mm512_and_si512(v, low4));
            w[j + 4] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(v, 4), low4));
        }
    } else {
        for (int j = 0; j < 8; ++j) {
            __m512i v = _mm512_srli_epi16(load512(codes + 64 * (j / 4)), 2 * (j % 4));
            __m512i index = _mm512_and_si512(v, low2);
            if constexpr (kBits == 3) {
                __mmask64 third = _mm512_test_epi8_mask(load512(codes + 128), _mm512_set1_epi8(char(1 << j)));
                index = _mm512_mask_add_epi8(index, third, index, _mm512_set1_epi8(4));
            }
            w[j] = _mm512_shuffle_epi8(table, index);
        }
    }
}

inline __m512 scales(const Panel & w, int64_t column) {
    __m512 s =
        _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(w.d + column / w.span * kPanelRows)));
    if (w.mult) {
        __m128i m = _mm_loadu_si128(reinterpret_cast<const __m128i *>(w.mult + column / w.range * kPanelRows));
        __m512 mult = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(m));
        s = _mm512_mul_ps(s, _mm512_mul_ps(mult, _mm512_set1_ps(w.format->unit)));
    }
    return s;
}

template <int kQuads>
inline __m512i dot(__m512i start, const __m512i * w, const int8_t * q) {
    for (int j = 0; j < kQuads; ++j) {
        int32_t a;
        std::memcpy(&a, q + 4 * j, 4);
        start = _mm512_dpbusd_epi32(start, w[j], _mm512_set1_epi32(a));
    }
    return start;
}

// Ranges of 16 or 32 columns: one or two per group, accumulators in registers throughout.
template <int kBits, int kRange, int kRows>
void product_short(const Panel & w, const Rows & x, float * tile) {
    const __m512i table = excess_table(w.format->table);
    __m512 acc[kRows];
    for (int r = 0; r < kRows; ++r) acc[r] = _mm512_setzero_ps();
    for (int64_t g = 0; g < w.k / 32; ++g) {
        __m512i weight[8];
        decode<kBits>(w.codes + g * 64 * kBits, table, weight);
        for (int half = 0; half < 32 / kRange; ++half) {
            const int64_t range = g * (32 / kRange) + half;
            const __m512 sw = scales(w, range * kRange);
            for (int r = 0; r < kRows; ++r) {
                __m512i i = dot<kRange / 4>(_mm512_set1_epi32(x.offset[r][range]), weight + half * (kRange / 4),
                                            x.q[r] + range * kRange);
                __m512 s = _mm512_mul_ps(sw, _mm512_set1_ps(x.d[r][g]));
                acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(i), s, acc[r]);
            }
        }
    }
    for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(tile + r * kPanelRows, acc[r]);
}

// int8 with ranges of 128 columns or whole rows: the int32 accumulators stay in registers across
// a range, the floats in the tile.
template <int kRows>
void product_long(const Panel & w, const Rows & x, float * tile) {
    for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(tile + r * kPanelRows, _mm512_setzero_ps());
    for (int64_t range = 0; range < w.k / w.range; ++range) {
        __m512i acc[kRows];
        for (int r = 0; r < kRows; ++r) acc[r] = _mm512_set1_epi32(x.offset[r][range]);
        for (int64_t column = range * w.range; column < (range + 1) * w.range; column += 32) {
            __m512i weight[8];
            decode<8>(w.codes + column * kPanelRows, _mm512_setzero_si512(), weight);
            for (int r = 0; r < kRows; ++r) acc[r] = dot<8>(acc[r], weight, x.q[r] + column);
        }
        const __m512 sw = scales(w, range * w.range);
        for (int r = 0; r < kRows; ++r) {
            float * out = tile + r * kPanelRows;
            __m512 s = _mm512_mul_ps(sw, _mm512_set1_ps(x.d[r][range]));
            _mm512_storeu_ps(out, _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r]), s, _mm512_loadu_ps(out)));
        }
    }
}

template <int kRows>
void product_rows(const Panel & w, const Rows & x, float * tile) {
    switch (w.format->code_bits) {
        case 8: w.range == 32 ? product_short<8, 32, kRows>(w, x, tile) : product_long<kRows>(w, x, tile); break;
        case 4: product_short<4, 32, kRows>(w, x, tile); break;
        case 3: product_short<3, 16, kRows>(w, x, tile); break;
        case 2: product_short<2, 32, kRows>(w, x, tile); break;
    }
}

// Rows are taken in the smallest tile that holds them; the missing ones repeat row 0.
void product(const Panel & w, const Rows & x, int m, float * tile) {
    if (m == 1) return product_rows<1>(w, x, tile);
    if (m == 2) return product_rows<2>(w, x, tile);
    if (m == 4) return product_rows<4>(w, x, tile);
    if (m == 8) return product_rows<8>(w, x, tile);
    if (m == 16) return product_rows<16>(w, x, tile);
    Rows padded = x;
    float full[kTileRows * kPanelRows];
    int rows = m <= 3 ? 4 : m <= 6 ? 6 : m <= 8 ? 8 : m <= 12 ? 12 : 16;
    for (int r = m; r < rows; ++r) {
        padded.q[r] = x.q[0];
        padded.d[r] = x.d[0];
        padded.offset[r] = x.offset[0];
    }
    switch (rows) {
        case 4: product_rows<4>(w, padded, full); break;
        case 6: product_rows<6>(w, padded, full); break;
        case 8: product_rows<8>(w, padded, full); break;
        case 12: product_rows<12>(w, padded, full); break;
        case 16: product_rows<16>(w, padded, full); break;
    }
    std::memcpy(tile, full, size_t(m) * kPanelRows * sizeof(float));
}

}  // namespace

const Kernels kAvx512VnniKernels = {"avx512vnni", rotate, quantize, product, product_float, glu, weighted_sum};

}  // namespace octet
