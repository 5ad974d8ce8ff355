// AVX-512 with VNNI: F, BW, DQ, VL, VNNI, and F16C for the scales.
//
// Tile: 16 weight rows in the lanes of one register x up to 16 activation rows. A group of 32
// columns is 8 weight registers, decoded once and used for every row, with the 4 activations of a
// quad broadcast from memory as vpdpbusd's second operand. 8 weights + 16 accumulators + scale and
// dot fit the 32 registers, so a group's accumulators never leave them.
//
// Bound: per row and group 8 vpdpbusd, a convert, a multiply and an fma, 11 operations on two
// ports for 512 products: 5.5 cycles, 93 products a cycle. Each dot starts from -128 * sum(q), for
// the excess of 128 in the weights.
#include "../formats/blocks.h"
#include "avx512.h"
#include "dispatch.h"
#include "elementwise.h"
#include "tables.h"

namespace octet {
namespace {

template <int kQuads>
inline __m512i dot(__m512i start, const __m512i * w, const int8_t * q) {
#pragma GCC unroll 8
    for (int j = 0; j < kQuads; ++j) {
        int32_t a;
        std::memcpy(&a, q + 4 * j, 4);
        start = _mm512_dpbusd_epi32(start, w[j], _mm512_set1_epi32(a));
    }
    return start;
}

// Ranges of 16 or 32 columns: one or two per group, accumulators in registers throughout.
template <int kBits, int kRange, int kRows>
void product_short(const Panel & w, const Tile & x, float * out) {
    const Layout & l = *w.layout;
    const __m512i table = table512<true>(*l.format);
    Scales512 scales(w);
    Ahead<kBits> ahead(w);
    const int8_t * q = x.q;
    const float * d = x.d;
    const int32_t * offset = x.offset;
    const uint8_t *codes = w.codes, *end = codes + l.k / 32 * 64 * kBits;
    __m512 acc[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) acc[r] = _mm512_setzero_ps();
    for (; codes != end; codes += 64 * kBits, q += 32 * kTileRows, d += kTileRows) {
        __m512i weight[8];
        ahead.next_group();
        decode512<kBits, true>(codes, table, weight);
#pragma GCC unroll 2
        for (int part = 0; part < 32 / kRange; ++part, offset += kTileRows) {
            const __m512 sw = scales.next();
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) {
                __m512i i = dot<kRange / 4>(_mm512_set1_epi32(offset[r]), weight + part * (kRange / 4),
                                            q + 32 * r + part * kRange);
                acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(i), _mm512_mul_ps(sw, _mm512_set1_ps(d[r])), acc[r]);
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(out + r * kPanelRows, acc[r]);
}

// int8 with ranges of 128 columns or whole rows: the int32 accumulators stay in registers across
// a range, the floats in out.
template <int kChunk, int kRows>
void product_long(const Panel & w, const Tile & x, float * out) {
    const Layout & l = *w.layout;
    Scales512 scales(w);
    Ahead<8> ahead(w);
    const int8_t * q = x.q;
    const uint8_t * codes = w.codes;
    for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(out + r * kPanelRows, _mm512_setzero_ps());
    for (int64_t range = 0; range < l.k / l.range; ++range) {
        __m512i acc[kRows];
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) acc[r] = _mm512_set1_epi32(x.offset[range * kTileRows + r]);
        for (int64_t column = 0; column < l.range; column += kChunk, q += kChunk * kTileRows) {
#pragma GCC unroll 2
            for (int part = 0; part < kChunk / 32; ++part, codes += 512) {
                __m512i weight[8];
                ahead.next_group();
                decode512<8, true>(codes, _mm512_setzero_si512(), weight);
#pragma GCC unroll 16
                for (int r = 0; r < kRows; ++r) acc[r] = dot<8>(acc[r], weight, q + kChunk * r + 32 * part);
            }
        }
        const __m512 sw = scales.next();
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
            __m512 s = _mm512_mul_ps(sw, _mm512_set1_ps(x.d[range * kTileRows + r]));
            float * to = out + r * kPanelRows;
            _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r]), s, _mm512_loadu_ps(to)));
        }
    }
}

template <int kRows>
void product_rows(const Panel & w, const Tile & x, float * out) {
    if (is_short(w)) {
        return for_short(w, [&](auto bits, auto range) {
            product_short<decltype(bits)::value, decltype(range)::value, kRows>(w, x, out);
        });
    }
    activation_chunk(*w.layout) == 64 ? product_long<64, kRows>(w, x, out) : product_long<32, kRows>(w, x, out);
}

// In the fewest rows that hold m.
void product(const Panel & w, const Tile & x, int m, float * out) {
    switch (m) {
        case 1: return product_rows<1>(w, x, out);
        case 2: return product_rows<2>(w, x, out);
        case 3: return product_rows<3>(w, x, out);
        case 4: return product_rows<4>(w, x, out);
        case 5:
        case 6: return product_rows<6>(w, x, out);
        case 7:
        case 8: return product_rows<8>(w, x, out);
        default: return m <= 12 ? product_rows<12>(w, x, out) : product_rows<16>(w, x, out);
    }
}

}  // namespace

const Kernels kAvx512VnniKernels = {"avx512vnni",       read_blocks<true>, rotate, quantize,
                                    for_tiles<product>, product_float,     glu,    weighted_sum};

}  // namespace octet
