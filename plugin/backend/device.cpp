// The registry, and the two devices of the backend.
//
// Device A is registered, and its buffer type holds our weights: the model loader asks it which
// weights it takes. The backend that A makes belongs to device B, which is not registered and whose
// buffer type is the CPU's: the scheduler sees that B reads and writes ordinary memory, and nothing
// is ever copied between it and the CPU backend.
#include <sys/sysinfo.h>

#include <cstdio>
#include <cstring>
#include <memory>

#include "../abi/cpu_backend.h"
#include "../abi/gate.h"
#include "../gpu/devices.h"
#include "api.h"
#include "device.h"
#include "execute.h"
#include "layout.h"
#include "match.h"
#include "octet/threads.h"
#include "status.h"

namespace octet {

using namespace ggml;

namespace {

extern Device device_a, device_b;
extern Registry registry;

// ---- backend

Engine * engine(Backend * b) { return static_cast<Engine *>(b->context); }

const char * name(Backend *) { return "OCTET"; }

void free_backend(Backend * b) {
    delete engine(b);
    delete b;
}

int graph_compute(Backend * b, Graph * graph) { return compute(*engine(b), *graph); }

void set_n_threads(Backend * b, int n) { engine(b)->n_threads = n < 1 ? 1 : n; }

constexpr uint8_t kGuid[16] = {'l', 'l', 'a', 'm', 'a', '-', 'o', 'c', 't', 'e', 't', 0, 0, 0, 0, 1};

Backend * init_backend(Device *, const char *) { return make_backend(&device_b, name); }

// ---- devices

const char * device_name(Device *) { return "OCTET"; }
const char * device_description(Device *) { return "llama-octet int8 kernels"; }
int device_type(Device *) { return DEVICE_ACCEL; }

void device_memory(Device *, size_t * free, size_t * total) {
    struct sysinfo info;
    *free = *total = 0;
    if (sysinfo(&info) != 0) return;
    *free = size_t(info.freeram + info.bufferram) * info.mem_unit;
    *total = size_t(info.totalram) * info.mem_unit;
}

void device_props(Device * d, DeviceProps * p) {
    *p = DeviceProps{};
    p->name = device_name(d);
    p->description = device_description(d);
    device_memory(d, &p->memory_free, &p->memory_total);
    p->type = DEVICE_ACCEL;
    // The loader asks while it loads, on its thread.
    p->caps.buffer_from_host_ptr = d == &device_a && !packs(settings(), *current_model());
    p->caps.mmap_support = true;
}

BufferType * buffer_type(Device * d) { return d == &device_a ? weight_buffer_type() : ggml_backend_cpu_buffer_type(); }

Buffer * from_host_ptr(Device *, void * data, size_t size, size_t) { return map_weights(data, size); }

bool supports_op(Device *, const Tensor * op) { return is_weight_buffer_type(weights_behind(op)) && supports(op); }

bool supports_buft(Device *, BufferType * type) {
    return is_weight_buffer_type(type) || type == ggml_backend_cpu_buffer_type() ||
           (type->iface.is_host && type->iface.is_host(type));
}

constexpr DeviceInterface kDeviceInterface = {
    device_name,   device_description, device_memory, device_type, device_props, init_backend, buffer_type, nullptr,
    from_host_ptr, supports_op,        supports_buft, nullptr,     nullptr,      nullptr,      nullptr};

Device device_a = {kDeviceInterface, &registry, nullptr};
Device device_b = {kDeviceInterface, &registry, nullptr};

// ---- registry

const char * registry_name(Registry *) { return "OCTET"; }
// Graphics processors first: the loader asks in this order.
size_t device_count(Registry *) { return gpus().size() + 1; }
Device * get_device(Registry *, size_t i) { return i < gpus().size() ? &gpus()[i]->registered : &device_a; }

void * get_proc_address(Registry *, const char * name) {
    if (std::strcmp(name, "ggml_backend_set_n_threads") == 0) return reinterpret_cast<void *>(set_n_threads);
    if (std::strcmp(name, "octet_model_begin") == 0) return reinterpret_cast<void *>(octet_model_begin);
    if (std::strcmp(name, "octet_model_end") == 0) return reinterpret_cast<void *>(octet_model_end);
    if (std::strcmp(name, "octet_model_begin_read") == 0) return reinterpret_cast<void *>(octet_model_begin_read);
    if (std::strcmp(name, "octet_status") == 0) return reinterpret_cast<void *>(octet_status);
    if (std::strcmp(name, "octet_layout") == 0) return reinterpret_cast<void *>(octet_layout);
    if (std::strcmp(name, "octet_decide") == 0) return reinterpret_cast<void *>(octet_decide);
    return nullptr;
}

Registry registry = {kApiVersion, {registry_name, device_count, get_device, get_proc_address}, nullptr};

void announce() {
    const Settings & s = settings();
    std::string on = s.quantize ? "int8 made at load" : "int8 and expert weights";
    std::fprintf(
        stderr,
        "octet: %s through %s kernels (off: OCTET_W8A8=0 OCTET_MOE=0; what ran: octet run, llama_octet.status())\n",
        on.c_str(), isa_name(s.isa));
}

}  // namespace

Backend * make_backend(Device * device, const char * (*backend_name)(Backend *) ) {
    auto e = std::make_unique<Engine>();
    e->kernels = kernels_of(settings().isa);
    e->n_threads = pack_threads();
    auto * b = new Backend{};
    b->guid = kGuid;
    b->iface.get_name = backend_name;
    b->iface.free = free_backend;
    b->iface.graph_compute = graph_compute;
    b->device = device;
    b->context = e.release();
    return b;
}

Registry * registry_of_backend() { return &registry; }

Registry * register_backend() {
    std::string wrong = check_runtime();
    if (wrong.empty()) wrong = load_settings();
    set_error(wrong);
    if (!wrong.empty()) return nullptr;
    if (!use_openmp_of(ggml::cpu_backend_library())) {
        std::fprintf(stderr, "octet: no OpenMP runtime is found, so the kernels run on one thread: install libgomp1\n");
    }
    set_weight_buffer_device(&device_a);
    announce();
    open_gpus(settings());
    return &registry;
}

}  // namespace octet

// What ggml_backend_load calls. Null is a refusal; octet_error() says why.
extern "C" __attribute__((visibility("default"))) void * ggml_backend_init() {
    static ggml::Registry * registered = octet::register_backend();
    return registered;
}
