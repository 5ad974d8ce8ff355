// The SYCL side of driver.h: C++17 for any compiler, with SYCL as a library (no device code here).
//
//     c++ -std=c++17 -O2 -fPIC -shared driver.cpp -I PREFIX/include -L PREFIX/lib -lsycl
#include "driver.h"

#define SYCL_DISABLE_FSYCL_SYCLHPP_WARNING
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <sycl/sycl.hpp>

namespace {

namespace sx = sycl::ext::oneapi::experimental;

thread_local std::string last_error;

void set_error(const char * what) {
    last_error = what;
    for (char & c : last_error) {
        if (c == '\n' || c == '\r' || c == '\t') c = ' ';
    }
}

// f(), or `failed` if it throws.
template <typename R, typename F>
R guarded(R failed, F f) {
    try {
        return f();
    } catch (const std::exception & why) {
        set_error(why.what());
    } catch (...) {
        set_error("an unknown exception");
    }
    return failed;
}

// For tests: OCTET_TEST_SYCL_FAULT="launch:3 wait:1" makes the third launch and the first wait of this
// process fail, and every later one, as after a lost device; "launch:3!" only the third.
void fault_point(const char * call) {
    static const char * plan = std::getenv("OCTET_TEST_SYCL_FAULT");
    if (!plan) return;
    static std::map<std::string, long> counts;
    const long now = ++counts[call];
    const std::string key = std::string(call) + ":";
    for (const char * at = plan; (at = std::strstr(at, key.c_str())); at += key.size()) {
        if (at != plan && at[-1] != ' ') continue;
        char * end;
        const long first = std::strtol(at + key.size(), &end, 10);
        if (*end == '!' ? now == first : now >= first) {
            throw sycl::exception(sycl::make_error_code(sycl::errc::runtime),
                                  "a fault for a test in " + std::string(call));
        }
    }
}

bool usable(sycl::device d) {
    return d.has(sycl::aspect::usm_device_allocations) && d.has(sycl::aspect::usm_host_allocations) &&
           d.ext_oneapi_can_build(sx::source_language::sycl);
}

std::vector<sycl::device> devices(bool cpu) {
    std::vector<sycl::device> found;
    const auto type = cpu ? sycl::info::device_type::cpu : sycl::info::device_type::gpu;
    for (const sycl::platform & p : sycl::platform::get_platforms()) {
        // The same card shows up under OpenCL as well.
        const bool wanted = p.get_backend() == (cpu ? sycl::backend::opencl : sycl::backend::ext_oneapi_level_zero);
        if (!wanted) continue;
        for (const sycl::device & d : p.get_devices(type)) {
            if (usable(d)) found.push_back(d);
        }
    }
    return found;
}

std::string architecture_of(const sycl::device & d) {
    if (d.is_cpu()) return "cpu";
    const auto id = d.get_info<sx::info::device::architecture>();
    if (id == sx::architecture::intel_gpu_bmg_g21) return "bmg-g21";
    if (id == sx::architecture::intel_gpu_bmg_g31) return "bmg-g31";
    char text[24];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(id));
    return text;
}

bool has_product(const sycl::device & d) {
    using sx::matrix::matrix_type;
    if (!d.has(sycl::aspect::ext_intel_matrix)) return false;
    for (const auto & c : d.get_info<sx::info::device::matrix_combinations>()) {
        // A combination gives either one size or the largest of a range.
        const bool m = c.msize == 8 || (c.msize == 0 && c.max_msize >= 8);
        if (m && c.nsize == 16 && c.ksize == 32 && c.atype == matrix_type::sint8 && c.btype == matrix_type::sint8 &&
            c.ctype == matrix_type::sint32) {
            return true;
        }
    }
    return false;
}

void copy_text(char * to, size_t size, const std::string & text) { std::snprintf(to, size, "%s", text.c_str()); }

}  // namespace

struct octet_gpu_queue {
    sycl::queue queue;
};

struct octet_gpu_kernel {
    sycl::kernel kernel;
};

struct octet_gpu_program {
    sycl::kernel_bundle<sycl::bundle_state::executable> bundle;
    std::map<std::string, octet_gpu_kernel> kernels;
    std::vector<char> contents;
};

