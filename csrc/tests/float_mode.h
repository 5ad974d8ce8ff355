// Reading and setting the floating-point mode of this thread.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace octet_test {

#if defined(__SSE__)
// Subnormal results become zero (FTZ), subnormal operands count as zero (DAZ).
constexpr unsigned long kFlushToZero = 0x8040;
inline unsigned long float_mode() { return _mm_getcsr(); }
inline void set_float_mode(unsigned long mode) { _mm_setcsr(unsigned(mode)); }
#elif defined(__aarch64__)
constexpr unsigned long kFlushToZero = 1ul << 24;  // FZ
inline unsigned long float_mode() {
    unsigned long mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
inline void set_float_mode(unsigned long mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
#else
constexpr unsigned long kFlushToZero = 0;
inline unsigned long float_mode() { return 0; }
inline void set_float_mode(unsigned long) {}
#endif

}  // namespace octet_test
