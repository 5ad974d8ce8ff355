// Small files: read whole, written whole or not at all.
#pragma once

#include <cstddef>
#include <string>

namespace octet {

// False if it cannot be read, or has more than `largest` bytes; nothing above that is read.
bool read_file(const std::string & path, size_t largest, std::string * text);

// Written beside and renamed, so that processes and threads that write the same file at once do not mix;
// folders are made. False, and nothing else, if that fails.
bool write_file(const std::string & path, const std::string & text);

// FNV-1a, 64 bits, as 16 hexadecimal digits: for cache keys and damaged files, not against forgers.
std::string hash_of(const std::string & text);

}  // namespace octet
