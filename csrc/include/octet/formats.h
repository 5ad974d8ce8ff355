// Weight formats: what a file's blocks hold and how a weight is rebuilt from them.
//
// Every format here is at most 16 signed int8 values per group times a scale, so one description
// serves all of them: a weight is table[code] * scale, or the int8 code itself * scale.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octet {

enum class ScaleType : uint8_t { fp16, bf16 };

// How blocks lie in the file: which class of blocks.h reads them.
enum class Blocks : uint8_t { q8_0, nibbles, mxfp4, iq4_xs, iq3_s, iq3_xxs, iq2_s, iq2_xs, iq2_xxs, q2_0 };

// One format. A weight is
//     value(code) * d * mult * unit
// where value(code) is table[code], or the code as int8 when code_bits is 8; d is the 16-bit float of
// its span; mult is the small integer of its range (1 if the format has none).
struct Format {
    const char * name;  // GGUF's own name of the type: "q8_0", "iq3_s", ...
    int block_weights;  // weights in a block of the file
    int block_bytes;    // bytes of that block
    int code_bits;      // 8, 4, 3 or 2
    int span;           // weights that share a d
    int range;          // weights that share d * mult: one integer dot product, 16 or 32
    bool has_mult;
    ScaleType d_type;
    float unit;        // a power of two, so that the product d * mult * unit is exact in f32
    int8_t table[16];  // unused when code_bits is 8
    Blocks blocks;
};

// nullptr if the name is of no format known here.
const Format * find_format(const char * name);

}  // namespace octet
