// The unpack function of each format (see Format::unpack), and how blocks are read.
#pragma once

#include <cstdint>

namespace octet {

// Blocks lie at any address: no aligned loads.
inline uint16_t load_u16(const uint8_t * p) { return uint16_t(p[0] | p[1] << 8); }
inline uint32_t load_u32(const uint8_t * p) {
    return uint32_t(p[0]) | uint32_t(p[1]) << 8 | uint32_t(p[2]) << 16 | uint32_t(p[3]) << 24;
}

#define OCTET_UNPACK(name) void name(const uint8_t * blocks, int64_t k, uint8_t * codes, uint16_t * d, int8_t * mult)
OCTET_UNPACK(unpack_q8_0);
OCTET_UNPACK(unpack_iq4_nl);
OCTET_UNPACK(unpack_q2_0);
OCTET_UNPACK(unpack_iq3_s);
OCTET_UNPACK(unpack_iq3_xxs);
OCTET_UNPACK(unpack_iq2_s);
OCTET_UNPACK(unpack_iq2_xs);
OCTET_UNPACK(unpack_iq2_xxs);
OCTET_UNPACK(unpack_iq4_xs);
OCTET_UNPACK(unpack_q4_0);
OCTET_UNPACK(unpack_mxfp4);

}  // namespace octet
