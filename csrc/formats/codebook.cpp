// Formats whose blocks index a grid of magnitudes: iq3_s, iq3_xxs, iq2_s, iq2_xs, iq2_xxs.
//
// The grids come from gguf-py at build time (grids.py) as indices of magnitudes, one per byte: an entry
// is the codes of 4 (iq3) or 8 (iq2) weights, to which the signs are added as another bit of each byte.
#include <array>
#include <cstring>

#include "grids.inc"
#include "unpack.h"

namespace octet {

namespace {

// Bit j of the index becomes `bit` in byte j.
template <typename Word, int kBytes>
constexpr std::array<Word, 1 << kBytes> spread(Word bit) {
    std::array<Word, 1 << kBytes> table{};
    for (int i = 0; i < 1 << kBytes; ++i) {
        for (int j = 0; j < kBytes; ++j) table[size_t(i)] |= Word(i >> j & 1) * bit << (8 * j);
    }
    return table;
}
constexpr auto kSigns4 = spread<uint32_t, 4>(8);  // iq3: bit 3 of the code
constexpr auto kSigns8 = spread<uint64_t, 8>(4);  // iq2: bit 2

void put_four(uint32_t grid, uint32_t signs, uint8_t * codes) {
    const uint32_t word = grid | kSigns4[signs & 15];
    std::memcpy(codes, &word, sizeof word);
}
void put_eight(uint64_t grid, uint32_t signs, uint8_t * codes) {
    const uint64_t word = grid | kSigns8[signs];
    std::memcpy(codes, &word, sizeof word);
}

// Eight signs are kept in seven bits: the eighth makes the number of minus signs even.
uint32_t signs_of_7_bits(uint32_t bits) { return bits | uint32_t(__builtin_parity(bits)) << 7; }

int8_t scale_of(uint32_t four_bits) { return int8_t(1 + 2 * four_bits); }

}  // namespace

// 110 bytes for 256 weights: d @0, qs[64] @2, qh[8] @66, signs[32] @74, scales[4] @106.
OCTET_UNPACK(unpack_iq3_s) {
    for (int64_t b = 0; b < k / 256; ++b, blocks += 110, codes += 256, mult += 8) {
        const uint8_t *qs = blocks + 2, *qh = blocks + 66, *signs = blocks + 74, *scales = blocks + 106;
        d[b] = load_u16(blocks);
        for (int g = 0; g < 8; ++g) {
            mult[g] = scale_of(scales[g / 2] >> (4 * (g & 1)) & 15);
            for (int i = 0; i < 8; ++i) {
                const uint32_t grid = kGridIq3S[qs[8 * g + i] | (qh[g] >> i & 1) << 8];
                put_four(grid, signs[4 * g + i / 2] >> (4 * (i % 2)), codes + 32 * g + 4 * i);
            }
        }
    }
}

// 98 bytes for 256 weights: d @0, qs[64] @2, u32[8] @66: four 7-bit signs and the scale on top.
OCTET_UNPACK(unpack_iq3_xxs) {
    for (int64_t b = 0; b < k / 256; ++b, blocks += 98, codes += 256, mult += 8) {
        const uint8_t * qs = blocks + 2;
        d[b] = load_u16(blocks);
        for (int g = 0; g < 8; ++g) {
            const uint32_t aux = load_u32(blocks + 66 + 4 * g);
            mult[g] = scale_of(aux >> 28);
            for (int l = 0; l < 4; ++l) {
                const uint32_t signs = signs_of_7_bits(aux >> (7 * l) & 127);
                uint8_t * to = codes + 32 * g + 8 * l;
                put_four(kGridIq3Xxs[qs[8 * g + 2 * l]], signs, to);
                put_four(kGridIq3Xxs[qs[8 * g + 2 * l + 1]], signs >> 4, to + 4);
            }
        }
    }
}

// 82 bytes for 256 weights: d @0, qs[32] @2, signs[32] @34, qh[8] @66, scales[8] @74; a scale per 16.
OCTET_UNPACK(unpack_iq2_s) {
    for (int64_t b = 0; b < k / 256; ++b, blocks += 82, codes += 256, mult += 16) {
        const uint8_t *qs = blocks + 2, *signs = blocks + 34, *qh = blocks + 66, *scales = blocks + 74;
        d[b] = load_u16(blocks);
        for (int g = 0; g < 8; ++g) {
            mult[2 * g] = scale_of(scales[g] & 15);
            mult[2 * g + 1] = scale_of(scales[g] >> 4);
            for (int l = 0; l < 4; ++l) {
                const uint64_t grid = kGridIq2S[qs[4 * g + l] | (qh[g] >> (2 * l) & 3) << 8];
                put_eight(grid, signs[4 * g + l], codes + 32 * g + 8 * l);
            }
        }
    }
}

// 74 bytes for 256 weights: d @0, u16[32] @2: nine bits of index, seven of sign; scales[8] @66, a scale
// per 16.
OCTET_UNPACK(unpack_iq2_xs) {
    for (int64_t b = 0; b < k / 256; ++b, blocks += 74, codes += 256, mult += 16) {
        d[b] = load_u16(blocks);
        for (int i = 0; i < 16; ++i) mult[i] = scale_of(blocks[66 + i / 2] >> (4 * (i & 1)) & 15);
        for (int i = 0; i < 32; ++i) {
            const uint32_t entry = load_u16(blocks + 2 + 2 * i);
            put_eight(kGridIq2Xs[entry & 511], signs_of_7_bits(entry >> 9), codes + 8 * i);
        }
    }
}

// 66 bytes for 256 weights: d @0; per 32 weights four index bytes, then u32: four 7-bit signs and the
// scale on top.
OCTET_UNPACK(unpack_iq2_xxs) {
    for (int64_t b = 0; b < k / 256; ++b, blocks += 66, codes += 256, mult += 8) {
        d[b] = load_u16(blocks);
        for (int g = 0; g < 8; ++g) {
            const uint8_t * index = blocks + 2 + 8 * g;
            const uint32_t aux = load_u32(index + 4);
            mult[g] = scale_of(aux >> 28);
            for (int l = 0; l < 4; ++l) {
                put_eight(kGridIq2Xxs[index[l]], signs_of_7_bits(aux >> (7 * l) & 127), codes + 32 * g + 8 * l);
            }
        }
    }
}

}  // namespace octet
