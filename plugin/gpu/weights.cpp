#include "weights.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "../backend/memory.h"
#include "../backend/status.h"

namespace octet {

using namespace ggml;

namespace {

constexpr size_t kAlignment = 64;

// Addresses for the tensors of a buffer. Nothing is written there but what is no weight of ours, and weights
// that were not mapped from a file; pages that nobody writes take no memory.
struct GpuBuffer {
    Graphics * device;
    uint8_t * base;
    size_t size;
    std::vector<std::unique_ptr<Stored>> weights;

    ~GpuBuffer() {
        for (auto & w : weights) status().remove(w.get());
        munmap(base, size);
    }
};

GpuBuffer * context(Buffer * b) { return static_cast<GpuBuffer *>(b->context); }
Graphics & device_of(BufferType * t) { return *static_cast<Graphics *>(t->context); }

// A second view of a file that is mapped at [data, data + size); false if it is not. An old size of 0 makes
// Linux leave the first mapping as it is, for shared mappings only.
bool map_again(const void * data, size_t size, OnGpu & w) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), at = reinterpret_cast<uintptr_t>(data);
    const uintptr_t first = at / page * page;
    const size_t bytes = at + size - first;
    void * again = mremap(reinterpret_cast<void *>(first), 0, bytes, MREMAP_MAYMOVE);
    if (again == MAP_FAILED) return false;
    w.mapping = again;
    w.mapped_bytes = bytes;
    w.blocks = static_cast<const uint8_t *>(again) + (at - first);
    return true;
}

void free_buffer(Buffer * b) { delete context(b); }
void * get_base(Buffer * b) { return context(b)->base; }

gpu::DeviceWeight describe(const Stored & s) {
    const Matrix & m = s.weight.matrix;
    gpu::DeviceWeight w{};
    w.k = m.layout.k;
    w.n = m.n;
    w.n_experts = m.n_experts;
    w.range = activation_group(m.layout);
    w.format = gpu::format_number(m.layout.format->name, w.k, w.range);
    w.rotation = s.weight.rotation;
    w.row_bytes = m.row_bytes;
    return w;
}

int init_tensor(Buffer * b, Tensor * t) {
    if (t->view_src) return STATUS_SUCCESS;
    const std::shared_ptr<const Model> model = current_model();
    Decision d = decide_for_gpu(settings(), *model, t->name, ggml_type_name(t->type), t->ne);
    if (d.path == Path::ordinary) return STATUS_SUCCESS;  // something else's, such as a LoRA
    d.reason += " on " + context(b)->device->name;
    auto s = make_stored(*t, model, std::move(d), false);
    s->on_gpu = std::make_shared<OnGpu>();
    s->on_gpu->device = context(b)->device;
    s->layout = "device";
    t->extra = s.get();
    status().add(s.get());
    context(b)->weights.push_back(std::move(s));
    return STATUS_SUCCESS;
}

void upload(Stored & s) {
    OnGpu & w = *s.on_gpu;
    Graphics & g = *w.device;
    if (g.off) return;
    std::lock_guard<std::mutex> lock(g.gpu->mutex());
    try {
        w.weight = std::make_unique<gpu::OwnedWeight>(*g.gpu, describe(s), w.blocks, s.weight.signs);
        s.bytes = size_t(s.ne[1] * s.ne[2]) * s.weight.matrix.row_bytes;
        g.weight_bytes += s.bytes;
    } catch (const gpu::Error & why) {
        // Its own experts, not the device: others may still fit.
        say(g.name + ": " + s.name + ": " + why.what() + "; it stays with the CPU");
        s.layout = "native";
    }
}

void set_tensor(Buffer *, Tensor * t, const void * data, size_t offset, size_t size) {
    Stored * s = weight_to_set(t, data, offset, size);
    if (!s) return;
    OnGpu & w = *s->on_gpu;
    if (!map_again(data, size, w)) {
        std::memcpy(t->data, data, size);
        w.blocks = static_cast<const uint8_t *>(t->data);
    }
    s->weight.matrix.data = w.blocks;
    if (!usable(*s)) return;
    upload(*s);
    release_mapped_pages(data, size);
    release_mapped_pages(w.blocks, size);
}

void memset_tensor(Buffer *, Tensor * t, uint8_t value, size_t offset, size_t size) {
    if (!t->extra) std::memset(static_cast<uint8_t *>(t->data) + offset, value, size);
}

void get_tensor(Buffer *, const Tensor * t, void * data, size_t offset, size_t size) {
    const auto * s = static_cast<const Stored *>(t->extra);
    const uint8_t * from = s ? s->on_gpu->blocks : static_cast<const uint8_t *>(t->data);
    if (from) std::memcpy(data, from + offset, size);
}

void clear(Buffer *, uint8_t) {}

const BufferInterface kWeightBuffer = {free_buffer, get_base, init_tensor, memset_tensor, set_tensor, get_tensor,
                                       nullptr,     nullptr,  nullptr,     clear,         nullptr};

const char * type_name(BufferType * t) { return device_of(t).name.c_str(); }
size_t alignment(BufferType *) { return kAlignment; }
bool never(BufferType *) { return false; }
bool always(BufferType *) { return true; }

Buffer * alloc_weights(BufferType * type, size_t size) {
    device_of(type).placement.filled();
    size = size ? size : 1;
    void * base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return nullptr;
    auto * b = new GpuBuffer{&device_of(type), static_cast<uint8_t *>(base), size, {}};
    return ggml_backend_buffer_init(type, kWeightBuffer, b, size);
}

// ---- activations: plain memory as far as ggml can see

struct HostBuffer {
    gpu::Memory shared;
    void * plain = nullptr;  // in its place if there is none
    ~HostBuffer() { std::free(plain); }
    uint8_t * base() const { return shared.data() ? shared.data() : static_cast<uint8_t *>(plain); }
};

