// The OCTET_* environment variables.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "octet/kernels.h"

namespace octet {

enum class Switch { automatic, off, on };
enum class LayoutChoice { automatic, packed, native };

struct Settings {
    Switch w8a8 = Switch::automatic;
    Switch moe = Switch::automatic;
    Switch dense = Switch::automatic;
    bool quantize = false;
    bool verbose = false;
    LayoutChoice layout = LayoutChoice::automatic;
    Isa isa = Isa::scalar;
    int64_t min_k = 0;
    int64_t skip_rows = 0;  // 0 = none
    Switch sycl = Switch::automatic;
    bool sycl_hidden = false;  // OCTET_SYCL_FORCE=0
    int sycl_tiles = 0;        // tiles of a thread; 0 = by the rows
    bool sycl_work_groups = true;
    int sycl_registers = 256;  // of a thread
    bool sycl_cpu = false;     // for tests: plain kernels on a central processor
    std::vector<std::string> include, exclude;

    // Each variable as it stands, for status().
    std::vector<std::pair<std::string, std::string>> values;
};

// Reads the environment. Returns "" or one line naming the variable, its value and what is accepted.
std::string read_settings(Settings * settings);

// Whether the user's filters leave a weight of that name and those dimensions to the ordinary path; "" or
// the reason.
std::string filtered(const Settings & settings, const char * name, const int64_t ne[4]);

// Whether a name matches one of the patterns (* and ?).
bool matches_any(const std::vector<std::string> & patterns, const char * name);

}  // namespace octet
