// The system's memory: what there is of it, and giving it back.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octet {

// Bytes that this process can still take without swapping or being killed: what Linux calls available, or
// less if a control group (version 1 or 2, any of its parents) or the limit on a process's data (ulimit -d)
// allows less. Cached file pages count as available. UINT64_MAX if nothing says.
uint64_t available_memory();

// If [data, data + size) lies in a read-only mapping of a file, its pages leave this process's
// resident memory; they stay in the page cache and come back if they are read again. Other memory is
// left alone.
void release_mapped_pages(const void * data, size_t size);

}  // namespace octet
