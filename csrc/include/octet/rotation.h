// The rotation of weights and activations: W' = W D H, x' = H D x (docs/format.md).
#pragma once

#include <cstdint>
#include <vector>

namespace octet {

// Block that a K gets when `wished` (128, 64 or 32) is asked for: the wished one if it divides K,
// else the largest smaller power of two down to 32 that does, else 0, not rotated.
int rotation_block(int64_t k, int wished);

// The k signs, +1 or -1, of a seed.
std::vector<float> rotation_signs(int64_t k, uint16_t seed);

// Rotates k weights of one row in f64, and quantizes them to int8 with one fp16 scale per `group`
// columns (0 = all k): what the converter does, bit for bit. signs may be null if block is 0.
// Writes valid q8_0 blocks. Returns false if a value is not finite or a scale does not fit fp16.
bool quantize_weights(const float * w, int64_t k, int block, const float * signs, int64_t group, double * scratch,
                      uint8_t * q8_0_blocks);

}  // namespace octet
