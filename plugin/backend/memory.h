// Giving memory back to the system.
#pragma once

#include <cstddef>

namespace octet {

// If [data, data + size) lies in a read-only mapping of a file, its pages leave this process's
// resident memory; they stay in the page cache and come back if they are read again. Other memory is
// left alone.
void release_mapped_pages(const void * data, size_t size);

}  // namespace octet
