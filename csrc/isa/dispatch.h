// Which product a panel wants, by its bits and by the columns that share a scale.
#pragma once

#include "octet/matrix.h"
#include "rows.h"

namespace octet {
namespace {

inline bool is_short(const Panel & w) { return w.layout->range <= 32; }

// f(Count<bits>, Count<range>) for a panel whose ranges are of 16 or 32 columns.
template <typename F>
inline void for_short(const Panel & w, F f) {
    const bool half = w.layout->range == 16;
    switch (w.bits) {
        case 8: return half ? f(Count<8>(), Count<16>()) : f(Count<8>(), Count<32>());
        case 4: return f(Count<4>(), Count<32>());
        case 3: return half ? f(Count<3>(), Count<16>()) : f(Count<3>(), Count<32>());
        case 2: return f(Count<2>(), Count<32>());
    }
}

}  // namespace
}  // namespace octet
