#include "weights.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "../gpu/weights.h"
#include "layout.h"
#include "memory.h"
#include "octet/pages.h"
#include "octet/rotation.h"
#include "octet/threads.h"
#include "status.h"

namespace octet {

using namespace ggml;

namespace {

constexpr size_t kAlignment = 64;

struct WeightBuffer {
    uint8_t * memory = nullptr;  // ours to free; nullptr for a mapped file
    uint8_t * base = nullptr;
    std::vector<std::unique_ptr<Stored>> weights;

    ~WeightBuffer() {
        for (auto & w : weights) status().remove(w.get());
        std::free(memory);
    }
};

WeightBuffer * context(Buffer * b) { return static_cast<WeightBuffer *>(b->context); }

std::shared_ptr<const std::vector<float>> signs_of(int64_t k, uint16_t seed) {
    static std::mutex mutex;
    static std::map<std::pair<int64_t, uint16_t>, std::shared_ptr<const std::vector<float>>> known;
    std::lock_guard<std::mutex> lock(mutex);
    auto & signs = known[{k, seed}];
    if (!signs) signs = std::make_shared<const std::vector<float>>(rotation_signs(k, seed));
    return signs;
}

Decision decide_tensor(const Tensor * t) {
    return decide(settings(), *current_model(), t->name, ggml_type_name(t->type), t->ne, op_of(t->ne));
}

extern BufferType packed_type, native_type;

// The matrix of a decision, without data.
Matrix matrix_of(const Decision & d, const int64_t ne[4], bool packed) {
    Matrix m{};
    make_layout(*d.format, ne[0], d.scale_group, &m.layout);
    m.n = ne[1];
    m.n_experts = ne[2];
    m.packed = packed;
    m.row_bytes = size_t(ne[0] / d.format->block_weights) * size_t(d.format->block_bytes);
    return m;
}

// What is wrong with a weight; set by whichever thread finds it.
struct Faults {
    std::atomic<bool> not_finite{false}, scales_differ{false};

