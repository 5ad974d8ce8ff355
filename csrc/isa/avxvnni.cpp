// AVX-VNNI: AVX2, FMA, F16C and the 256-bit vpdpbusd of processors without AVX-512.
//
// Tile: a whole panel, 16 weight rows in the lanes of two registers, x up to 6 activation rows. vpdpbusd
// takes 5 cycles and two start per cycle, so 10 sums have to be under way; 2 x 6 sums, 2 weights, the
// 4 activations of a quad and a constant are the 16 registers. Of up to 3 rows the float accumulators stay in
// registers as well, and a weight is decoded where it is used; of more they are in the first-level cache,
// and so are the decoded weights of a group of 32 columns.
//
// Bound: vpdpbusd multiplies unsigned by signed, so weights carry an excess of 128 and each dot starts
// from -128 * sum(q). Per row, half panel and group 8 vpdpbusd, a convert, a multiply and an fma: 11 operations
// on two ports for 256 products, 5.5 cycles, 46 products a cycle; with 6 rows a group loads 8 registers for
// 12 vpdpbusd and thus needs less than two load ports. One row of 4-bit weights is bound by the decoding
// instead: 3 operations on three ports for a quad of 8 weight rows, beside vpdpbusd 4, so 11 cycles for the
// 128 bytes of a half panel's group. With scales per row the 8 vpdpbusd are all: 64 products a cycle.
#include "../formats/blocks.h"
#include "avx2.h"
#include "dispatch.h"
#include "elementwise.h"
#include "tables.h"

namespace octet {
namespace {

constexpr int kMostRows = 6;  // of one pass over a group's weights
constexpr int kFewRows = 3;   // with 2 x 3 float accumulators everything still fits the registers

// Weights of a group, decoded where they are used.
template <int kBits>
struct InPanel {
    const uint8_t * codes;
    __m256i table;
    __m256i get(int quad, int half) const { return weights256<kBits, true>(codes, quad, half, table); }
};

// Decoded ones: [8 quads][16 rows][4 columns].
struct InCache {
    const uint8_t * value;
    __m256i get(int quad, int half) const { return load256(value + 64 * quad + 32 * half); }
};

// Sums of kRows rows with the two halves of the panel.
template <int kRows>
struct Sums {
    __m256i half[2][kRows];
};

// From offset[r] on, or from 0.
template <int kRows>
inline void start(Sums<kRows> & s, const int32_t * offset) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
        s.half[0][r] = s.half[1][r] = offset ? _mm256_set1_epi32(offset[r]) : _mm256_setzero_si256();
    }
}

// Adds kQuads quads, the first of them `first`, of rows `stride` apart; quad j to sums j % kChains.
template <int kQuads, int kChains, int kRows, typename Weights>
inline void dot(const Weights & weights, int first, const int8_t * q, int64_t stride, Sums<kRows> (&sums)[kChains]) {
#pragma GCC unroll 8
    for (int j = 0; j < kQuads; ++j) {
        Sums<kRows> & s = sums[j % kChains];
        const __m256i w0 = weights.get(first + j, 0), w1 = weights.get(first + j, 1);
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r) {
            int32_t columns;
            std::memcpy(&columns, q + r * stride + 4 * j, 4);
            const __m256i a = _mm256_set1_epi32(columns);
            s.half[0][r] = _mm256_dpbusd_avx_epi32(s.half[0][r], w0, a);
            s.half[1][r] = _mm256_dpbusd_avx_epi32(s.half[1][r], w1, a);
        }
    }
}

inline __m256 add_scaled(__m256i sum, __m256 sw, float d, __m256 acc) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(sw, _mm256_set1_ps(d)), acc);
}

template <int kRows>
inline void add_scaled(const Sums<kRows> & s, const __m256 sw[2], const float * d, float * out) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r) {
            float * to = out + r * kPanelRows + 8 * half;
            _mm256_storeu_ps(to, add_scaled(s.half[half][r], sw[half], d[r], _mm256_loadu_ps(to)));
        }
    }
}

// Ranges of 16 or 32 columns, up to kFewRows rows.
template <int kBits, int kRange, int kRows>
void product_few(const Panel & w, const Tile & x, float * out) {
    const Layout & l = *w.layout;
    const __m256i table = table256<true>(*l.format);
    Scales256 scales(w);
    const int8_t * q = x.q;
    const float * d = x.d;
    const int32_t * offset = x.offset;
    const uint8_t *codes = w.codes, *end = codes + l.k / 32 * 64 * kBits;
    __m256 acc[2][kRows];
    for (int r = 0; r < kRows; ++r) acc[0][r] = acc[1][r] = _mm256_setzero_ps();
    for (; codes != end; codes += 64 * kBits, q += 32 * kTileRows, d += kTileRows) {
        const InPanel<kBits> weights{codes, table};
#pragma GCC unroll 2
        for (int part = 0; part < 32 / kRange; ++part, offset += kTileRows) {
            __m256 sw[2];
            scales.next(sw);
            Sums<kRows> sums[1];
            start(sums[0], offset);
            dot<kRange / 4>(weights, part * (kRange / 4), q + part * kRange, 32, sums);
#pragma GCC unroll 3
            for (int r = 0; r < kRows; ++r) {
                acc[0][r] = add_scaled(sums[0].half[0][r], sw[0], d[r], acc[0][r]);
                acc[1][r] = add_scaled(sums[0].half[1][r], sw[1], d[r], acc[1][r]);
            }
        }
    }
    for (int r = 0; r < kRows; ++r) {
        _mm256_storeu_ps(out + r * kPanelRows, acc[0][r]);
        _mm256_storeu_ps(out + r * kPanelRows + 8, acc[1][r]);
    }
}

