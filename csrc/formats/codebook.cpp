// Formats whose blocks index a grid of magnitudes: iq3_s, iq3_xxs, iq2_s, iq2_xs, iq2_xxs.
//
// The grids come from gguf-py at build time (grids.py) as indices of magnitudes, not magnitudes:
// kGridIq3S[512] and kGridIq3Xxs[256] hold four 4-bit indices, kGridIq2S[1024], kGridIq2Xs[512] and
// kGridIq2Xxs[256] eight 2-bit ones.
#include "grids.inc"
#include "unpack.h"

namespace octet {

// Eight signs are kept in seven bits: the eighth makes the number of minus signs even.
static uint32_t signs_of_7_bits(uint32_t bits) { return bits | uint32_t(__builtin_parity(bits)) << 7; }

// Eight weights of the iq2 family: 2-bit magnitude indices and a byte of signs.
static void put_eight(uint32_t grid, uint32_t signs, uint8_t * codes) {
    for (int j = 0; j < 8; ++j) codes[j] = uint8_t((grid >> (2 * j) & 3) | (signs >> j & 1) << 2);
}

// 110 bytes for 256 weights: d @0, qs[64] @2, qh[8] @66, signs[32] @74, scales[4] @106.
OCTET_UNPACK(unpack_iq3_s) {
    for (int64_t b = 0; b < k / 256; ++b, blocks += 110) {
        const uint8_t *qs = blocks + 2, *qh = blocks + 66, *signs = blocks + 74, *scales = blocks + 106;
        d[b] = load_u16(blocks);
        for (int g = 0; g < 8; ++g) {
            mult[8 * b + g] = int8_t(1 + 2 * (scales[g / 2] >> (4 * (g & 1)) & 15));
            for (int i = 0; i < 8; ++i) {
                uint32_t grid = kGridIq3S[qs[8 * g + i] | (qh[g] >> i & 1) << 8];
                for (int j = 0; j < 4; ++j) {
                    int w = 4 * i + j;
                    uint32_t minus = signs[4 * g + w / 8] >> (w % 8) & 1;
                    codes[256 * b + 32 * g + w] = uint8_t((grid >> (4 * j) & 7) | minus << 3);
                }
            }
        }
    }
}

// 98 bytes for 256 weights: d @0, qs[64] @2, u32[8] @66: four 7-bit signs and the scale on top.
OCTET_UNPACK(unpack_iq3_xxs) {
    for (int64_t b = 0; b < k / 256; ++b, blocks += 98) {
        const uint8_t * qs = blocks + 2;
        d[b] = load_u16(blocks);
        for (int g = 0; g < 8; ++g) {
            uint32_t aux = load_u32(blocks + 66 + 4 * g);
            mult[8 * b + g] = int8_t(1 + 2 * (aux >> 28));
            for (int i = 0; i < 8; ++i) {
                uint32_t grid = kGridIq3Xxs[qs[8 * g + i]];
                uint32_t signs = signs_of_7_bits(aux >> (7 * (i / 2)) & 127);
                for (int j = 0; j < 4; ++j) {
                    uint32_t minus = signs >> (4 * (i % 2) + j) & 1;
                    codes[256 * b + 32 * g + 4 * i + j] = uint8_t((grid >> (4 * j) & 7) | minus << 3);
                }
            }
        }
    }
}

// 82 bytes for 256 weights: d @0, qs[32] @2, signs[32] @34, qh[8] @66, scales[8] @74; a scale per 16.
OCTET_UNPACK(unpack_iq2_s) {
    for (int64_t b = 0; b < k / 256; ++b, blocks += 82) {
        const uint8_t *qs = blocks + 2, *signs = blocks + 34, *qh = blocks + 66, *scales = blocks + 74;
        d[b] = load_u16(blocks);
        for (int g = 0; g < 8; ++g) {
            mult[16 * b + 2 * g] = int8_t(1 + 2 * (scales[g] & 15));
            mult[16 * b + 2 * g + 1] = int8_t(1 + 2 * (scales[g] >> 4));
            for (int l = 0; l < 4; ++l) {
                uint32_t grid = kGridIq2S[qs[4 * g + l] | (qh[g] >> (2 * l) & 3) << 8];
                put_eight(grid, signs[4 * g + l], codes + 256 * b + 32 * g + 8 * l);
            }
        }
    }
}

// 74 bytes for 256 weights: d @0, u16[32] @2: nine bits of index, seven of sign; scales[8] @66, a scale
// per 16.
OCTET_UNPACK(unpack_iq2_xs) {
    for (int64_t b = 0; b < k / 256; ++b, blocks += 74) {
        d[b] = load_u16(blocks);
        for (int i = 0; i < 16; ++i) mult[16 * b + i] = int8_t(1 + 2 * (blocks[66 + i / 2] >> (4 * (i & 1)) & 15));
        for (int i = 0; i < 32; ++i) {
            uint32_t entry = load_u16(blocks + 2 + 2 * i), grid = kGridIq2Xs[entry & 511];
            put_eight(grid, signs_of_7_bits(entry >> 9), codes + 256 * b + 8 * i);
        }
    }
}

// 66 bytes for 256 weights: d @0; per 32 weights four index bytes, then u32: four 7-bit signs and the
// scale on top.
OCTET_UNPACK(unpack_iq2_xxs) {
    for (int64_t b = 0; b < k / 256; ++b, blocks += 66) {
        d[b] = load_u16(blocks);
        for (int g = 0; g < 8; ++g) {
            const uint8_t * index = blocks + 2 + 8 * g;
            uint32_t aux = load_u32(index + 4);
            mult[8 * b + g] = int8_t(1 + 2 * (aux >> 28));
            for (int l = 0; l < 4; ++l) {
                put_eight(kGridIq2Xxs[index[l]], signs_of_7_bits(aux >> (7 * l) & 127),
                          codes + 256 * b + 32 * g + 8 * l);
            }
        }
    }
}

}  // namespace octet
