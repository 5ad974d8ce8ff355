// Reading a panel, in plain C++: shared by the kernels that have no faster way.
// Included into files with different instruction-set flags, hence the unnamed namespace.
#pragma once

#include <cstring>

#include "octet/matrix.h"

namespace octet {
namespace {

// The 32 columns of group g as int8 [8 quads][16 rows][4 columns].
inline void decode_group(const Panel & w, int64_t g, int8_t out[512]) {
    const int bits = w.bits;
    const uint8_t * codes = w.codes + g * 64 * bits;
    if (bits == 8) {
        std::memcpy(out, codes, 512);
        return;
    }
    for (int quad = 0; quad < 8; ++quad) {
        for (int lane = 0; lane < 64; ++lane) {
            int code = bits == 4 ? codes[64 * (quad % 4) + lane] >> (4 * (quad / 4)) & 15
                                 : codes[64 * (quad / 4) + lane] >> (2 * (quad % 4)) & 3;
            if (bits == 3) code |= (codes[128 + lane] >> quad & 1) << 2;
            out[64 * quad + lane] = w.layout->format->table[code];
        }
    }
}

// fp16 bits to f32: exact, subnormals included.
inline float half_to_float(uint16_t h) {
    uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
    if (exponent == 0) {
        float f = float(fraction) * 0x1p-24f;
        return sign ? -f : f;
    }
    uint32_t bits = sign | fraction << 13 | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23);
    return __builtin_bit_cast(float, bits);
}

// d * mult * unit of weight row `row` in the range that starts at column `column`. Exact: d has 11
// significant bits, mult 6, unit is a power of two.
inline float weight_scale(const Panel & w, int64_t column, int row) {
    const uint16_t d = w.d[column / w.layout->span * kPanelRows + row];
    float scale =
        w.layout->format->d_type == ScaleType::bf16 ? __builtin_bit_cast(float, uint32_t(d) << 16) : half_to_float(d);
    if (w.mult) scale *= float(w.mult[column / w.layout->range * kPanelRows + row]) * w.layout->format->unit;
    return scale;
}

}  // namespace
}  // namespace octet
