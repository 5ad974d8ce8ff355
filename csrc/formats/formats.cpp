// The list of formats. A new one is one entry here and, if its blocks are like no other, a class in blocks.h.
#include "octet/formats.h"

#include <cstring>

namespace octet {

namespace {

constexpr auto fp16 = ScaleType::fp16, bf16 = ScaleType::bf16;

// The value of every code, in order. The IQ grids hold magnitudes; the highest bit of a code is the sign.
#define OCTET_IQ4 -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
#define OCTET_IQ2 8, 25, 43, 0, -8, -25, -43, 0

// clang-format off
const Format kFormats[] = {
    // name, weights, bytes, code bits, span, range, mult, type of d, unit, table, blocks
    {"q8_0",     32,  34, 8,  32, 32, false, fp16, 1.0f,   {}, Blocks::q8_0},
    {"q4_0",     32,  18, 4,  32, 32, false, fp16, 1.0f,   {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}, Blocks::nibbles},
    {"mxfp4",    32,  17, 4,  32, 32, false, bf16, 1.0f,   {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}, Blocks::mxfp4},
    {"iq4_nl",   32,  18, 4,  32, 32, false, fp16, 1.0f,   {OCTET_IQ4}, Blocks::nibbles},
    {"iq4_xs",  256, 136, 4, 256, 32, true,  fp16, 1.0f,   {OCTET_IQ4}, Blocks::iq4_xs},
    {"iq3_s",   256, 110, 4, 256, 32, true,  fp16, 1.0f,   {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15}, Blocks::iq3_s},
    {"iq3_xxs", 256,  98, 4, 256, 32, true,  fp16, 0.25f,  {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62}, Blocks::iq3_xxs},
    {"iq2_s",   256,  82, 3, 256, 16, true,  fp16, 0.125f, {OCTET_IQ2}, Blocks::iq2_s},
    {"iq2_xs",  256,  74, 3, 256, 16, true,  fp16, 0.125f, {OCTET_IQ2}, Blocks::iq2_xs},
    {"iq2_xxs", 256,  66, 3, 256, 32, true,  fp16, 0.125f, {OCTET_IQ2}, Blocks::iq2_xxs},
    {"q2_0",     64,  18, 2,  64, 32, false, fp16, 1.0f,   {-1, 0, 1, 2}, Blocks::q2_0},
};
// clang-format on

}  // namespace

const Format * find_format(const char * name) {
    for (const Format & f : kFormats) {
        if (std::strcmp(f.name, name) == 0) return &f;
    }
    return nullptr;
}

}  // namespace octet
