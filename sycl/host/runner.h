// Expert layers on a graphics processor: the launches of launch.h, planned from the groups that the CPU
// engine works by as well (octet/groups.h).
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>

#include "../kernels/launch.h"
#include "octet/products.h"
#include "weight.h"

namespace octet::gpu {

// q8_1 activations times the weights' integers, or fp16 times fp16.
enum class Arithmetic { int8, half };

// Which of them a group of experts takes, by its mean rows per expert.
using ChooseArithmetic = std::function<Arithmetic(double rows_per_expert)>;

struct Choices {
    int tiles = 0;            // of a thread (MT): 2, 4, 8; 0 = by the rows
    bool work_groups = true;  // threads that share tiles (WG)
};

// Rows of activations, each once per expert it went to, that took either way.
struct Ran {
    bool ok;  // false: an id is not an expert, and nothing ran
    int64_t int8_rows, half_rows;
};

// Runs products, and owns the memory they need in between. One user at a time (Gpu::mutex()).
class Runner {
  public:
    Runner(Gpu & gpu, const Choices & choices) : gpu_(gpu), choices_(choices) {}

    // octet::run_chain on the device, with these weights in place of the chain's own. A weight of a format that has
    // no int8 products makes it fp16, whatever `choose` says. Throws Error; then `out` may hold anything.
    Ran run_chain(const Chain & chain, const DeviceWeight & gate, const DeviceWeight & up, const DeviceWeight & down,
                  const ChooseArithmetic & choose);

    // octet::multiply_by_expert on the device; rows of `out` follow each other without gaps.
    Ran multiply(const DeviceWeight & w, const RowsIn & x, int64_t x_rows_per_token, const Routing & routing,
                 float * out, const ChooseArithmetic & choose);

    Gpu & gpu() { return gpu_; }
    const Choices & choices() const { return choices_; }

  private:
    struct Plan;

    const float * device_rows(const RowsIn & x, int64_t rows, int64_t k, int64_t * stride);
    void reserve_tiles(const Plan & plan, std::initializer_list<const DeviceWeight *> readers);
    void prepare(const Plan & plan, size_t group, const float * x, const int32_t * source, int64_t stride,
                 const DeviceWeight & reader, int glu);
    void multiply(const Plan & plan, size_t group, int side, const int32_t * slot, float * out, int64_t ldc);
    void upload(Plan & plan, size_t room_for_output);
    const uint32_t * codebook(int format);

    Gpu & gpu_;
    const Choices choices_;
    Scratch groups_;
    Memory staging_;  // of the host
    Room tables_, x_, q_, d_, between_, y_, out_, half_, none_;
    Memory codebooks_[octet_device::kFormats];
};

}  // namespace octet::gpu
