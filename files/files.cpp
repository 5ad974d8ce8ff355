#include "files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace octet {

namespace fs = std::filesystem;

bool read_file(const std::string & path, size_t largest, std::string * text) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return false;
    text->clear();
    char piece[1 << 16];
    while (file.read(piece, sizeof piece), file.gcount() > 0) {
        text->append(piece, size_t(file.gcount()));
        if (text->size() > largest) return false;
    }
    return file.eof();
}

bool write_file(const std::string & path, const std::string & text) {
    std::error_code wrong;
    fs::create_directories(fs::path(path).parent_path(), wrong);
    std::string beside = path + ".XXXXXX";
    const int fd = mkstemp(beside.data());
    if (fd < 0) return false;
    bool ok = fchmod(fd, 0644) == 0;
    for (size_t done = 0; ok && done < text.size();) {
        const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
        ok = n > 0;
        done += ok ? size_t(n) : 0;
    }
    ok &= close(fd) == 0;
    ok = ok && std::rename(beside.c_str(), path.c_str()) == 0;
    if (!ok) unlink(beside.c_str());
    return ok;
}

std::string hash_of(const std::string & text) {
    uint64_t h = 0xcbf29ce484222325u;
    for (unsigned char c : text) h = (h ^ c) * 0x100000001b3u;
    char hex[17];
    std::snprintf(hex, sizeof hex, "%016" PRIx64, h);
    return hex;
}

}  // namespace octet
