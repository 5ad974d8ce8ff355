// AVX2 with FMA and F16C.
//
// Tile: half a panel, 8 weight rows in the lanes of a register, x 4 activation rows at a time. A
// group of 32 columns is decoded once into the first-level cache and used for every row.
// vpmaddubsw multiplies unsigned by signed and saturates at 16 bits, so the weight gives its
// magnitude and hands its sign to the activation: |w| <= 128, |q| <= 127, 2 * 128 * 127 < 2^15. Small
// weights leave room to add several such sums in 16 bits before they are widened.
//
// Bound: per row, half panel and quad a sign, a vpmaddubsw and an add, and where weights are large
// also a vpmaddwd: 3 to 4 operations for 32 products, 3 ports.
#include <immintrin.h>

#include "elementwise.h"
#include "tables.h"

namespace octet {
namespace {

inline __m256i load256(const void * p) { return _mm256_loadu_si256(static_cast<const __m256i *>(p)); }
inline void store256(void * p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i *>(p), v); }

struct Decoded {
    alignas(32) int8_t value[512];
    alignas(32) int8_t magnitude[512];
};

template <int kBits>
inline void decode(const uint8_t * codes, __m256i table, Decoded & out) {
    const __m256i low4 = _mm256_set1_epi8(15), low2 = _mm256_set1_epi8(3), four = _mm256_set1_epi8(4);
    for (int half = 0; half < 64; half += 32) {
        const uint8_t * p = codes + half;
#pragma GCC unroll 8
        for (int quad = 0; quad < 8; ++quad) {
            __m256i v;
            if constexpr (kBits == 8) {
                v = load256(p + 64 * quad);
            } else if constexpr (kBits == 4) {
                __m256i c = load256(p + 64 * (quad % 4));
                v = _mm256_shuffle_epi8(table, _mm256_and_si256(quad < 4 ? c : _mm256_srli_epi16(c, 4), low4));
            } else {
                __m256i index = _mm256_and_si256(_mm256_srli_epi16(load256(p + 64 * (quad / 4)), 2 * (quad % 4)), low2);
                if constexpr (kBits == 3) {
                    const __m256i bit = _mm256_set1_epi8(char(1 << quad));
                    __m256i third = _mm256_cmpeq_epi8(_mm256_and_si256(load256(p + 128), bit), bit);
                    index = _mm256_or_si256(index, _mm256_and_si256(third, four));
                }
                v = _mm256_shuffle_epi8(table, index);
            }
            store256(out.value + 64 * quad + half, v);
            store256(out.magnitude + 64 * quad + half, _mm256_abs_epi8(v));
        }
    }
}

// The scales of 8 weight rows in the range that starts at `column`.
inline __m256 scales(const Panel & w, int64_t range, int64_t span, int half) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i *>(w.d + span * kPanelRows + 8 * half));
    __m256 s = w.layout->format->d_type == ScaleType::bf16
                   ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))
                   : _mm256_cvtph_ps(bits);
    if (w.mult) {
        const int8_t * m = w.mult + range * kPanelRows + 8 * half;
        __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(m)));
        __m256 unit = _mm256_set1_ps(w.layout->format->unit);
        s = _mm256_mul_ps(s, _mm256_mul_ps(_mm256_cvtepi32_ps(wide), unit));
    }
    return s;
}

// dots[r] += kQuads quads of kRows rows with 8 weight rows. kSum quads are added in 16 bits.
template <int kQuads, int kSum, int kRows>
inline void dot(const Decoded & w, int first, int half, const int8_t * q, int64_t row_stride, __m256i * dots) {
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int j = 0; j < kQuads; j += kSum) {
        __m256i pairs[kRows];
#pragma GCC unroll 8
        for (int i = 0; i < kSum; ++i) {
            const int at = 64 * (first + j + i) + 32 * half;
            const __m256i value = load256(w.value + at), magnitude = load256(w.magnitude + at);
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) {
                int32_t a;
                std::memcpy(&a, q + r * row_stride + 4 * (j + i), 4);
                __m256i p = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(_mm256_set1_epi32(a), value));
                pairs[r] = i == 0 ? p : _mm256_add_epi16(pairs[r], p);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) dots[r] = _mm256_add_epi32(dots[r], _mm256_madd_epi16(pairs[r], ones));
    }
}

template <int kRows>
inline void add_scaled(const __m256i * dots, __m256 sw, const float * d, float * out) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
        float * to = out + r * kPanelRows;
        __m256 s = _mm256_mul_ps(sw, _mm256_set1_ps(d[r]));
        _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), s, _mm256_loadu_ps(to)));
    }
}

