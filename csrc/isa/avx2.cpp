// AVX2 with FMA and F16C.
//
// Tile: half a panel, 8 weight rows in the lanes of a register, x up to 4 activation rows. A group
// of 32 columns is decoded once into the first-level cache, as magnitudes and as signed values:
// vpmaddubsw multiplies unsigned by signed and saturates at 16 bits, so the weight gives its
// magnitude and hands its sign to the activation, |w| <= 128, |q| <= 127: 2 * 128 * 127 < 2^15.
//
// Bound: per row, half panel and quad a sign, a vpmaddubsw, a vpmaddwd and an add: 4 operations for
// 32 products, 3 ports.
#include <immintrin.h>

#include "elementwise.h"
#include "tables.h"

namespace octet {
namespace {

inline __m256i load256(const void * p) { return _mm256_loadu_si256(static_cast<const __m256i *>(p)); }

struct Decoded {
    alignas(32) int8_t value[512];
    alignas(32) int8_t magnitude[512];
};

inline void decode(const Panel & w, int64_t g, Decoded & out) {
    const int bits = w.format->code_bits;
    const uint8_t * codes = w.codes + g * 64 * bits;
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(w.format->table)));
    const __m256i low4 = _mm256_set1_epi8(15), low2 = _mm256_set1_epi8(3), four = _mm256_set1_epi8(4);
    for (int quad = 0; quad < 8; ++quad) {
        for (int half = 0; half < 2; ++half) {
            const uint8_t * p = codes + 32 * half;
            __m256i v;
            if (bits == 8) {
                v = load256(p + 64 * quad);
            } else if (bits == 4) {
                __m256i c = load256(p + 64 * (quad % 4));
                v = _mm256_shuffle_epi8(table, _mm256_and_si256(quad < 4 ? c : _mm256_srli_epi16(c, 4), low4));
            } else {
                __m128i shift = _mm_cvtsi32_si128(2 * (quad % 4));
                __m256i index = _mm256_and_si256(_mm256_srl_epi16(load256(p + 64 * (quad / 4)), shift), low2);
                if (bits == 3) {
                    const __m256i bit = _mm256_set1_epi8(char(1 << quad));
                    __m256i third = _mm256_cmpeq_epi8(_mm256_and_si256(load256(p + 128), bit), bit);
                    index = _mm256_or_si256(index, _mm256_and_si256(third, four));
                }
                v = _mm256_shuffle_epi8(table, index);
            }
            int at = 64 * quad + 32 * half;
            _mm256_store_si256(reinterpret_cast<__m256i *>(out.value + at), v);
            _mm256_store_si256(reinterpret_cast<__m256i *>(out.magnitude + at), _mm256_abs_epi8(v));
        }
    }
}

inline __m256 scales(const Panel & w, int64_t column, int half) {
    __m256 s = _mm256_cvtph_ps(
        _mm_loadu_si128(reinterpret_cast<const __m128i *>(w.d + column / w.span * kPanelRows + 8 * half)));
    if (w.mult) {
        __m128i m =
            _mm_loadl_epi64(reinterpret_cast<const __m128i *>(w.mult + column / w.range * kPanelRows + 8 * half));
        __m256 mult = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(m));
        s = _mm256_mul_ps(s, _mm256_mul_ps(mult, _mm256_set1_ps(w.format->unit)));
    }
    return s;
}

// acc + the dot products of kQuads quads of one row with 8 weight rows.
template <int kQuads>
inline __m256i dot(__m256i acc, const Decoded & w, int first, int half, const int8_t * q) {
    for (int j = first; j < first + kQuads; ++j) {
        int32_t a;
        std::memcpy(&a, q + 4 * j, 4);
        __m256i signed_a = _mm256_sign_epi8(_mm256_set1_epi32(a), load256(w.value + 64 * j + 32 * half));
        __m256i pairs = _mm256_maddubs_epi16(load256(w.magnitude + 64 * j + 32 * half), signed_a);
        acc = _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return acc;
}

template <int kRange, int kRows>
void product_short(const Panel & w, const Rows & x, int first, float * tile) {
    __m256 acc[2][kRows];
    for (int half = 0; half < 2; ++half) {
        for (int r = 0; r < kRows; ++r) acc[half][r] = _mm256_setzero_ps();
    }
    for (int64_t g = 0; g < w.k / 32; ++g) {
        Decoded weight;
        decode(w, g, weight);
        for (int part = 0; part < 32 / kRange; ++part) {
            for (int half = 0; half < 2; ++half) {
                const __m256 sw = scales(w, 32 * g + part * kRange, half);
                for (int r = 0; r < kRows; ++r) {
                    __m256i i = dot<kRange / 4>(_mm256_setzero_si256(), weight, part * (kRange / 4), half,
                                                x.q[first + r] + 32 * g);
                    __m256 s = _mm256_mul_ps(sw, _mm256_set1_ps(x.d[first + r][g]));
                    acc[half][r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(i), s, acc[half][r]);
                }
            }
        }
    }
    for (int r = 0; r < kRows; ++r) {
        for (int half = 0; half < 2; ++half) {
            _mm256_storeu_ps(tile + (first + r) * kPanelRows + 8 * half, acc[half][r]);
        }
    }
}

template <int kRows>
void product_long(const Panel & w, const Rows & x, int first, float * tile) {
    std::memset(tile + first * kPanelRows, 0, kRows * kPanelRows * sizeof(float));
    for (int64_t range = 0; range < w.k / w.range; ++range) {
        __m256i acc[2][kRows];
        for (int half = 0; half < 2; ++half) {
            for (int r = 0; r < kRows; ++r) acc[half][r] = _mm256_setzero_si256();
        }
        for (int64_t column = range * w.range; column < (range + 1) * w.range; column += 32) {
            Decoded weight;
            decode(w, column / 32, weight);
            for (int half = 0; half < 2; ++half) {
                for (int r = 0; r < kRows; ++r) {
                    acc[half][r] = dot<8>(acc[half][r], weight, 0, half, x.q[first + r] + column);
                }
            }
        }
        for (int half = 0; half < 2; ++half) {
            const __m256 sw = scales(w, range * w.range, half);
            for (int r = 0; r < kRows; ++r) {
                float * out = tile + (first + r) * kPanelRows + 8 * half;
                __m256 s = _mm256_mul_ps(sw, _mm256_set1_ps(x.d[first + r][range]));
                _mm256_storeu_ps(out, _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[half][r]), s, _mm256_loadu_ps(out)));
            }
        }
    }
}

template <int kRows>
void product_rows(const Panel & w, const Rows & x, int first, float * tile) {
    if (w.range == 16) return product_short<16, kRows>(w, x, first, tile);
    if (w.range == 32) return product_short<32, kRows>(w, x, first, tile);
    product_long<kRows>(w, x, first, tile);
}

void product(const Panel & w, const Rows & x, int m, float * tile) {
    int first = 0;
    for (; first + 4 <= m; first += 4) product_rows<4>(w, x, first, tile);
    if (m - first >= 2) {
        product_rows<2>(w, x, first, tile);
        first += 2;
    }
    if (m - first == 1) product_rows<1>(w, x, first, tile);
}

}  // namespace

const Kernels kAvx2Kernels = {"avx2", rotate, quantize, product, product_float, glu, weighted_sum};

}  // namespace octet
