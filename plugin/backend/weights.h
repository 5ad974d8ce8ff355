// The weight buffers: where weights that are ours live, packed or in place.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../abi/ggml.h"
#include "decide.h"
#include "octet/products.h"

namespace octet {

struct Count;
struct OnGpu;

// A weight in one of our buffers; Tensor::extra points here.
struct Stored {
    std::string name, type;
    int64_t ne[4];
    std::shared_ptr<const Model> model;
    Decision decision;
    Weight weight;
    std::shared_ptr<const std::vector<float>> signs;
    std::string layout;  // "packed", "native" or "raw"
    size_t bytes = 0;    // in memory of ours
    std::string fault;   // why it must not be used; "" if it may, as far as is known (see usable)
    std::once_flag checked;
    std::atomic<uint64_t> calls{0};

    // "int8" for what octet wrote or quantized, "float" for float products, else the type; and what is
    // counted under that name. `chain` is that of the last chain this weight began.
    std::string kind;
    Count *products, *expert_products;
    std::atomic<Count *> chain{nullptr};

    std::shared_ptr<OnGpu> on_gpu;  // if it is a graphics processor's (gpu/weights.h)
};

// Whether a weight may be used; if not, its fault says why. Blocks that stay where they are are looked at
// in the first call.
bool usable(Stored & weight);

// A tensor with a decision that makes it ours, its data not yet there: to be packed, or the file's blocks.
std::unique_ptr<Stored> make_stored(const ggml::Tensor & t, std::shared_ptr<const Model> model, Decision decision,
                                    bool packed);

// The beginning of set_tensor: the weight to be made of `data`; nullptr if nothing is left to do, because the tensor
// is no weight of ours (it has got the bytes) or comes in parts (which is a fault).
Stored * weight_to_set(ggml::Tensor * t, const void * data, size_t offset, size_t size);

// Packs a weight that is used in place into `panels` (packed_bytes() of its matrix), and uses these.
void pack_stored(Stored & weight, uint8_t * panels);

// The buffer types of a device, one per layout (layout.h). Packed weights are not host memory for ggml: nobody
// else may read them. The first is the one of the model that this thread has announced.
ggml::BufferType * weight_buffer_type();
bool is_weight_buffer_type(const ggml::BufferType * type);
void set_weight_buffer_device(ggml::Device * device);

// A buffer over the mapped file, whose blocks stay where they are.
ggml::Buffer * map_weights(void * data, size_t size);

// Whether a tensor, or what it is a view of, lies in a buffer of ours (also a dummy one).
bool is_ours(const ggml::Tensor * t);

// The weight behind a tensor, or nullptr if it is none that we compute with.
Stored * stored(const ggml::Tensor * t);

}  // namespace octet
