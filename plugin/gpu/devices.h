// Graphics processors as llama.cpp devices, two of each: see backend/device.cpp.
#pragma once

#include "gpus.h"

namespace octet {

// Fills in registered, scheduled and the buffer types.
void make_devices(Graphics & g);

// The type of the buffer that the weight behind an op lies in, nullptr if there is none: neighbours of our products
// are claimed by the backend of the product only.
const ggml::BufferType * weights_behind(const ggml::Tensor * op);

}  // namespace octet
