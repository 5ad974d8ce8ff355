#include "c_api.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "octet/formats.h"
#include "octet/rotation.h"
#include "runner.h"

struct octet_gpu {
    octet::gpu::Gpu gpu;
    octet::gpu::Runner runner;

    octet_gpu(const octet::gpu::Setup & setup, const octet::gpu::Choices & choices)
        : gpu(setup), runner(gpu, choices) {}
};

struct octet_gpu_weight {
    octet::gpu::OwnedWeight weight;
};

namespace octet::gpu {
namespace {

thread_local std::string error;

template <typename R, typename F>
R guarded(R failed, F f) {
    error.clear();
    try {
        return f();
    } catch (const std::exception & why) {
        error = why.what();
    }
    return failed;
}

void require(bool ok, const char * what) {
    if (!ok) throw Error(what);
}

void need_driver(const char * path) {
    require(path, "driver is NULL");
    const std::string wrong = open_driver(path);
    if (!wrong.empty()) throw Error(wrong);
}

std::string quoted(const char * text) {
    std::string out = "\"";
    for (; *text; ++text) {
        if (*text == '"' || *text == '\\') out += '\\';
        out += static_cast<unsigned char>(*text) < 0x20 ? ' ' : *text;
    }
    return out + '"';
}

DeviceWeight describe(const octet_kernel_weight_spec & s) {
    require(s.format && s.blocks, "format or blocks is NULL");
    const Format * format = find_format(s.format);
    if (!format) throw Error(std::string(s.format) + " is no format known here");
    Layout layout;
    require(make_layout(*format, s.k, s.scale_group, &layout), "k or scale_group does not suit the format");
    DeviceWeight w{};
    w.k = s.k;
    w.n = s.n;
    w.n_experts = s.n_experts;
    w.range = layout.range < 32 ? 32 : layout.range;
    w.format = format_number(s.format, s.k, w.range);
    w.rotation = s.rotation;
    w.row_bytes = size_t(s.k / format->block_weights) * size_t(format->block_bytes);
    require(takes(w.format, w.k, w.n), "the kernels do not take that format or shape");
    require(s.bytes == size_t(w.n_experts * w.n) * w.row_bytes, "bytes does not agree with the shape");
    require(!s.rotation || (rotation_block(s.k, s.rotation) == s.rotation && s.seed >= 0 && s.seed <= 65535),
            "rotation or seed is out of range");
    return w;
}

const DeviceWeight & view(const octet_kernel_weight * w) {
    require(w, "a weight is NULL");
    return reinterpret_cast<const octet_gpu_weight *>(w)->weight.view();
}

Routing routing_of(const int32_t * ids, int64_t n_tokens, int64_t n_used) {
    require(n_tokens >= 0 && n_used >= 1 && n_tokens * n_used <= INT32_MAX, "n_tokens or n_used is out of range");
    return {reinterpret_cast<const char *>(ids), 4, 4 * n_used, n_used, n_tokens};
}

RowsIn dense_rows(const float * x, int64_t k) {
    return {reinterpret_cast<const char *>(x), k * int64_t(sizeof(float))};
}

Chain chain_of(const octet_kernel_chain & c, const DeviceWeight & gate, const DeviceWeight & down) {
    Chain chain{};
    chain.n_ff = down.k;
    chain.up_row = c.up ? 0 : chain.n_ff;
    require(gate.n == (c.up ? 1 : 2) * chain.n_ff, "the rows of gate are not the columns of down");
    const std::string glu = c.glu ? c.glu : "";
    require(glu == "swiglu" || glu == "geglu" || glu == "reglu", "the GLU is none of swiglu, geglu, reglu");
    chain.glu = glu == "swiglu" ? Glu::swiglu : glu == "geglu" ? Glu::geglu : Glu::reglu;
    chain.x = dense_rows(c.x, gate.k);
    chain.routing = routing_of(c.ids, c.n_tokens, c.n_used);
    chain.weights = reinterpret_cast<const char *>(c.weights);
    chain.weight_slot_stride = 4;
    chain.weight_token_stride = 4 * c.n_used;
    chain.out = c.out;
    chain.out_stride = down.n;
    return chain;
}

ChooseArithmetic always(int32_t half) {
    return [half](double) { return half ? Arithmetic::half : Arithmetic::int8; };
}

}  // namespace
}  // namespace octet::gpu

