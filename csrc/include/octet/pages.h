// Memory for large arrays.
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstddef>
#include <cstdlib>

namespace octet {

// `size` bytes, 64-byte aligned, or nullptr; for std::free. From 4 MiB on in huge pages where the system has them:
// kernels walk through gigabytes of weights and write outputs of one panel far apart, and a 4 KiB page ends every
// hardware prefetch and takes an entry of the TLB.
inline void * allocate(size_t size) {
    constexpr size_t kHugePage = size_t(2) << 20;
    const size_t alignment = size >= 2 * kHugePage ? kHugePage : 64;
    const size_t bytes = (size + alignment) / alignment * alignment;
    void * memory = std::aligned_alloc(alignment, bytes);
#if defined(__linux__)
    if (memory && alignment == kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return memory;
}

}  // namespace octet
