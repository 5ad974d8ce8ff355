// Formats whose blocks hold the code itself: q8_0, iq4_nl, q2_0.
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

// 18 bytes: d, 16 bytes whose low nibbles are weights 0..15 and high nibbles 16..31.
OCTET_UNPACK(unpack_iq4_nl) {
    (void) mult;
    for (int64_t b = 0; b < k / 32; ++b, blocks += 18) {
        d[b] = load_u16(blocks);
        for (int j = 0; j < 16; ++j) {
            codes[32 * b + j] = blocks[2 + j] & 15;
            codes[32 * b + j + 16] = blocks[2 + j] >> 4;
        }
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