uint8_t * host_base(Buffer * b) { return static_cast<HostBuffer *>(b->context)->base(); }

const BufferInterface kHostBuffer = {
    [](Buffer * b) { delete static_cast<HostBuffer *>(b->context); }, [](Buffer * b) -> void * {
    return host_base(b);
}, nullptr, [](Buffer *, Tensor * t, uint8_t value, size_t offset, size_t size) {
    std::memset(static_cast<uint8_t *>(t->data) + offset, value, size);
}, [](Buffer *, Tensor * t, const void * data, size_t offset, size_t size) {
    std::memcpy(static_cast<uint8_t *>(t->data) + offset, data, size);
}, [](Buffer *, const Tensor * t, void * data, size_t offset, size_t size) {
    std::memcpy(data, static_cast<const uint8_t *>(t->data) + offset, size);
}, nullptr, nullptr, nullptr, [](Buffer * b, uint8_t value) { std::memset(host_base(b), value, b->size); }, nullptr};

Buffer * alloc_activations(BufferType * type, size_t size) {
    Graphics & g = device_of(type);
    auto b = std::make_unique<HostBuffer>();
    if (!g.off) {
        std::lock_guard<std::mutex> lock(g.gpu->mutex());
        try {
            b->shared = g.gpu->host_memory(size);
        } catch (const gpu::Error &) {
            // Copies to and from plain memory are slower, and that is all.
        }
    }
    if (!b->base()) b->plain = std::aligned_alloc(kAlignment, (size + kAlignment) / kAlignment * kAlignment);
    if (!b->base()) return nullptr;
    return ggml_backend_buffer_init(type, kHostBuffer, b.release(), size);
}

}  // namespace

OnGpu::~OnGpu() {
    if (weight) device->weight_bytes -= size_t(weight->view().n_experts * weight->view().n) * weight->view().row_bytes;
    // What belongs to a device that failed, or to a forked process's parent, is left alone.
    if (device->off) (void) weight.release();
    if (mapping) munmap(mapping, mapped_bytes);
}

BufferType weight_type(Graphics & g) {
    return {{type_name, alloc_weights, alignment, nullptr, nullptr, never}, &g.registered, &g};
}

BufferType activation_type(Graphics & g) {
    return {{type_name, alloc_activations, alignment, nullptr, nullptr, always}, &g.scheduled, &g};
}

bool is_gpu_type(const BufferType * type) { return type->iface.alloc_buffer == alloc_weights; }

Decision decide_for_gpu(const Settings & s, const Model & model, const char * name, const char * type,
                        const int64_t ne[4]) {
    Decision d;
    if (ne[2] < 2 || ne[3] != 1 || std::strstr(name, ".lora_") || !filtered(s, name, ne).empty()) return d;
    const Format * format = find_format(type);
    const TensorFacts * facts = model.find(name);
    if (facts) {
        d.rotation = facts->rotation;
        d.scale_group = facts->scale_group;
    }
    Layout layout;
    if (!format || (s.quantize && !facts) || !make_layout(*format, ne[0], d.scale_group, &layout)) return d;
    const int number = gpu::format_number(type, ne[0], activation_group(layout));
    if (!gpu::takes(number, ne[0], ne[1])) return d;
    d.format = format;
    const Switch rule = facts && format->code_bits == 8 ? s.w8a8 : s.moe;
    d.path = rule == Switch::off ? Path::floating : Path::integer;
    d.reason = std::string(facts && format->code_bits == 8 ? "int8" : type) + " experts" +
               (gpu::float_only(number) ? ", as fp16," : "");
    return d;
}

void decide_where(const Model & model, const char * name, const char * type, const int64_t ne[4], Decision * decision) {
    for (const auto & g : gpus()) {
        if (g->off) continue;
        Decision d = decide_for_gpu(settings(), model, name, type, ne);
        if (d.path == Path::ordinary) return;
        d.reason += " on " + g->name + " if they fit";
        *decision = std::move(d);
        return;
    }
}

bool takes_weight(Graphics & g, const Tensor * w) {
    if (g.off) return false;
    const std::shared_ptr<const Model> model = current_model();
    if (decide_for_gpu(settings(), *model, w->name, ggml_type_name(w->type), w->ne).path == Path::ordinary)
        return false;
    // For scratch, programs and whoever else uses the device.
    const uint64_t total = g.gpu->info().memory, kept = total / 16 + (uint64_t(512) << 20);
    uint64_t free = std::min<uint64_t>(g.gpu->free_memory(), total - std::min<uint64_t>(total, g.weight_bytes));
    free -= std::min(free, kept);
    if (const char * limit = std::getenv("OCTET_TEST_SYCL_MEMORY")) free = std::strtoull(limit, nullptr, 10);
    // The loader asks in the order of the list.
    std::string next = "what does not fit stays with the CPU";
    for (size_t i = gpus().size(); i > 0 && gpus()[i - 1].get() != &g; --i) {
        if (!gpus()[i - 1]->off) next = gpus()[i - 1]->name + " is asked next";
    }
    return g.placement.takes(model, w->name, w->ne, ggml_nbytes(w), free, g.name, next);
}

void bring_to_cpu(Stored & s) {
    if (!s.on_gpu) return;
    OnGpu & w = *s.on_gpu;
    std::call_once(w.packing, [&] {
        const size_t bytes = packed_bytes(s.weight.matrix);
        auto * memory = static_cast<uint8_t *>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
        if (!memory) return;  // the blocks where they are: slow, but right
        w.panels = {memory, std::free};
        pack_stored(s, memory);
        s.layout = "packed";
    });
}

}  // namespace octet
