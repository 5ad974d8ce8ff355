// int8 or fp16 for a group of experts, as measured on the device.
#pragma once

#include "gpus.h"
#include "octet/products.h"

namespace octet {

struct Stored;

// Rows per expert from which fp16 takes over where the measurement failed.
constexpr double kRowsWithoutMeasurement = 64;

// What the settings, and with `auto` the measurement of this kind of layer on this device, say. Groups with
// few rows need none; the first one with more makes it, if it is not in the cache. Under g.gpu->mutex().
gpu::ChooseArithmetic chooser(Graphics & g, const Stored & gate, const Stored & up, const Stored & down,
                              const Chain & chain);

}  // namespace octet
