#include "weight.h"

#include <cstring>
#include <utility>

#include "../kernels/launch.h"
#include "octet/matrix.h"

namespace octet::gpu {

namespace dev = octet_device;

int format_number(const char * name, int64_t k, int64_t range) {
    const std::pair<const char *, int> codebooks[] = {
        {"iq3_s", dev::kIq3S}, {"iq3_xxs", dev::kIq3Xxs}, {"iq2_s", dev::kIq2S},     {"iq4_nl", dev::kIq4Nl},
        {"q2_0", dev::kQ20},   {"iq2_xs", dev::kIq2Xs},   {"iq2_xxs", dev::kIq2Xxs}, {"iq4_xs", dev::kIq4Xs},
        {"q4_0", dev::kQ40},   {"mxfp4", dev::kMxfp4}};
    for (const auto & [known, number] : codebooks) {
        if (std::strcmp(name, known) == 0) return number;
    }
    if (std::strcmp(name, "q8_0") != 0) return -1;
    return range == 32 ? dev::kInt8 : range == k ? dev::kInt8Row : range == 128 ? dev::kInt8x128 : -1;
}

bool takes(int format, int64_t k, int64_t n) {
    if (format < 0 || k < 1 || n < 1 || k > kMaxRange || n > INT32_MAX || n % dev::kPanelRows != 0) return false;
    switch (format) {
        case dev::kIq3S:
        case dev::kIq3Xxs:
        case dev::kIq2S:
        case dev::kIq2Xs:
        case dev::kIq2Xxs:
        case dev::kIq4Xs: return k % 256 == 0;
        case dev::kQ20: return k % 64 == 0;
        case dev::kInt8x128: return k % 128 == 0;
        default: return k % 32 == 0;
    }
}

bool float_only(int format) { return !dev::has_int8_products(format); }

OwnedWeight::OwnedWeight(Gpu & gpu, const DeviceWeight & w, const uint8_t * blocks, const float * signs) : w_(w) {
    const size_t bytes = size_t(w.n_experts * w.n) * w.row_bytes;
    blocks_ = gpu.device_memory(bytes);
    gpu.copy(blocks_.data(), blocks, bytes);
    if (w.rotation) {
        signs_ = gpu.device_memory(size_t(w.k) * sizeof(float));
        gpu.copy(signs_.data(), signs, size_t(w.k) * sizeof(float));
    }
    gpu.wait();
    w_.data = blocks_.data();
    w_.signs = reinterpret_cast<const float *>(signs_.data());
}

}  // namespace octet::gpu
