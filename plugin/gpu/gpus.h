// The graphics processors of this process.
//
// Each is a llama.cpp device of its own (devices.cpp) with its own memory, programs, scratch and placement of
// weights, and each can fall out on its own: then the CPU engine computes what it held.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "../abi/ggml.h"
#include "../backend/settings.h"
#include "placement.h"
#include "sycl/host/runner.h"

namespace octet {

struct Graphics {
    std::string name;  // "OCTET-SYCL0"
    std::unique_ptr<gpu::Gpu> gpu;
    std::unique_ptr<gpu::Runner> runner;  // with gpu->mutex()
    std::atomic<bool> off{false};
    std::atomic<size_t> weight_bytes{0};
    Placement placement;
    // Kernels of one kind that cannot be had here; under gpu->mutex().
    bool no_int8 = false, no_half = false;
    std::set<std::string> not_measured;  // layers whose measurement failed (choose.cpp)

    // As ggml sees it: see devices.cpp and weights.cpp.
    ggml::Device registered, scheduled;
    ggml::BufferType weights, activations;
};

// Where things are, told before the backend registers: the compiled driver, this project's sycl/ folder and
// the folder for compiled programs. `why_not` (with no driver) is printed if the settings ask for a GPU.
void use_gpus(const std::string & driver, const std::string & sources, const std::string & cache,
              const std::string & why_not);

// Finds and opens them, as the settings say; prints one line per device. Called once.
void open_gpus(const Settings & settings);

// Those that were found; the list does not change afterwards.
const std::vector<std::unique_ptr<Graphics>> & gpus();

// One line for the user. While a model loads on this thread it waits, since programs silence that.
void say(const std::string & line);
void hold_lines();
void release_lines();

// From now on the CPU takes its work. Says so once.
void switch_off(Graphics & g, const std::string & why);

// For status(): a JSON list.
std::string gpus_json();

}  // namespace octet
