// Weights in device memory.
#pragma once

#include <cstdint>

#include "gpu.h"

namespace octet::gpu {

// The experts of one weight, as the file's blocks.
struct DeviceWeight {
    int format;  // number in launch.h
    int64_t k, n, n_experts;
    int64_t range;        // columns that share a scale: 32, 128 or k
    int rotation;         // block, 0 = none
    const float * signs;  // k of them in device memory, if rotated
    const uint8_t * data;
    size_t row_bytes;
};

// The number of a format in launch.h: by GGUF's name and the scale range; -1 if the kernels have none.
int format_number(const char * name, int64_t k, int64_t range);

// Whether the kernels, or those of the float chain, take a matrix of that shape.
bool takes(int format, int64_t k, int64_t n);

// Whether only the float chain has the format.
bool float_only(int format);

// A weight and its memory.
class OwnedWeight {
  public:
    // Copies blocks[n_experts][n][row_bytes] and, if rotated, signs[k] from host memory, and waits. `w` says
    // everything but the addresses. Throws Error.
    OwnedWeight(Gpu & gpu, const DeviceWeight & w, const uint8_t * blocks, const float * signs);

    const DeviceWeight & view() const { return w_; }

  private:
    DeviceWeight w_;
    Memory blocks_, signs_;
};

}  // namespace octet::gpu