namespace {

const char * error() { return last_error.c_str(); }

int32_t count(int32_t cpu) {
    return guarded<int32_t>(-1, [&] {
        fault_point("count");
        return int32_t(devices(cpu).size());
    });
}

int32_t info(int32_t cpu, int32_t index, octet_gpu_info * out) {
    return guarded<int32_t>(0, [&] {
        fault_point("info");
        const sycl::device d = devices(cpu).at(size_t(index));
        *out = octet_gpu_info{};
        copy_text(out->name, sizeof out->name, d.get_info<sycl::info::device::name>());
        copy_text(out->driver, sizeof out->driver, d.get_info<sycl::info::device::driver_version>());
        copy_text(out->architecture, sizeof out->architecture, architecture_of(d));
        out->memory = d.get_info<sycl::info::device::global_mem_size>();
        out->max_allocation = d.get_info<sycl::info::device::max_mem_alloc_size>();
        out->int8_8x16x32 = has_product(d);
        return 1;
    });
}

octet_gpu_queue * open(int32_t cpu, int32_t index) {
    return guarded<octet_gpu_queue *>(nullptr, [&] {
        fault_point("open");
        // Faults of the device are rethrown by wait_and_throw().
        auto rethrow = [](sycl::exception_list list) {
            for (const std::exception_ptr & e : list) std::rethrow_exception(e);
        };
        return new octet_gpu_queue{
            sycl::queue(devices(cpu).at(size_t(index)), rethrow, sycl::property::queue::in_order{})};
    });
}

void close(octet_gpu_queue * q) {
    guarded<int>(0, [&] {
        delete q;
        return 0;
    });
}

uint64_t free_memory(octet_gpu_queue * q) {
    return guarded<uint64_t>(0, [&]() -> uint64_t {
        const sycl::device d = q->queue.get_device();
        if (!d.has(sycl::aspect::ext_intel_free_memory)) return 0;
        return d.get_info<sycl::ext::intel::info::device::free_memory>();
    });
}

void * allocate(octet_gpu_queue * q, size_t bytes, int32_t host) {
    return guarded<void *>(nullptr, [&] {
        fault_point("allocate");
        void * memory =
            host ? sycl::aligned_alloc_host(64, bytes, q->queue) : sycl::aligned_alloc_device(64, bytes, q->queue);
        if (!memory) set_error("out of memory");
        return memory;
    });
}

void release(octet_gpu_queue * q, void * memory) {
    guarded<int>(0, [&] {
        sycl::free(memory, q->queue);
        return 0;
    });
}

int32_t copy(octet_gpu_queue * q, void * to, const void * from, size_t bytes) {
    return guarded<int32_t>(0, [&] {
        fault_point("copy");
        q->queue.memcpy(to, from, bytes);
        return 1;
    });
}

int32_t launch(octet_gpu_queue * q, octet_gpu_kernel * k, const size_t global[2], const size_t local[2],
               const octet_gpu_argument * arguments, int32_t n) {
    return guarded<int32_t>(0, [&] {
        fault_point("launch");
        q->queue.submit([&](sycl::handler & h) {
            for (int32_t i = 0; i < n; ++i) {
                const octet_gpu_argument & a = arguments[i];
                if (a.size)
                    h.set_arg(i, sx::raw_kernel_arg(a.data, a.size));
                else
                    h.set_arg(i, const_cast<void *>(a.data));
            }
            h.parallel_for(sycl::nd_range<2>({global[0], global[1]}, {local[0], local[1]}), k->kernel);
        });
        return 1;
    });
}

int32_t wait(octet_gpu_queue * q) {
    return guarded<int32_t>(0, [&] {
        fault_point("wait");
        q->queue.wait_and_throw();
        return 1;
    });
}

octet_gpu_program * build(octet_gpu_queue * q, const octet_gpu_source * source) {
    std::string log;
    octet_gpu_program * built = guarded<octet_gpu_program *>(nullptr, [&] {
        fault_point("build");
        sx::include_files includes;
        for (int32_t i = 0; i < source->n_includes; ++i) {
            includes.add(source->include_names[i], source->include_texts[i]);
        }
        std::vector<std::string> options(source->options, source->options + source->n_options);
        auto bundle = sx::create_kernel_bundle_from_source(q->queue.get_context(), sx::source_language::sycl,
                                                           std::string(source->text), sx::properties{includes});
        auto ready =
            sx::build(bundle, {q->queue.get_device()}, sx::properties{sx::save_log{&log}, sx::build_options{options}});
        return new octet_gpu_program{ready, {}, {}};
    });
    // The compiler's first error says more than the exception.
    const size_t at = log.find("error:");
    if (!built && at != std::string::npos) {
        const size_t begin = log.rfind('\n', at) + 1;
        set_error(log.substr(begin, log.find('\n', at) - begin).c_str());
    }
    return built;
}

octet_gpu_program * load(octet_gpu_queue * q, const void * bytes, size_t size) {
    return guarded<octet_gpu_program *>(nullptr, [&] {
        fault_point("load");
        auto * data = static_cast<char *>(const_cast<void *>(bytes));
        return new octet_gpu_program{sx::get_kernel_bundle<sycl::bundle_state::executable>(
                                         q->queue.get_context(), {q->queue.get_device()}, sycl::span<char>(data, size)),
                                     {},
                                     {}};
    });
}

const void * contents(octet_gpu_program * p, size_t * size) {
    return guarded<const void *>(nullptr, [&]() -> const void * {
        p->contents = p->bundle.ext_oneapi_get_content();
        *size = p->contents.size();
        return p->contents.data();
    });
}

void free_program(octet_gpu_program * p) {
    guarded<int>(0, [&] {
        delete p;
        return 0;
    });
}

octet_gpu_kernel * kernel(octet_gpu_program * p, const char * name) {
    return guarded<octet_gpu_kernel *>(nullptr, [&] {
        fault_point("kernel");
        auto known = p->kernels.find(name);
        if (known == p->kernels.end()) {
            known =
                p->kernels.emplace(name, octet_gpu_kernel{p->bundle.ext_oneapi_get_kernel(std::string(name))}).first;
        }
        return &known->second;
    });
}

}  // namespace

const octet_gpu_driver * octet_gpu_driver_table() {
    static const octet_gpu_driver table = {OCTET_GPU_DRIVER_VERSION,
                                           error,
                                           count,
                                           info,
                                           open,
                                           close,
                                           free_memory,
                                           allocate,
                                           release,
                                           copy,
                                           launch,
                                           wait,
                                           build,
                                           load,
                                           contents,
                                           free_program,
                                           kernel};
    return &table;
}
