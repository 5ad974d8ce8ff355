// What ran: settings, weights and counts, for status().
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "settings.h"

namespace octet {

struct Stored;

class Status {
  public:
    void add(Stored * weight);
    void remove(Stored * weight);

    // One call of a kernel over `rows` activation rows.
    void count(const std::string & kernel, int64_t rows);

    std::string json();

  private:
    struct Count {
        uint64_t calls = 0, rows = 0;
    };
    std::mutex mutex_;
    std::vector<Stored *> weights_;
    std::map<std::string, Count> kernels_;
};

Status & status();

// The settings of this process, read when the backend registers.
const Settings & settings();
std::string load_settings();

// Threads that packing uses.
int pack_threads();

// A JSON string literal.
std::string quoted(const std::string & text);

}  // namespace octet
