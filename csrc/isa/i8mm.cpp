// NEON with the int8 matrix products of Armv8.6 (I8MM: smmla), and the dot products of neon.cpp for one row.
//
// smmla multiplies 2 rows x 8 columns by 2 rows x 8 columns into 2 x 2 sums. Its weights are quads 2i
// and 2i + 1 of the panel, zipped in lanes of 32 bits when a group of 32 columns is decoded, once, into
// the first-level cache; its activations two rows, zipped in lanes of 64.
//
// Tile: 16 weight rows, 8 operands, x up to 4 activation rows: 16 registers of sums [2 rows][2 weight rows],
// with 2 x 2 activation operands and a weight out of 32; of the 8 weights loaded for 8 columns each
// serves 2 smmla, so one load for two products. The float sums keep that order, with scales to match, and are
// un-interleaved once, at the end. A last row without a partner takes the tile's next one, whatever that holds,
// which costs what 32 sdot would.
//
// Bound: per 2 rows, panel and group 32 smmla, 4 zips and 8 times a convert, a multiply and an fma: 60
// operations for 1024 products, against 88 with sdot. With whole rows 36 against 64.
#include "../formats/blocks.h"
#include "dispatch.h"
#include "elementwise.h"
#include "neon.h"
#include "tables.h"

namespace octet {
namespace {

constexpr int kOperands = kPanelRows / 2;   // of weights for 8 columns
constexpr int kGroup = 4 * kOperands * 16;  // bytes of a decoded group: [4 times 8 columns][operand][2 rows][8 columns]

constexpr int kMostPairs = 2;  // of rows in one pass over a group's weights

// That hold m rows.
inline int pairs_of(int m) { return (m + 1) / 2; }

template <int kBits>
inline void decode(const uint8_t * codes, int8x16_t table, int8_t * out) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
        for (int part = 0; part < 4; ++part) {
            const int32x4_t even = vreinterpretq_s32_s8(weights128<kBits>(codes, 2 * i, part, table));
            const int32x4_t odd = vreinterpretq_s32_s8(weights128<kBits>(codes, 2 * i + 1, part, table));
            int8_t * to = out + (i * kOperands + 2 * part) * 16;
            vst1q_s8(to, vreinterpretq_s8_s32(vzip1q_s32(even, odd)));
            vst1q_s8(to + 16, vreinterpretq_s8_s32(vzip2q_s32(even, odd)));
        }
    }
}

// Sums of kPairs pairs of rows with the panel.
template <int kPairs>
struct Sums {
    int32x4_t pair[kPairs][kOperands];

    void load(const int32_t (*from)[kOperands][4]) {
#pragma GCC unroll 2
        for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 8
            for (int o = 0; o < kOperands; ++o) pair[p][o] = vld1q_s32(from[p][o]);
        }
    }
    void store(int32_t (*to)[kOperands][4]) const {
#pragma GCC unroll 2
        for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 8
            for (int o = 0; o < kOperands; ++o) vst1q_s32(to[p][o], pair[p][o]);
        }
    }
};

// Adds kColumns columns (16 or 32) of rows that are `stride` apart.
template <int kColumns, int kPairs>
inline void dot(const int8_t * weights, const int8_t * q, int64_t stride, Sums<kPairs> & sums) {
#pragma GCC unroll 2
    for (int column = 0; column < kColumns; column += 16) {
        int8x16_t a[kPairs][2];
#pragma GCC unroll 2
        for (int p = 0; p < kPairs; ++p) {
            const int64x2_t x = vreinterpretq_s64_s8(vld1q_s8(q + 2 * p * stride + column));
            const int64x2_t y = vreinterpretq_s64_s8(vld1q_s8(q + (2 * p + 1) * stride + column));
            a[p][0] = vreinterpretq_s8_s64(vzip1q_s64(x, y));
            a[p][1] = vreinterpretq_s8_s64(vzip2q_s64(x, y));
        }
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
#pragma GCC unroll 8
            for (int o = 0; o < kOperands; ++o) {
                const int8x16_t w = vld1q_s8(weights + ((column / 8 + i) * kOperands + o) * 16);
#pragma GCC unroll 2
                for (int p = 0; p < kPairs; ++p) sums.pair[p][o] = vmmlaq_s32(sums.pair[p][o], a[p][i], w);
            }
        }
    }
}

// The weight scales of a range for sums of [2 rows][2 weight rows].
struct Scales {
    float32x4_t operand[kOperands];

    Scales(const Panel & w, int64_t column) {
#pragma GCC unroll 4
        for (int part = 0; part < 4; ++part) {
            const float64x2_t s = vreinterpretq_f64_f32(scales128(w, column, part));
            operand[2 * part] = vreinterpretq_f32_f64(vzip1q_f64(s, s));
            operand[2 * part + 1] = vreinterpretq_f32_f64(vzip2q_f64(s, s));
        }
    }
};