using namespace octet;
using namespace octet::gpu;

const char * octet_gpu_error(void) { return error.c_str(); }

size_t octet_gpu_list(const char * path, int32_t cpu, char * out, size_t size) {
    return guarded<size_t>(0, [&] {
        need_driver(path);
        std::string text = "[";
        for (const octet_gpu_info & d : list_devices(cpu)) {
            text += std::string(text.size() > 1 ? ", " : "") + "{\"name\": " + quoted(d.name) +
                    ", \"driver\": " + quoted(d.driver) + ", \"architecture\": " + quoted(d.architecture) +
                    ", \"memory\": " + std::to_string(d.memory) + ", \"dpas\": " + (d.int8_8x16x32 ? "true" : "false") +
                    "}";
        }
        text += "]";
        if (out && size > text.size()) std::memcpy(out, text.c_str(), text.size() + 1);
        return text.size() + 1;
    });
}

octet_gpu * octet_gpu_open(const octet_gpu_options * o) {
    return guarded<octet_gpu *>(nullptr, [&] {
        need_driver(o->driver);
        require(o->sources, "sources is NULL");
        Setup setup;
        setup.cpu = o->cpu != 0;
        setup.index = o->index;
        setup.sources = o->sources;
        setup.cache = o->cache ? o->cache : "";
        setup.registers = o->registers;
        return new octet_gpu(setup, Choices{o->tiles, o->work_groups != 0});
    });
}

void octet_gpu_close(octet_gpu * gpu) { delete gpu; }

void octet_gpu_programs(const octet_gpu * gpu, int32_t * built, int32_t * cached) {
    *built = gpu->gpu.built();
    *cached = gpu->gpu.cached();
}

octet_gpu_weight * octet_gpu_weight_new(octet_gpu * gpu, const octet_kernel_weight_spec * spec) {
    return guarded<octet_gpu_weight *>(nullptr, [&] {
        const DeviceWeight w = describe(*spec);
        const std::vector<float> signs =
            spec->rotation ? rotation_signs(w.k, uint16_t(spec->seed)) : std::vector<float>();
        std::lock_guard<std::mutex> lock(gpu->gpu.mutex());
        return new octet_gpu_weight{OwnedWeight(gpu->gpu, w, spec->blocks, signs.data())};
    });
}

void octet_gpu_weight_free(octet_gpu_weight * weight) { delete weight; }

int octet_gpu_run_chain(octet_gpu * gpu, const octet_kernel_chain * c, int32_t half) {
    return guarded<int>(-1, [&] {
        const DeviceWeight &gate = view(c->gate), &down = view(c->down);
        const DeviceWeight & up = c->up ? view(c->up) : gate;
        require(gate.k == up.k && gate.range == up.range && gate.rotation == up.rotation && gate.n == up.n,
                "gate and up do not go together");
        const Chain chain = chain_of(*c, gate, down);
        std::lock_guard<std::mutex> lock(gpu->gpu.mutex());
        require(gpu->runner.run_chain(chain, gate, up, down, always(half)).ok, "an id is not an expert");
        return 0;
    });
}

int octet_gpu_multiply_by_expert(octet_gpu * gpu, const octet_gpu_weight * weight, const float * x, int64_t x_rows,
                                 const int32_t * ids, int64_t n_tokens, int64_t n_used, float * out, int32_t half) {
    return guarded<int>(-1, [&] {
        require(weight, "weight is NULL");
        const DeviceWeight & w = weight->weight.view();
        require(x_rows == 1 || x_rows == n_used, "x_rows is neither 1 nor n_used");
        std::lock_guard<std::mutex> lock(gpu->gpu.mutex());
        require(
            gpu->runner.multiply(w, dense_rows(x, w.k), x_rows, routing_of(ids, n_tokens, n_used), out, always(half))
                .ok,
            "an id is not an expert");
        return 0;
    });
}
