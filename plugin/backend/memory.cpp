#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>

namespace octet {

void release_mapped_pages(const void * data, size_t size) {
    const auto begin = reinterpret_cast<uintptr_t>(data), end = begin + size;
    // MADV_DONTNEED would zero memory that is not a file's, so the mapping is looked up first.
    std::FILE * maps = std::fopen("/proc/self/maps", "r");
    if (!maps) return;
    bool mapped = false;
    char line[512];
    while (std::fgets(line, sizeof line, maps)) {
        uintptr_t from, to;
        unsigned long inode;
        char mode[5];
        if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s %*s %*s %lu", &from, &to, mode, &inode) != 4) continue;
        if (from <= begin && end <= to) {
            mapped = inode != 0 && mode[0] == 'r' && mode[1] == '-';
            break;
        }
    }
    std::fclose(maps);
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
    if (mapped && first < last) madvise(reinterpret_cast<void *>(first), last - first, MADV_DONTNEED);
}

}  // namespace octet
