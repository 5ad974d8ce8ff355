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
#include "avx2.h"
#include "../formats/blocks.h"
#include "dispatch.h"
#include "elementwise.h"
#include "tables.h"

namespace octet {
namespace {

struct Decoded {
    alignas(32) int8_t value[512];
    alignas(32) int8_t magnitude[512];
};

template <int kBits>
inline void decode(const uint8_t * codes, __m256i table, Decoded & out) {
    for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 8
        for (int quad = 0; quad < 8; ++quad) {
            const __m256i v = weights256<kBits, false>(codes, quad, half, table);
            store256(out.value + 64 * quad + 32 * half, v);
            store256(out.magnitude + 64 * quad + 32 * half, _mm256_abs_epi8(v));
        }
    }
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

// Ranges of 16 or 32 columns.
template <int kBits, int kRange, int kSum>
void product_short(const Panel & w, const Tile & x, int m, float * out) {
    const Layout & l = *w.layout;
    const __m256i table = table256<false>(*l.format);
    Scales256 scales(w);
    for (int64_t g = 0; g < l.k / 32; ++g) {
        Decoded weight;
        decode<kBits>(w.codes + g * 64 * kBits, table, weight);
        for (int part = 0; part < 32 / kRange; ++part) {
            __m256 sw[2];
            scales.next(sw);
            for (int half = 0; half < 2; ++half) {
                for_rows<4>(m, [&](int r, auto rows) {
                    constexpr int kRows = decltype(rows)::value;
                    __m256i dots[kRows];
                    for (int i = 0; i < kRows; ++i) dots[i] = _mm256_setzero_si256();
                    const int8_t * q = x.q + (g * kTileRows + r) * 32 + part * kRange;
                    dot<kRange / 4, kSum, kRows>(weight, part * (kRange / 4), half, q, 32, dots);
                    add_scaled<kRows>(dots, sw[half], x.d + g * kTileRows + r, out + r * kPanelRows + 8 * half);
                });
            }
        }
    }
}

// int8 with ranges of 128 columns or whole rows: int32 sums in memory across a range.
void product_long(const Panel & w, const Tile & x, int m, float * out) {
    const Layout & l = *w.layout;
    const int64_t chunk = activation_chunk(l);
    Scales256 scales(w);
    for (int64_t range = 0; range < l.k / l.range; ++range) {
        alignas(32) int32_t sums[2][kTileRows][8] = {};
        for (int64_t column = range * l.range; column < (range + 1) * l.range; column += 32) {
            Decoded weight;
            decode<8>(w.codes + column * kPanelRows, _mm256_setzero_si256(), weight);
            for (int half = 0; half < 2; ++half) {
                for_rows<4>(m, [&](int r, auto rows) {
                    constexpr int kRows = decltype(rows)::value;
                    __m256i dots[kRows];
                    for (int i = 0; i < kRows; ++i) dots[i] = load256(sums[half][r + i]);
                    dot<8, 1, kRows>(weight, 0, half, tile_columns(x, chunk, r, column), chunk, dots);
                    for (int i = 0; i < kRows; ++i) store256(sums[half][r + i], dots[i]);
                });
            }
        }
        __m256 sw[2];
        scales.next(sw);
        for (int half = 0; half < 2; ++half) {
            for (int r = 0; r < m; ++r) {
                __m256i sum = load256(sums[half][r]);
                add_scaled<1>(&sum, sw[half], x.d + range * kTileRows + r, out + r * kPanelRows + 8 * half);
            }
        }
    }
}

// How many quads fit 16 bits: each adds at most 2 * 127 * max|w|.
//   iq3_s 15, mxfp4 12, q4_0 8, q2_0 2: 8 (30480 at most)   iq2 43, iq3_xxs 62: 2 (31496)   others: 1
int quads_in_16_bits(const Format & f) {
    if (f.code_bits == 8) return 1;
    int largest = 0;
    for (int8_t v : f.table) largest = v > largest ? v : -v > largest ? -v : largest;
    return largest * 254 * 8 <= 32767 ? 8 : largest * 254 * 2 <= 32767 ? 2 : 1;
}

void product(const Panel & w, const Tile & x, int m, float * out) {
    std::memset(out, 0, size_t(m) * kPanelRows * sizeof(float));
    if (!is_short(w)) return product_long(w, x, m, out);
    const int sum = quads_in_16_bits(*w.layout->format);
    for_short(w, [&](auto bits, auto range) {
        constexpr int kBits = decltype(bits)::value, kRange = decltype(range)::value;
        if (sum == 8 && kRange == 32) return product_short < kBits, kRange, kRange == 32 ? 8 : 2 > (w, x, m, out);
        if (sum >= 2) return product_short<kBits, kRange, 2>(w, x, m, out);
        product_short<kBits, kRange, 1>(w, x, m, out);
    });
}

}  // namespace

const Kernels kAvx2Kernels = {"avx2", read_blocks<true>, rotate, quantize, for_tiles<product>, product_float,
                              glu,    weighted_sum};

}  // namespace octet
