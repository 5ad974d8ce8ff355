// Formats whose blocks hold the code itself: q8_0, iq4_nl, iq4_xs, q4_0, mxfp4, q2_0.
#include <cstring>

#include "unpack.h"

namespace octet {

// 34 bytes: d, 32 int8.
OCTET_UNPACK(unpack_q8_0) {
    (void) mult;
    for (int64_t b = 0; b < k / 32; ++b, blocks += 34) {
        d[b] = load_u16(blocks);
        std::memcpy(codes + 32 * b, blocks + 2, 32);
    }
}

// 32 weights in 16 bytes: low nibbles are 0..15, high nibbles 16..31.
static void unpack_nibbles(const uint8_t * bytes, uint8_t * codes) {
    for (int j = 0; j < 16; ++j) {
        codes[j] = bytes[j] & 15;
        codes[j + 16] = bytes[j] >> 4;
    }
}

// 18 bytes: d, nibbles.
OCTET_UNPACK(unpack_iq4_nl) {
    (void) mult;
    for (int64_t b = 0; b < k / 32; ++b, blocks += 18) {
        d[b] = load_u16(blocks);
        unpack_nibbles(blocks + 2, codes + 32 * b);
    }
}

OCTET_UNPACK(unpack_q4_0) { unpack_iq4_nl(blocks, k, codes, d, mult); }

// 136 bytes for 256 weights: d @0, u16 @2 and [4] @4: the two high and four low bits of eight scales,
// which are 32 too large; nibbles @8.
OCTET_UNPACK(unpack_iq4_xs) {
    for (int64_t b = 0; b < k / 256; ++b, blocks += 136) {
        d[b] = load_u16(blocks);
        const uint32_t high = load_u16(blocks + 2);
        for (int g = 0; g < 8; ++g) {
            uint32_t scale = (blocks[4 + g / 2] >> (4 * (g & 1)) & 15) | (high >> (2 * g) & 3) << 4;
            mult[8 * b + g] = int8_t(int(scale) - 32);
            unpack_nibbles(blocks + 8 + 16 * g, codes + 256 * b + 32 * g);
        }
    }
}

// 17 bytes: an exponent e, nibbles. The scale is 2^(e - 127), half of it since the table holds
// doubled values: 2^(e - 128), as bf16 a power of two, subnormal below 2^-126.
OCTET_UNPACK(unpack_mxfp4) {
    (void) mult;
    for (int64_t b = 0; b < k / 32; ++b, blocks += 17) {
        const int e = blocks[0];
        d[b] = uint16_t(e >= 2 ? (e - 1) << 7 : 0x20 << e);
        unpack_nibbles(blocks + 1, codes + 32 * b);
    }
}

// 18 bytes: d, 16 bytes of four 2-bit codes, lowest bits first.
OCTET_UNPACK(unpack_q2_0) {
    (void) mult;
    for (int64_t b = 0; b < k / 64; ++b, blocks += 18) {
        d[b] = load_u16(blocks);
        for (int j = 0; j < 64; ++j) codes[64 * b + j] = blocks[2 + j / 4] >> (2 * (j % 4)) & 3;
    }
}

}  // namespace octet
