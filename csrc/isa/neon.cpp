// NEON with the dot product extension (Armv8.2-A).
//
// Tile: 16 weight rows in four registers x up to 4 activation rows. sdot takes the 4 activations of
// a quad from one lane of a register, so 16 columns of a row are one load. A group of 32 columns
// is decoded once into the first-level cache and used for every row; 16 sums, 4 weights and 4 activations
// fit the 32 registers.
//
// Bound: per row, panel and group 32 sdot and 4 times a convert, a multiply and an fma: 44 operations for 512
// products; of 4 rows each weight loaded serves 4 sdot.
#include "neon.h"
#include "../formats/blocks.h"
#include "dispatch.h"
#include "elementwise.h"
#include "tables.h"

namespace octet {
namespace {

constexpr int kMostRows = 4;  // of one pass over a group's weights

template <int kBits>
inline void decode(const uint8_t * codes, int8x16_t table, int8_t * out) {
#pragma GCC unroll 8
    for (int quad = 0; quad < 8; ++quad) {
#pragma GCC unroll 4
        for (int part = 0; part < 4; ++part) {
            vst1q_s8(out + 64 * quad + 16 * part, weights128<kBits>(codes, quad, part, table));
        }
    }
}

// Sums of kRows rows with the panel, 4 weight rows to a register.
template <int kRows>
struct Sums {
    int32x4_t row[kRows][4];
};

// Adds kColumns columns (16 or 32) of rows that are `stride` apart.
template <int kColumns, int kRows>
inline void dot(const int8_t * weights, const int8_t * q, int64_t stride, Sums<kRows> & sums) {
#pragma GCC unroll 2
    for (int column = 0; column < kColumns; column += 16) {
        const int8_t * w = weights + column * kPanelRows;
        int8x16_t a[kRows];
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) a[r] = vld1q_s8(q + r * stride + column);
#pragma GCC unroll 4
        for (int part = 0; part < 4; ++part) {
            const int8x16_t w0 = vld1q_s8(w + 16 * part), w1 = vld1q_s8(w + 64 + 16 * part);
            const int8x16_t w2 = vld1q_s8(w + 128 + 16 * part), w3 = vld1q_s8(w + 192 + 16 * part);
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) {
                int32x4_t s = sums.row[r][part];
                s = vdotq_laneq_s32(s, w0, a[r], 0);
                s = vdotq_laneq_s32(s, w1, a[r], 1);
                s = vdotq_laneq_s32(s, w2, a[r], 2);
                sums.row[r][part] = vdotq_laneq_s32(s, w3, a[r], 3);
            }
        }
    }
}

struct Scales {
    float32x4_t part[4];

    Scales(const Panel & w, int64_t column) {
        for (int p = 0; p < 4; ++p) part[p] = scales128(w, column, p);
    }
};

template <int kRows>
inline void add_scaled(const Sums<kRows> & sums, const Scales & sw, const float * d, float * out) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int part = 0; part < 4; ++part) {
            float * to = out + r * kPanelRows + 4 * part;
            const float32x4_t s = vmulq_n_f32(sw.part[part], d[r]);
            vst1q_f32(to, vfmaq_f32(vld1q_f32(to), vcvtq_f32_s32(sums.row[r][part]), s));
        }
    }
}

// Ranges of 16 or 32 columns.
template <int kBits, int kRange>
void product_short(const Panel & w, const Tile & x, int m, float * out) {
    const Layout & l = *w.layout;
    const int8x16_t table = vld1q_s8(l.format->table);
    for (int64_t g = 0; g < l.k / 32; ++g) {
        const uint8_t * codes = w.codes + g * 64 * kBits;
        int8_t decoded[kBits == 8 ? 1 : 512];
        if constexpr (kBits != 8) decode<kBits>(codes, table, decoded);
        const int8_t * weights = kBits == 8 ? reinterpret_cast<const int8_t *>(codes) : decoded;
        for (int part = 0; part < 32; part += kRange) {
            const Scales sw(w, 32 * g + part);
            for_rows<kMostRows>(m, [&](int r, auto rows) {
                Sums<decltype(rows)::value> sums = {};
                dot<kRange>(weights + part * kPanelRows, x.q + (g * kTileRows + r) * 32 + part, 32, sums);
                add_scaled(sums, sw, x.d + g * kTileRows + r, out + r * kPanelRows);
            });
        }
    }
}

// int8 with ranges of 128 columns or whole rows: the integer sums stay in registers across a range.
void product_long(const Panel & w, const Tile & x, int m, float * out) {
    const Layout & l = *w.layout;
    const int64_t chunk = activation_chunk(l);
    const auto * weights = reinterpret_cast<const int8_t *>(w.codes);
    for (int64_t range = 0; range < l.k / l.range; ++range) {
        const Scales sw(w, range * l.range);
        for_rows<kMostRows>(m, [&](int r, auto rows) {
            Sums<decltype(rows)::value> sums = {};
            for (int64_t column = range * l.range; column < (range + 1) * l.range; column += 32)
                dot<32>(weights + column * kPanelRows, tile_columns(x, chunk, r, column), chunk, sums);
            add_scaled(sums, sw, x.d + range * kTileRows + r, out + r * kPanelRows);
        });
    }
}

void product(const Panel & w, const Tile & x, int m, float * out) {
    std::memset(out, 0, size_t(m) * kPanelRows * sizeof(float));
    if (!is_short(w)) return product_long(w, x, m, out);
    for_short(
        w, [&](auto bits, auto range) { product_short<decltype(bits)::value, decltype(range)::value>(w, x, m, out); });
}

}  // namespace

const Kernels kNeonKernels = {"neon", read_blocks<true>, rotate, quantize, for_tiles<product>, product_float,
                              glu,    weighted_sum};

}  // namespace octet