// f(first row, number of rows as a constant) over rows 0 .. m-1, four at a time.
template <int n>
struct Count {
    static constexpr int value = n;
};
template <typename F>
inline void for_rows(int m, F f) {
    int r = 0;
    for (; r + 4 <= m; r += 4) f(r, Count<4>());
    switch (m - r) {
        case 3: return f(r, Count<3>());
        case 2: return f(r, Count<2>());
        case 1: return f(r, Count<1>());
    }
}

// Ranges of 16 or 32 columns.
template <int kBits, int kRange, int kSum>
void product_short(const Panel & w, const Tile & x, int m, float * out) {
    const Layout & l = *w.layout;
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(l.format->table)));
    const int64_t groups_per_span = l.span / 32;
    for (int64_t g = 0, span = 0, left = groups_per_span; g < l.k / 32; ++g) {
        Decoded weight;
        decode<kBits>(w.codes + g * 64 * kBits, table, weight);
        for (int part = 0; part < 32 / kRange; ++part) {
            for (int half = 0; half < 2; ++half) {
                const __m256 sw = scales(w, g * (32 / kRange) + part, span, half);
                for_rows(m, [&](int r, auto rows) {
                    constexpr int kRows = decltype(rows)::value;
                    __m256i dots[kRows];
                    for (int i = 0; i < kRows; ++i) dots[i] = _mm256_setzero_si256();
                    const int8_t * q = x.q + (g * kTileRows + r) * 32 + part * kRange;
                    dot<kRange / 4, kSum, kRows>(weight, part * (kRange / 4), half, q, 32, dots);
                    add_scaled<kRows>(dots, sw, x.d + g * kTileRows + r, out + r * kPanelRows + 8 * half);
                });
            }
        }
        if (--left == 0) {
            left = groups_per_span;
            ++span;
        }
    }
}

// int8 with ranges of 128 columns or whole rows: int32 sums in memory across a range.
void product_long(const Panel & w, const Tile & x, int m, float * out) {
    const Layout & l = *w.layout;
    const int64_t chunk = activation_chunk(l);
    for (int64_t range = 0; range < l.k / l.range; ++range) {
        alignas(32) int32_t sums[2][kTileRows][8] = {};
        for (int64_t column = range * l.range; column < (range + 1) * l.range; column += 32) {
            Decoded weight;
            decode<8>(w.codes + column * kPanelRows, _mm256_setzero_si256(), weight);
            for (int half = 0; half < 2; ++half) {
                for_rows(m, [&](int r, auto rows) {
                    constexpr int kRows = decltype(rows)::value;
                    __m256i dots[kRows];
                    for (int i = 0; i < kRows; ++i) dots[i] = load256(sums[half][r + i]);
                    dot<8, 1, kRows>(weight, 0, half, tile_columns(x, chunk, r, column), chunk, dots);
                    for (int i = 0; i < kRows; ++i) store256(sums[half][r + i], dots[i]);
                });
            }
        }
        for (int half = 0; half < 2; ++half) {
            const __m256 sw = scales(w, range, range, half);
            for (int r = 0; r < m; ++r) {
                __m256i sum = load256(sums[half][r]);
                add_scaled<1>(&sum, sw, x.d + range * kTileRows + r, out + r * kPanelRows + 8 * half);
            }
        }
    }
}

// How many quads fit 16 bits: each adds at most 2 * 127 * max|w|.
//   iq3_s 15, mxfp4 12, q4_0 8, q2_0 2: 8 (30480 at most)   iq2 43, iq3_xxs 62: 2 (31496)   others: 1
void product(const Panel & w, const Tile & x, int m, float * out) {
    std::memset(out, 0, size_t(m) * kPanelRows * sizeof(float));
    const Format & f = *w.layout->format;
    switch (f.code_bits) {
        case 8: return w.layout->range == 32 ? product_short<8, 32, 1>(w, x, m, out) : product_long(w, x, m, out);
        case 3:
            return w.layout->range == 16 ? product_short<3, 16, 2>(w, x, m, out)
                                         : product_short<3, 32, 2>(w, x, m, out);
        case 2: return product_short<2, 32, 8>(w, x, m, out);
    }
    int largest = 0;
    for (int8_t v : f.table) largest = v > largest ? v : -v > largest ? -v : largest;
    if (largest * 254 * 8 <= 32767) return product_short<4, 32, 8>(w, x, m, out);
    if (largest * 254 * 2 <= 32767) return product_short<4, 32, 2>(w, x, m, out);
    product_short<4, 32, 1>(w, x, m, out);
}

}  // namespace

const Kernels kAvx2Kernels = {"avx2", rotate, quantize, for_tiles<product>, product_float, glu, weighted_sum};

}  // namespace octet
