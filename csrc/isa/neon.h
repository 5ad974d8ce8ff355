// Reading panels with NEON, for the files that build on it.
//
// A register holds the 4 columns of a quad for 4 weight rows, a quarter of a panel.
#pragma once

#include <arm_neon.h>

#include "decode.h"

namespace octet {
namespace {

// Quad `quad` of the group at `codes` for weight rows 4 part .. 4 part + 3: [4 rows][4 columns] int8.
template <int kBits>
inline int8x16_t weights128(const uint8_t * codes, int quad, int part, int8x16_t table) {
    const uint8_t * p = codes + 16 * part;
    if constexpr (kBits == 8) {
        return vreinterpretq_s8_u8(vld1q_u8(p + 64 * quad));
    } else if constexpr (kBits == 4) {
        const uint8x16_t c = vld1q_u8(p + 64 * (quad % 4));
        return vqtbl1q_s8(table, quad < 4 ? vandq_u8(c, vdupq_n_u8(15)) : vshrq_n_u8(c, 4));
    } else {
        const uint8x16_t c = vld1q_u8(p + 64 * (quad / 4));
        uint8x16_t index = vandq_u8(vshlq_u8(c, vdupq_n_s8(int8_t(-2 * (quad % 4)))), vdupq_n_u8(3));
        if constexpr (kBits == 3) {
            const uint8x16_t third = vtstq_u8(vld1q_u8(p + 128), vdupq_n_u8(uint8_t(1 << quad)));
            index = vorrq_u8(index, vandq_u8(third, vdupq_n_u8(4)));
        }
        return vqtbl1q_s8(table, index);
    }
}

// The scales of weight rows 4 part .. 4 part + 3 in the range that `column` lies in.
inline float32x4_t scales128(const Panel & w, int64_t column, int part) {
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

}  // namespace
}  // namespace octet
