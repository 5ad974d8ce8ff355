// NEON with the dot product extension (Armv8.2-A).
//
// Tile: 16 weight rows in four registers x up to 4 activation rows. sdot takes the 4 activations of
// a quad from one lane of a register, so 16 columns of a row are one load. A group of 32 columns
// is decoded once into the first-level cache; 16 accumulators, 4 weights and 4 activations fit the
// 32 registers.
#include <arm_neon.h>

#include "elementwise.h"
#include "tables.h"

namespace octet {
namespace {

inline void decode(const Panel & w, int64_t g, int8_t * out) {
    const int bits = w.layout->format->code_bits;
    const uint8_t * codes = w.codes + g * 64 * bits;
    const int8x16_t table = vld1q_s8(w.layout->format->table);
    for (int quad = 0; quad < 8; ++quad) {
        for (int part = 0; part < 64; part += 16) {
            uint8x16_t index;
            if (bits == 4) {
                uint8x16_t c = vld1q_u8(codes + 64 * (quad % 4) + part);
                index = quad < 4 ? vandq_u8(c, vdupq_n_u8(15)) : vshrq_n_u8(c, 4);
            } else {
                uint8x16_t c = vld1q_u8(codes + 64 * (quad / 4) + part);
                index = vandq_u8(vshlq_u8(c, vdupq_n_s8(int8_t(-2 * (quad % 4)))), vdupq_n_u8(3));
                if (bits == 3) {
                    uint8x16_t third = vtstq_u8(vld1q_u8(codes + 128 + part), vdupq_n_u8(uint8_t(1 << quad)));
                    index = vorrq_u8(index, vandq_u8(third, vdupq_n_u8(4)));
                }
            }
            vst1q_s8(out + 64 * quad + part, vqtbl1q_s8(table, index));
        }
    }
}

inline float32x4_t scales(const Panel & w, int64_t column, int part) {
    const uint16x4_t bits = vld1_u16(w.d + column / w.layout->span * kPanelRows + 4 * part);
    float32x4_t s = w.layout->format->d_type == ScaleType::bf16 ? vreinterpretq_f32_u32(vshll_n_u16(bits, 16))
                                                                : vcvt_f32_f16(vreinterpret_f16_u16(bits));
    if (w.mult) {
        const int8_t * m = w.mult + column / w.layout->range * kPanelRows + 4 * part;
        const int32_t mult[4] = {m[0], m[1], m[2], m[3]};
        s = vmulq_f32(s, vmulq_n_f32(vcvtq_f32_s32(vld1q_s32(mult)), w.layout->format->unit));
    }
    return s;
}

// dot[r][part] += 16 columns (4 quads) of kRows rows, `stride` apart, with 16 weight rows.
template <int kRows>
inline void dot16(const int8_t * w, const int8_t * x, int64_t stride, int32x4_t dot[kRows][4]) {
    int8x16_t q[kRows];
    for (int r = 0; r < kRows; ++r) q[r] = vld1q_s8(x + r * stride);
    for (int part = 0; part < 4; ++part) {
        int8x16_t w0 = vld1q_s8(w + 16 * part), w1 = vld1q_s8(w + 64 + 16 * part);
        int8x16_t w2 = vld1q_s8(w + 128 + 16 * part), w3 = vld1q_s8(w + 192 + 16 * part);
        for (int r = 0; r < kRows; ++r) {
            int32x4_t d = dot[r][part];
            d = vdotq_laneq_s32(d, w0, q[r], 0);
            d = vdotq_laneq_s32(d, w1, q[r], 1);
            d = vdotq_laneq_s32(d, w2, q[r], 2);
            dot[r][part] = vdotq_laneq_s32(d, w3, q[r], 3);
        }
    }
}

template <int kRows>
void product_rows(const Panel & w, const Tile & x, int first, float * out) {
    std::memset(out + first * kPanelRows, 0, kRows * kPanelRows * sizeof(float));
    const Layout & l = *w.layout;
    const int64_t group = activation_group(l), chunk = activation_chunk(l);
    int32x4_t dot[kRows][4] = {};
    int8_t decoded[512];
    for (int64_t column = 0; column < l.k; column += 16) {
        const int8_t * weight = decoded;
        if (l.format->code_bits == 8) {
            weight = reinterpret_cast<const int8_t *>(w.codes) + column * kPanelRows;
        } else if (column % 32 == 0) {
            decode(w, column / 32, decoded);
        } else {
            weight = decoded + 256;
        }
        dot16<kRows>(weight, tile_columns(x, chunk, first, column), chunk, dot);
        if ((column + 16) % l.range != 0) continue;
        for (int part = 0; part < 4; ++part) {
            const float32x4_t sw = scales(w, column, part);
            for (int r = 0; r < kRows; ++r) {
                float * to = out + (first + r) * kPanelRows + 4 * part;
                float32x4_t s = vmulq_n_f32(sw, x.d[column / group * kTileRows + first + r]);
                vst1q_f32(to, vfmaq_f32(vld1q_f32(to), vcvtq_f32_s32(dot[r][part]), s));
                dot[r][part] = vdupq_n_s32(0);
            }
        }
    }
}

void product(const Panel & w, const Tile & x, int m, float * out) {
    int first = 0;
    for (; first + 4 <= m; first += 4) product_rows<4>(w, x, first, out);
    if (m - first >= 2) {
        product_rows<2>(w, x, first, out);
        first += 2;
    }
    if (m - first == 1) product_rows<1>(w, x, first, out);
}

}  // namespace

const Kernels kNeonKernels = {"neon", rotate, quantize, for_tiles<product>, product_float, glu, weighted_sum};

}  // namespace octet
