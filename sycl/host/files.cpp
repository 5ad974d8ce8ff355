#include "files.h"

#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace octet::gpu {

namespace fs = std::filesystem;

bool read_file(const std::string & path, std::string * text) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return false;
    std::ostringstream all;
    all << file.rdbuf();
    if (!file) return false;
    *text = all.str();
    return true;
}

bool write_file(const std::string & path, const std::string & text) {
    std::error_code failed;
    fs::create_directories(fs::path(path).parent_path(), failed);
    const std::string beside = path + "." + std::to_string(getpid());
    {
        std::ofstream file(beside, std::ios::binary);
        file.write(text.data(), std::streamsize(text.size()));
        file.close();
        if (!file) {
            fs::remove(beside, failed);
            return false;
        }
    }
    fs::rename(beside, path, failed);
    if (!failed) return true;
    std::error_code ignored;
    fs::remove(beside, ignored);
    return false;
}

std::string hash_of(const std::string & text) {
    uint64_t h = 0xcbf29ce484222325u;
    for (unsigned char c : text) h = (h ^ c) * 0x100000001b3u;
    char hex[17];
    std::snprintf(hex, sizeof hex, "%016" PRIx64, h);
    return hex;
}

}  // namespace octet::gpu
