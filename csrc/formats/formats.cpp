// The list of formats. A new one is one entry here and its unpack function in a file of its own.
#include "octet/formats.h"

#include <cstring>

#include "unpack.h"

namespace octet {

// clang-format off
static const Format kFormats[] = {
    // name, weights, bytes, bits, span, range, mult, unit, table, unpack
    {"q8_0", 32, 34, 8, 32, 32, false, 1.0f, {}, unpack_q8_0},
    {"iq4_nl", 32, 18, 4, 32, 32, false, 1.0f,
     {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}, unpack_iq4_nl},
    {"q2_0", 64, 18, 2, 64, 32, false, 1.0f, {-1, 0, 1, 2}, unpack_q2_0},
    // The IQ grids hold magnitudes; bit 3 of our code (bit 2 for iq2_s) is the sign.
    {"iq3_s", 256, 110, 4, 256, 32, true, 1.0f,
     {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15}, unpack_iq3_s},
    {"iq3_xxs", 256, 98, 4, 256, 32, true, 0.25f,
     {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62}, unpack_iq3_xxs},
    {"iq2_s", 256, 82, 3, 256, 16, true, 0.125f, {8, 25, 43, 0, -8, -25, -43, 0}, unpack_iq2_s},
};
// clang-format on

const Format * find_format(const char * name) {
    for (const Format & f : kFormats) {
        if (std::strcmp(f.name, name) == 0) return &f;
    }
    return nullptr;
}

}  // namespace octet
