// What ran: settings, weights and counts, for status().
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "settings.h"

namespace octet {

struct Model;
struct Stored;

// Calls of one kernel, and the activation rows they had. Never moves or goes away.
struct Count {
    std::atomic<uint64_t> calls{0}, rows{0};
    const Count * down = nullptr;  // of a chain: the counter of its other end's products

    void add(int64_t n) {
        calls.fetch_add(1, std::memory_order_relaxed);
        rows.fetch_add(uint64_t(n), std::memory_order_relaxed);
    }
};

class Status {
  public:
    void add(Stored * weight);
    void remove(Stored * weight);

    // What status() lists under this name; to be asked for once and kept.
    Count & counter(const std::string & kernel);
    Count & chain_counter(const Stored & gate, const Stored & down);

    std::string json();

    // Whether weights of a model are there.
    bool holds(const Model & model);

    // [{"name", "fault"}, ...] of a model's weights that must not be used.
    std::string faults(const Model & model);

  private:
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