// The same of any number of rows.
template <int kBits, int kRange>
void product_many(const Panel & w, const Tile & x, int m, float * out) {
    std::memset(out, 0, size_t(m) * kPanelRows * sizeof(float));
    const Layout & l = *w.layout;
    const __m256i table = table256<true>(*l.format);
    Scales256 scales(w);
    const int32_t * offset = x.offset;
    for (int64_t g = 0; g < l.k / 32; ++g) {
        const InPanel<kBits> in_panel{w.codes + g * 64 * kBits, table};
        alignas(64) uint8_t decoded[kBits == 8 ? 1 : 512];
        if constexpr (kBits != 8) {
            for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 8
                for (int j = 0; j < 8; ++j) store256(decoded + 64 * j + 32 * half, in_panel.get(j, half));
            }
        }
        for (int part = 0; part < 32 / kRange; ++part, offset += kTileRows) {
            __m256 sw[2];
            scales.next(sw);
            for_rows<kMostRows>(m, [&](int r, auto rows) {
                Sums<decltype(rows)::value> sums[1];
                start(sums[0], offset + r);
                const int8_t * q = x.q + (g * kTileRows + r) * 32 + part * kRange;
                // The excess of int8 is added by the port that vpdpbusd leaves free: cheaper than a copy.
                if constexpr (kBits == 8)
                    dot<kRange / 4>(in_panel, part * (kRange / 4), q, 32, sums);
                else
                    dot<kRange / 4>(InCache{decoded}, part * (kRange / 4), q, 32, sums);
                add_scaled(sums[0], sw, x.d + g * kTileRows + r, out + r * kPanelRows);
            });
        }
    }
}

template <int kBits, int kRange>
void product_short(const Panel & w, const Tile & x, int m, float * out) {
    switch (m) {
        case 1: return product_few<kBits, kRange, 1>(w, x, out);
        case 2: return product_few<kBits, kRange, 2>(w, x, out);
        case 3: return product_few<kBits, kRange, 3>(w, x, out);
        default: return product_many<kBits, kRange>(w, x, m, out);
    }
    static_assert(kFewRows == 3, "the cases above");
}

// int8 with ranges of 128 columns or whole rows: the integer sums stay in registers across a range. Few
// rows get several sums each, so that there are enough of them under way.
template <int kChunk>
void product_long(const Panel & w, const Tile & x, int m, float * out) {
    std::memset(out, 0, size_t(m) * kPanelRows * sizeof(float));
    const Layout & l = *w.layout;
    Scales256 scales(w);
    for (int64_t range = 0; range < l.k / l.range; ++range) {
        __m256 sw[2];
        scales.next(sw);
        const uint8_t * codes = w.codes + range * l.range * kPanelRows;
        for_rows<kMostRows>(m, [&](int r, auto rows) {
            constexpr int kRows = decltype(rows)::value, kChains = kRows == 1 ? 4 : kRows <= 3 ? 2 : 1;
            Sums<kRows> sums[kChains];
            start(sums[0], x.offset + range * kTileRows + r);
            for (int i = 1; i < kChains; ++i) start(sums[i], nullptr);
            const int8_t * q = x.q + range * l.range * kTileRows + r * kChunk;
            for (int64_t column = 0; column < l.range; column += kChunk, q += kChunk * kTileRows) {
#pragma GCC unroll 2
                for (int part = 0; part < kChunk; part += 32) {
                    const InPanel<8> weights{codes + (column + part) * kPanelRows, _mm256_setzero_si256()};
                    dot<8>(weights, 0, q + part, kChunk, sums);
                }
            }
            for (int i = 1; i < kChains; ++i) {
                for (int s = 0; s < kRows; ++s) {
                    sums[0].half[0][s] = _mm256_add_epi32(sums[0].half[0][s], sums[i].half[0][s]);
                    sums[0].half[1][s] = _mm256_add_epi32(sums[0].half[1][s], sums[i].half[1][s]);
                }
            }
            add_scaled(sums[0], sw, x.d + range * kTileRows + r, out + r * kPanelRows);
        });
    }
}

void product(const Panel & w, const Tile & x, int m, float * out) {
    if (is_short(w)) {
        return for_short(w, [&](auto bits, auto range) {
            product_short<decltype(bits)::value, decltype(range)::value>(w, x, m, out);
        });
    }
    activation_chunk(*w.layout) == 64 ? product_long<64>(w, x, m, out) : product_long<32>(w, x, m, out);
}

}  // namespace

const Kernels kAvxVnniKernels = {"avxvnni",          read_blocks<true>, rotate, quantize,
                                 for_tiles<product>, product_float,     glu,    weighted_sum};

}  // namespace octet
