// Graphics processors as llama.cpp devices, two of each: see backend/device.cpp.
#pragma once

#include "gpus.h"

namespace octet {

// Fills in registered, scheduled and the buffer types.
void make_devices(Graphics & g);

// Whether the weight behind an op, if any, lies with the backend that has this weight type: neighbours of
// our products are claimed by the backend of the product only.
bool belongs_to(const ggml::Tensor * op, const ggml::BufferType * weights);

}  // namespace octet
