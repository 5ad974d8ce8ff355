#include "devices.h"

#include "../backend/device.h"
#include "../backend/match.h"
#include "../backend/status.h"
#include "weights.h"

namespace octet {

using namespace ggml;

namespace {

Graphics & of(Device * d) { return *static_cast<Graphics *>(d->context); }

const char * name(Device * d) { return of(d).name.c_str(); }
const char * description(Device * d) { return of(d).gpu->info().name; }
int type(Device *) { return DEVICE_ACCEL; }

void memory(Device * d, size_t * free, size_t * total) {
    *total = of(d).gpu->info().memory;
    *free = of(d).off ? 0 : of(d).gpu->free_memory();
}

void props(Device * d, DeviceProps * p) {
    *p = DeviceProps{};
    p->name = name(d);
    p->description = description(d);
    memory(d, &p->memory_free, &p->memory_total);
    p->type = DEVICE_ACCEL;
    p->caps.mmap_support = true;
}

const char * backend_name(Backend * b) { return of(b->device).name.c_str(); }

Backend * init_backend(Device * d, const char *) { return make_backend(&of(d).scheduled, backend_name); }

BufferType * buffer_type(Device * d) { return d == &of(d).registered ? &of(d).weights : &of(d).activations; }

// A weight that is being loaded has no data yet; the answer decides where it goes.
bool takes_product(Graphics & g, const Tensor * op) {
    const Tensor *w = op->src[0], *x = op->src[1], *ids = op->src[2];
    return op->op == OP_MUL_MAT_ID && x && ids && x->type == TYPE_F32 && ids->type == TYPE_I32 &&
           x->ne[0] == w->ne[0] && takes_weight(g, w);
}

bool supports_op(Device * d, const Tensor * op) {
    Graphics & g = of(d);
    if (weights_behind(op) != &g.weights) return false;
    const Tensor * w = op->src[0];
    if ((op->op == OP_MUL_MAT || op->op == OP_MUL_MAT_ID) && !w->data) return takes_product(g, op);
    return supports(op);
}

bool supports_buft(Device * d, BufferType * t) { return t == &of(d).weights || t == &of(d).activations; }

constexpr DeviceInterface kInterface = {name,          description, memory,  type,    props,
                                        init_backend,  buffer_type, nullptr, nullptr, supports_op,
                                        supports_buft, nullptr,     nullptr, nullptr, nullptr};

}  // namespace

const BufferType * weights_behind(const Tensor * op) {
    for (int step = 0; op && step < 8; ++step) {
        switch (op->op) {
            case OP_MUL_MAT:
            case OP_MUL_MAT_ID: {
                const Buffer * b = op->src[0]->buffer;
                return b ? b->type : nullptr;
            }
            case OP_ADD: op = op->src[1]; break;
            case OP_MUL:
            case OP_GLU: op = op->src[0]; break;
            default: {  // a view of a product, or a tensor in a buffer
                if (op->view_src && op->view_src->op != OP_NONE) {
                    op = op->view_src;
                    break;
                }
                const Buffer * b = op->view_src ? op->view_src->buffer : op->buffer;
                return b ? b->type : nullptr;
            }
        }
    }
    return nullptr;
}

void make_devices(Graphics & g) {
    g.registered = {kInterface, nullptr, &g};
    g.scheduled = {kInterface, nullptr, &g};
    g.registered.reg = g.scheduled.reg = registry_of_backend();
    g.weights = weight_type(g);
    g.activations = activation_type(g);
}

}  // namespace octet
