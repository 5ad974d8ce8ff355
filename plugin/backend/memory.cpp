#include "memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>

namespace octet {

namespace {

// The number behind `key` at the beginning of a line of a file; false if there is none ("max", say).
bool read_number(const std::string & path, const std::string & key, uint64_t * value) {
    std::ifstream lines(path);
    for (std::string line; std::getline(lines, line);) {
        if (line.compare(0, key.size(), key) == 0)
            return std::sscanf(line.c_str() + key.size(), "%" SCNu64, value) == 1;
    }
    return false;
}

// The files of a control group that limit memory, in the two versions of the interface.
struct GroupFiles {
    std::string root;
    const char *limit, *usage, *active, *inactive;
};

// What a group and its parents leave to its processes.
uint64_t left_in_group(const GroupFiles & files, std::string path) {
    uint64_t least = UINT64_MAX;
    for (;;) {
        const std::string folder = files.root + path + "/";
        uint64_t limit, usage, active = 0, inactive = 0;
        if (read_number(folder + files.limit, "", &limit) && read_number(folder + files.usage, "", &usage)) {
            read_number(folder + "memory.stat", files.active, &active);
            read_number(folder + "memory.stat", files.inactive, &inactive);
            usage -= std::min(usage, active + inactive);
            least = std::min(least, limit - std::min(limit, usage));
        }
        if (path.empty()) return least;
        path.erase(path.rfind('/'));
    }
}

uint64_t left_in_groups() {
    const GroupFiles v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                           "total_active_file ", "total_inactive_file "};
    const GroupFiles v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "active_file ", "inactive_file "};
    uint64_t least = UINT64_MAX;
    // Number, controllers separated by commas (none in version 2), path. In a container the path may be that
    // outside of it, which is not there inside; the group itself is the root then.
    std::ifstream lines("/proc/self/cgroup");
    for (std::string line; std::getline(lines, line);) {
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos || line.compare(second + 1, 1, "/") != 0) continue;
        const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
        if (controllers == ",,") least = std::min(least, left_in_group(v2, line.substr(second + 1)));
        if (controllers.find(",memory,") != std::string::npos)
            least = std::min(least, left_in_group(v1, line.substr(second + 1)));
    }
    return least;
}

}  // namespace

uint64_t available_memory() {
    uint64_t kib, least = left_in_groups();
    if (read_number("/proc/meminfo", "MemAvailable:", &kib)) least = std::min(least, kib << 10);
    for (const auto & [resource, used] : {std::pair(RLIMIT_DATA, "VmData:"), std::pair(RLIMIT_AS, "VmSize:")}) {
        rlimit limit;
        if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
            read_number("/proc/self/status", used, &kib))
            least = std::min<uint64_t>(least, limit.rlim_cur - std::min<uint64_t>(limit.rlim_cur, kib << 10));
    }
    return least;
}

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