    // Looks at the scales of a row of blocks.
    void look_at(const Layout & l, const uint8_t * row) {
        if (!shares_scale(l, row)) scales_differ = true;
        if (!finite_scales(l, row)) not_finite = true;
    }
};

// Packs file bytes (or, to quantize, any type) of all experts on all threads.
void pack(const Stored & s, const void * data, uint8_t * panels, Faults & faults) {
    const Matrix & m = s.weight.matrix;
    const Layout & l = m.layout;
    const TypeTraits * traits = nullptr;
    size_t source_row = m.row_bytes;
    for (int type = 0; s.decision.quantize && !traits; ++type) {
        if (s.type == ggml_type_name(type)) traits = ggml_get_type_traits(type);
    }
    if (traits) source_row = size_t(l.k / traits->block_weights) * traits->block_bytes;

    Counter counter;
    const int64_t panels_each = panel_count(m.n), total = panels_each * m.n_experts;
    auto work = [&](const Thread &) {
        std::vector<uint8_t> scratch(pack_scratch_bytes(l)), blocks;
        std::vector<float> row;
        std::vector<double> rotated;
        if (traits) {
            blocks.resize(size_t(kPanelRows) * m.row_bytes);
            row.resize(size_t(l.k));
            rotated.resize(size_t(l.k));
        }
        for (int64_t p; (p = counter.take()) < total;) {
            int64_t first = p % panels_each * kPanelRows;
            int rows = int(std::min<int64_t>(kPanelRows, m.n - first));
            const uint8_t * source =
                static_cast<const uint8_t *>(data) + size_t(p / panels_each * m.n + first) * source_row;
            if (traits) {
                for (int r = 0; r < rows; ++r) {
                    const uint8_t * from = source + size_t(r) * source_row;
                    if (traits->to_float)
                        traits->to_float(from, row.data(), l.k);
                    else
                        std::memcpy(row.data(), from, size_t(l.k) * sizeof(float));
                    if (!quantize_weights(row.data(), l.k, s.decision.rotation, s.weight.signs, s.decision.scale_group,
                                          rotated.data(), blocks.data() + size_t(r) * m.row_bytes)) {
                        std::memset(blocks.data() + size_t(r) * m.row_bytes, 0xff, m.row_bytes);  // d = NaN: a fault
                    }
                }
                source = blocks.data();
            }
            for (int r = 0; r < rows; ++r) faults.look_at(l, source + size_t(r) * m.row_bytes);
            pack_panel(l, source, m.row_bytes, rows, panels + size_t(p) * l.panel_bytes, scratch.data());
        }
    };
    on_threads(pack_threads(), work);
}

// Looks at all blocks of a weight that is used in place, on all threads.
void look_at_blocks(const Matrix & m, Faults & faults) {
    auto work = [&](const Thread & thread) {
        int64_t first, last;
        thread.share(m.n * m.n_experts, &first, &last);
        for (int64_t i = first; i < last; ++i) faults.look_at(m.layout, m.data + size_t(i) * m.row_bytes);
    };
    on_threads(pack_threads(), work);
}

void report(const Stored & s, const char * text) {
    std::fprintf(stderr, "octet: %s (%s, %lld x %lld x %lld): %s\n", s.name.c_str(), s.type.c_str(),
                 static_cast<long long>(s.ne[0]), static_cast<long long>(s.ne[1]), static_cast<long long>(s.ne[2]),
                 text);
}

void note(const Faults & faults, Stored & s) {
    if (faults.scales_differ)
        s.fault = "has blocks that do not share their scale as the file says: convert the model again";
    if (faults.not_finite) s.fault = "has values that are not finite: the file is damaged, or its source was";
}

// ---- buffer interface

void free_buffer(Buffer * b) { delete context(b); }

void * get_base(Buffer * b) { return context(b)->base; }

int init_tensor(Buffer * b, Tensor * t) {
    if (t->view_src) return STATUS_SUCCESS;
    Decision decision = decide_tensor(t);
    if (decision.path == Path::ordinary) return STATUS_SUCCESS;  // something else's, such as a LoRA
    auto s = make_stored(*t, current_model(), std::move(decision), b->type == &packed_type);
    s->bytes = s->weight.matrix.packed ? packed_bytes(s->weight.matrix) : 0;
    if (!context(b)->memory) usable(*s);  // mapped: the data are there already
    t->extra = s.get();
    status().add(s.get());
    context(b)->weights.push_back(std::move(s));
    return STATUS_SUCCESS;
}

void set_tensor(Buffer *, Tensor * t, const void * data, size_t offset, size_t size) {
    Stored * s = weight_to_set(t, data, offset, size);
    if (!s) return;
    if (s->weight.matrix.packed) {
        Faults faults;
        pack(*s, data, static_cast<uint8_t *>(t->data), faults);
        note(faults, *s);
    } else {
        std::memcpy(t->data, data, size);
        usable(*s);
    }
    release_mapped_pages(data, size);
    if (settings().verbose) report(*s, (s->layout + ", " + s->decision.reason).c_str());
}

void memset_tensor(Buffer *, Tensor * t, uint8_t value, size_t offset, size_t size) {
    if (!t->extra) std::memset(static_cast<uint8_t *>(t->data) + offset, value, size);
}

void get_tensor(Buffer *, const Tensor * t, void * data, size_t offset, size_t size) {
    const Stored * s = static_cast<const Stored *>(t->extra);
    if (!s || !s->weight.matrix.packed) {
        std::memcpy(data, static_cast<const uint8_t *>(t->data) + offset, size);
        return;
    }
    // Only asked for a weight that is used in a way it was not offered for. NaN, not something plausible.
    report(*s, "read back as the file's blocks, which are not kept: name it in OCTET_EXCLUDE");
    std::memset(data, 0xff, size);
}

void clear(Buffer * b, uint8_t value) {
    WeightBuffer * w = context(b);
    if (w->memory && w->weights.empty()) std::memset(w->base, value, b->size);
}

const BufferInterface kBufferInterface = {free_buffer, get_base, init_tensor, memset_tensor, set_tensor, get_tensor,
                                          nullptr,     nullptr,  nullptr,     clear,         nullptr};

// ---- buffer type interface

const char * get_name(BufferType *) { return "OCTET"; }

Buffer * alloc_buffer(BufferType * type, size_t size) {
    auto w = std::make_unique<WeightBuffer>();
    w->memory = w->base = static_cast<uint8_t *>(allocate(size));
    if (!w->memory) {
        say("no memory for " + std::to_string(size >> 20) +
            " MiB of weights: use OCTET_LAYOUT=native or a smaller model");
        return nullptr;
    }
    return ggml_backend_buffer_init(type, kBufferInterface, w.release(), size);
}

size_t get_alignment(BufferType *) { return kAlignment; }

size_t get_alloc_size(BufferType * type, const Tensor * t) {
    if (type != &packed_type) return ggml_nbytes(t);
    Decision d = decide_tensor(t);
    return d.path == Path::ordinary ? ggml_nbytes(t) : packed_bytes(matrix_of(d, t->ne, true));
}

// Blocks that are where the loader put them can be read by stock as well, and are where it is faster
// (Decision::by_rows).
bool is_host(BufferType * type) { return type != &packed_type; }

constexpr BufferTypeInterface kTypeInterface = {get_name, alloc_buffer,   get_alignment,
                                                nullptr,  get_alloc_size, is_host};
BufferType packed_type = {kTypeInterface, nullptr, nullptr};
BufferType native_type = {kTypeInterface, nullptr, nullptr};

}  // namespace

BufferType * weight_buffer_type() { return packs(settings(), *current_model()) ? &packed_type : &native_type; }

bool is_weight_buffer_type(const BufferType * type) { return type == &packed_type || type == &native_type; }

void set_weight_buffer_device(Device * device) { packed_type.device = native_type.device = device; }

Buffer * map_weights(void * data, size_t size) {
    auto w = std::make_unique<WeightBuffer>();
    w->base = static_cast<uint8_t *>(data);
    return ggml_backend_buffer_init(&native_type, kBufferInterface, w.release(), size);
}

std::unique_ptr<Stored> make_stored(const Tensor & t, std::shared_ptr<const Model> model, Decision decision,
                                    bool packed) {
    auto s = std::make_unique<Stored>();
    s->name = t.name;
    s->type = ggml_type_name(t.type);
    std::memcpy(s->ne, t.ne, sizeof s->ne);
    s->model = std::move(model);
    s->decision = std::move(decision);
    Weight & w = s->weight;
    w.matrix = matrix_of(s->decision, t.ne, packed);
    w.matrix.data = static_cast<const uint8_t *>(t.data);
    w.rotation = s->decision.rotation;
    if (w.rotation) s->signs = signs_of(t.ne[0], s->model->seed);
    w.signs = s->signs ? s->signs->data() : nullptr;
    w.float_products = s->decision.path == Path::floating;
    s->layout = w.matrix.packed ? "packed" : "native";
    s->kind = w.float_products ? "float" : s->decision.scale_group == 32 && !s->decision.rotation ? s->type : "int8";
    s->products = &status().counter("dense " + s->kind);
    s->expert_products = &status().counter("experts " + s->kind);
    return s;
}

void pack_stored(Stored & s, uint8_t * panels) {
    Faults faults;  // were looked for when the weight was first used
    pack(s, s.weight.matrix.data, panels, faults);
    s.weight.matrix.data = panels;
    s.weight.matrix.packed = true;
}

Stored * weight_to_set(Tensor * t, const void * data, size_t offset, size_t size) {
    auto * s = static_cast<Stored *>(t->extra);
    if (!s) {
        std::memcpy(static_cast<uint8_t *>(t->data) + offset, data, size);
    } else if (offset != 0 || size != ggml_nbytes(t)) {
        s->fault = "set in parts, which these weights cannot be";
        s = nullptr;
    }
    return s;
}

bool usable(Stored & s) {
    if (!s.weight.matrix.packed) {
        std::call_once(s.checked, [&s] {
            if (!s.fault.empty()) return;
            Faults faults;
            look_at_blocks(s.weight.matrix, faults);
            release_mapped_pages(s.weight.matrix.data, size_t(s.ne[1] * s.ne[2]) * s.weight.matrix.row_bytes);
            note(faults, s);
        });
    }
    return s.fault.empty();
}

bool is_ours(const Tensor * t) {
    const Buffer * b = t->view_src ? t->view_src->buffer : t->buffer;
    return b && (is_weight_buffer_type(b->type) || is_gpu_type(b->type));
}

Stored * stored(const Tensor * t) {
    return t && t->data && !t->view_src && is_ours(t) ? static_cast<Stored *>(t->extra) : nullptr;
}

}  // namespace octet
