// Small files: read whole, written whole or not at all.
#pragma once

#include <string>

namespace octet::gpu {

// False if it cannot be read.
bool read_file(const std::string & path, std::string * text);

// Written beside and renamed; folders are made. False, and nothing else, if that fails.
bool write_file(const std::string & path, const std::string & text);

// FNV-1a, 64 bits, in hex: for cache keys, not against forgers.
std::string hash_of(const std::string & text);

}  // namespace octet::gpu
