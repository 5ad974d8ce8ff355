// Rows of file blocks and of activations for tests: random ones and every extreme.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "octet/formats.h"
#include "octet/kernels.h"
#include "octet/matrix.h"

namespace octet_test {

using namespace octet;

// A small generator, so that every platform sees the same numbers (xorshift64*).
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
    uint32_t bits() {
        state_ ^= state_ >> 12;
        state_ ^= state_ << 25;
        state_ ^= state_ >> 27;
        return uint32_t((state_ * 0x2545F4914F6CDD1Du) >> 32);
    }
    int below(int n) { return int(bits() % uint32_t(n)); }
    float uniform() { return float(bits() >> 8) * 0x1p-24f; }
    // Roughly normal: a sum of four uniforms.
    float normal() { return (uniform() + uniform() + uniform() + uniform() - 2.0f) * 1.7320508f; }

  private:
    uint64_t state_;
};

// A weight type as a test runs it.
struct Case {
    const char * format;
    int scale_group;
    std::vector<int64_t> ks;
};

inline const std::vector<Case> & cases() {
    static const std::vector<Case> all = {
        {"q8_0", 32, {32, 64, 96, 544, 640, 768}},
        {"q8_0", 128, {128, 384, 640, 768}},
        {"q8_0", 0, {32, 64, 96, 640, 768}},  // activations in chunks of 32 and of 64
        {"iq4_nl", 32, {32, 96, 544, 640, 768}},
        {"q2_0", 32, {64, 192, 640, 768}},
        {"iq3_s", 32, {256, 512, 768}},
        {"iq3_xxs", 32, {256, 512, 768}},
        {"iq2_s", 32, {256, 512, 768}},
        {"iq2_xs", 32, {256, 768}},
        {"iq2_xxs", 32, {256, 768}},
        {"iq4_xs", 32, {256, 768}},
        {"q4_0", 32, {32, 96, 640}},
        {"mxfp4", 32, {32, 96, 640}},
    };
    return all;
}

inline size_t row_bytes(const Format & f, int64_t k) { return size_t(k / f.block_weights) * size_t(f.block_bytes); }

// What a row of weights is made of, and the fp16 d of its blocks.
enum class WeightKind { random, ones, zeros, subnormal, largest, negative, minus128, kinds };

inline uint16_t random_half(Random & random, WeightKind kind) {
    const uint16_t sign = uint16_t(random.bits() & 0x8000);
    switch (kind) {
        case WeightKind::subnormal: return uint16_t(sign | (1 + random.below(1023)));
        case WeightKind::zeros: return uint16_t(random.below(2) ? 0 : 0x2000);
        case WeightKind::largest: return uint16_t(0x7bff);                         // 65504
        default: return uint16_t(sign | uint16_t(0x1400 + random.below(0x1400)));  // 2^-10 ... 2^-5
    }
}

// One row of `k` weights as blocks; ranges of `layout` share their d.
inline void fill_weights(const Layout & l, WeightKind kind, Random & random, uint8_t * row) {
    const Format & f = *l.format;
    const size_t bytes = row_bytes(f, l.k);
    for (size_t i = 0; i < bytes; ++i) {
        switch (kind) {
            case WeightKind::ones: row[i] = random.below(8) ? 0xff : uint8_t(random.bits()); break;
            case WeightKind::zeros: row[i] = 0; break;
            case WeightKind::largest: row[i] = f.code_bits == 8 ? 127 : 0xff; break;
            case WeightKind::negative: row[i] = f.code_bits == 8 ? 0x81 : 0; break;     // q8_0 -127, iq4_nl -127
            case WeightKind::minus128: row[i] = f.code_bits == 8 ? 0x80 : 0x77; break;  // q8_0 -128
            default: row[i] = uint8_t(random.bits());
        }
    }
    uint16_t d = 0;
    for (int64_t b = 0; b < l.k / f.block_weights; ++b) {
        uint8_t * block = row + size_t(b) * size_t(f.block_bytes);
        if (f.d_type == ScaleType::bf16) {  // mxfp4: a byte of exponent
            *block = uint8_t(kind == WeightKind::subnormal ? random.below(3) : 110 + random.below(20));
            continue;
        }
        if (b * f.block_weights % l.span == 0) d = random_half(random, kind);
        std::memcpy(block, &d, 2);
    }
}

// What a row of activations is made of.
enum class RowKind {
    normal,
    zeros,
    huge,
    constant,
    alternating,
    subnormal,
    tiny,
    mixed,
    not_a_number,
    infinite,
    kinds
};

inline void fill_row(RowKind kind, int64_t k, Random & random, float * x) {
    for (int64_t j = 0; j < k; ++j) {
        switch (kind) {
            case RowKind::zeros: x[j] = random.below(2) ? 0.0f : -0.0f; break;
            case RowKind::huge: x[j] = 1e5f * random.normal(); break;
            case RowKind::constant: x[j] = 3.25f; break;                            // q = 127 everywhere
            case RowKind::alternating: x[j] = (j / 2) % 2 ? -0.75f : 0.75f; break;  // q = 127, -127
            case RowKind::subnormal: x[j] = 1e-40f * random.normal(); break;        // d is subnormal
            case RowKind::tiny: x[j] = random.below(3) ? 0.0f : 2e-45f; break;      // d underflows to 0
            case RowKind::mixed: x[j] = std::ldexp(random.normal(), random.below(40) - 20); break;
            default: x[j] = random.normal();
        }
    }
    if (kind == RowKind::not_a_number) x[random.below(int(k))] = std::nanf("");
    if (kind == RowKind::infinite) x[random.below(int(k))] = random.below(2) ? INFINITY : -INFINITY;
    // One group of zeros among others.
    if (kind == RowKind::mixed) std::memset(x + 32 * random.below(int(k / 32)), 0, 32 * sizeof(float));
}

inline bool is_finite(RowKind kind) { return kind != RowKind::not_a_number && kind != RowKind::infinite; }

// Row after row another kind, so that every tile holds a mixture; `start` moves it.
template <typename Kind>
Kind kind_of(int64_t row, int64_t start) {
    return Kind((row + start) % int64_t(Kind::kinds));
}

inline std::vector<const Kernels *> faster_kernels() {
    std::vector<const Kernels *> list;
    for (Isa isa : kIsas) {
        if (isa != Isa::scalar && kernels_of(isa)) list.push_back(kernels_of(isa));
    }
    return list;
}

inline const Kernels & scalar() { return *kernels_of(Isa::scalar); }

// Less of everything where a machine is emulated (--quick).
bool quick();

}  // namespace octet_test