// Float sums of a tile in the order of smmla: [pair of rows][operand][2 rows][2 weight rows].
struct Floats {
    float value[kTileRows / 2][kOperands][4] = {};

    // Row by row, without those that do not exist.
    void store(int m, float * out) const {
        for (int r = 0; r < m; ++r) {
            for (int o = 0; o < kOperands; ++o)
                vst1_f32(out + r * kPanelRows + 2 * o, vld1_f32(value[r / 2][o] + 2 * (r % 2)));
        }
    }
};

// d of the first of the rows.
template <int kPairs>
inline void add_scaled(const Sums<kPairs> & sums, const Scales & sw, const float * d, float (*to)[kOperands][4]) {
#pragma GCC unroll 2
    for (int p = 0; p < kPairs; ++p) {
        const float32x4_t sa = vcombine_f32(vdup_n_f32(d[2 * p]), vdup_n_f32(d[2 * p + 1]));
#pragma GCC unroll 8
        for (int o = 0; o < kOperands; ++o) {
            const float32x4_t s = vmulq_f32(sw.operand[o], sa);
            vst1q_f32(to[p][o], vfmaq_f32(vld1q_f32(to[p][o]), vcvtq_f32_s32(sums.pair[p][o]), s));
        }
    }
}

// Ranges of 16 or 32 columns.
template <int kBits, int kRange>
void product_short(const Panel & w, const Tile & x, int m, float * out) {
    const Layout & l = *w.layout;
    const int8x16_t table = vld1q_s8(l.format->table);
    Floats floats;
    for (int64_t g = 0; g < l.k / 32; ++g) {
        int8_t decoded[kGroup];
        decode<kBits>(w.codes + g * 64 * kBits, table, decoded);
        for (int part = 0; part < 32; part += kRange) {
            const Scales sw(w, 32 * g + part);
            for_rows<kMostPairs>(pairs_of(m), [&](int pair, auto pairs) {
                Sums<decltype(pairs)::value> sums = {};
                dot<kRange>(decoded + part * kPanelRows, x.q + (g * kTileRows + 2 * pair) * 32 + part, 32, sums);
                add_scaled(sums, sw, x.d + g * kTileRows + 2 * pair, floats.value + pair);
            });
        }
    }
    floats.store(m, out);
}

// int8 with ranges of 128 columns or whole rows. The weights are zipped for up to 128 columns at a time; between
// those the integer sums of a range wait in memory.
void product_long(const Panel & w, const Tile & x, int m, float * out) {
    constexpr int64_t kStretch = 128;  // 2 KiB of weights, 2 KiB of activations, 1 KiB of sums
    const Layout & l = *w.layout;
    const int64_t chunk = activation_chunk(l);
    Floats floats;
    for (int64_t range = 0; range < l.k / l.range; ++range) {
        int32_t waiting[kTileRows / 2][kOperands][4] = {};
        const int64_t end = (range + 1) * l.range;
        for (int64_t first = range * l.range; first < end; first += kStretch) {
            const int64_t last = end - first < kStretch ? end : first + kStretch;
            int8_t zipped[kStretch / 32 * kGroup];
            for (int64_t column = first; column < last; column += 32) {
                decode<8>(w.codes + column * kPanelRows, vdupq_n_s8(0), zipped + (column - first) * kPanelRows);
            }
            for_rows<kMostPairs>(pairs_of(m), [&](int pair, auto pairs) {
                Sums<decltype(pairs)::value> sums;
                sums.load(waiting + pair);
                for (int64_t column = first; column < last; column += 32) {
                    const int8_t * q = tile_columns(x, chunk, 2 * pair, column);
                    dot<32>(zipped + (column - first) * kPanelRows, q, chunk, sums);
                }
                sums.store(waiting + pair);
            });
        }
        const Scales sw(w, range * l.range);
        for (int pair = 0; pair < pairs_of(m); ++pair) {
            Sums<1> sums;
            sums.load(waiting + pair);
            add_scaled(sums, sw, x.d + range * kTileRows + 2 * pair, floats.value + pair);
        }
    }
    floats.store(m, out);
}

void product(const Panel & w, const Tile & x, int m, float * out) {
    // Half of every smmla would be lost on one row, and its weights need no zipping for sdot.
    if (m == 1) return kNeonKernels.product(&w, 1, Tiles{x, 0, 0, 0}, 1, out);
    if (!is_short(w)) return product_long(w, x, m, out);
    for_short(
        w, [&](auto bits, auto range) { product_short<decltype(bits)::value, decltype(range)::value>(w, x, m, out); });
}

}  // namespace

const Kernels kI8mmKernels = {"i8mm", read_blocks<true>, rotate, quantize, for_tiles<product>, product_float,
                              glu,    weighted_sum};

}  // namespace octet
