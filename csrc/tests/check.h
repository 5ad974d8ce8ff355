// Counting what holds and what does not, and comparing floats bit by bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace octet_test {

struct Totals {
    long passed = 0, failed = 0;
};
Totals & totals();

// Of a failure the first lines are printed, the rest only counted.
constexpr long kPrinted = 20;

// CHECK(condition, printf-like text that says what was being tested)
#define CHECK(condition, ...)                                               \
    do {                                                                    \
        if (condition) {                                                    \
            ++octet_test::totals().passed;                                  \
        } else if (++octet_test::totals().failed <= octet_test::kPrinted) { \
            std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);     \
            std::printf(__VA_ARGS__);                                       \
            std::printf("\n");                                              \
        }                                                                   \
    } while (0)

// The same bits; two NaNs are the same whatever their payload, which no rule of IEEE 754 fixes.
inline bool same(float a, float b) {
    uint32_t x, y;
    std::memcpy(&x, &a, 4);
    std::memcpy(&y, &b, 4);
    return x == y || (std::isnan(a) && std::isnan(b));
}

// Index of the first difference, or -1.
inline int64_t first_difference(const float * a, const float * b, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        if (!same(a[i], b[i])) return i;
    }
    return -1;
}

}  // namespace octet_test
