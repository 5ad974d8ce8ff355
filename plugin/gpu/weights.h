// Experts' weights in a device's memory. The file's blocks stay in reach of the CPU as well, where the loader
// mapped them (which takes no memory), so that the CPU engine can take over at any time.
#pragma once

#include <memory>
#include <mutex>

#include "../backend/weights.h"
#include "gpus.h"

namespace octet {

// The part of a Stored that a graphics processor has; Stored::on_gpu points here.
struct OnGpu {
    Graphics * device;
    std::unique_ptr<gpu::OwnedWeight> weight;  // null: did not fit, or the device failed
    const uint8_t * blocks = nullptr;          // in host memory
    void * mapping = nullptr;                  // to be unmapped
    size_t mapped_bytes = 0;
    std::once_flag packing;
    std::unique_ptr<uint8_t, void (*)(void *)> panels{nullptr, nullptr};

    ~OnGpu();
};

// The type of the buffers of a device's weights; and of its activations: USM host memory, which the device
// and everything on the CPU read and write.
ggml::BufferType weight_type(Graphics & g);
ggml::BufferType activation_type(Graphics & g);

// How a device would compute with an expert weight; path ordinary if it does not.
Decision decide_for_gpu(const Settings & settings, const Model & model, const char * name, const char * type,
                        const int64_t ne[4]);

// Makes it the decision of the first device that would take the weight, if one has room for it.
void decide_where(const Model & model, const char * name, const char * type, const int64_t ne[4], Decision * decision);

// Whether a weight that is being loaded goes to this device.
bool takes_weight(Graphics & g, const ggml::Tensor * weight);

bool is_gpu_type(const ggml::BufferType * type);

// Makes the weight one that the CPU kernels are fast with. Called before they compute with it.
void bring_to_cpu(Stored & s);

}  // namespace octet
