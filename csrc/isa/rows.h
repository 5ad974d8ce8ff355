// Dividing the rows of a tile into parts whose sums fit the registers.
#pragma once

namespace octet {
namespace {

template <int n>
struct Count {
    static constexpr int value = n;
};

template <int kMost, typename F>
inline void with_count(int n, int first, F f) {
    if (n == kMost) return f(first, Count<kMost>());
    if constexpr (kMost > 1) with_count<kMost - 1>(n, first, f);
}

// f(first row, number of rows as a constant) over rows 0 .. m-1: in as few parts of at most kMost rows as hold
// them, all about equally large.
template <int kMost, typename F>
inline void for_rows(int m, F f) {
    int first = 0;
    for (int parts = (m + kMost - 1) / kMost; parts > 0; --parts) {
        const int n = (m - first + parts - 1) / parts;
        with_count<kMost>(n, first, f);
        first += n;
    }
}

}  // namespace
}  // namespace octet
