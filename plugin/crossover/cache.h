// Curves kept between processes. Losing them costs the time to measure again, nothing else: what
// cannot be read counts as not there, and what cannot be written is known in this process only.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "curve.h"

namespace octet {

// OCTET_CACHE_DIR, or `llama-octet` in the user's cache folder.
std::string cache_folder();

// What a curve depends on, by name: the CPU, the instruction set, what is measured, ... Names without
// blanks, values in one line.
using Key = std::vector<std::pair<std::string, std::string>>;

// The value of a name; "" if it is not there.
std::string value_of(const Key & key, const char * name);

// The model, family and stepping of this machine's CPU.
std::string cpu_model();

class CurveCache {
  public:
    struct Entry {
        Key key;
        std::shared_ptr<const Curve> curve;
    };

    // Reads what the folder holds. Every curve is a file of its own, renamed into place, so processes
    // that write at once do not lose each other's.
    explicit CurveCache(std::string folder);

    // nullptr if there is none.
    std::shared_ptr<const Curve> find(const Key & key) const;

    // False if the folder cannot be written. The curve must be one (is_curve).
    bool keep(const Key & key, Curve curve);

    std::vector<Entry> entries() const;

  private:
    const std::string folder_;
    mutable std::mutex mutex_;
    std::vector<Entry> entries_;
};

}  // namespace octet
