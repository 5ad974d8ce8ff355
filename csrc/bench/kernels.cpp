// Times the kernels alone: one fused expert layer, or one dense product, on random packed weights.
//
//     kernels_bench [isa] [gate_up] [down] [embd] [ff] [experts] [used] [threads] [tokens]
//
// Prints for 1, 8, 64 and 512 tokens, or those given: the median time, the least processor time per thread and, of the
// latter, integer operations per second (a product and a sum are two) and bytes of packed weights read per second.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "octet/products.h"

using namespace octet;

namespace {

std::mt19937 random_bits(1);

// A packed matrix of random blocks; scales are set to something ordinary so that no value overflows.
struct RandomMatrix {
    std::vector<uint8_t> memory;
    Weight weight{};

    RandomMatrix(const char * type, int64_t n, int64_t k, int64_t experts) {
        const bool int8 = std::strcmp(type, "int8") == 0;
        const Format * format = find_format(int8 ? "q8_0" : type);
        Matrix & m = weight.matrix;
        if (!format || !make_layout(*format, k, int8 ? 0 : 32, &m.layout)) {
            std::fprintf(stderr, "kernels_bench: no type '%s' with K = %lld\n", type, static_cast<long long>(k));
            std::exit(2);
        }
        m.n = n;
        m.n_experts = experts;
        m.packed = true;
        memory.resize(packed_bytes(m) + 64);
        uint8_t * base = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
        for (size_t p = 0; p < packed_bytes(m); p += m.layout.panel_bytes) {
            uint8_t * panel = base + p;
            for (size_t i = 0; i < m.layout.d_offset; i += 4) {
                uint32_t bits = random_bits();
                std::memcpy(panel + i, &bits, 4);
            }
            for (size_t i = m.layout.mult_offset; i < m.layout.d_offset; ++i) panel[i] &= 31;
            for (size_t i = m.layout.d_offset; i < m.layout.panel_bytes; i += 2) {
                uint16_t d = uint16_t(0x1000 + random_bits() % 64);
                std::memcpy(panel + i, &d, 2);
            }
        }
        m.data = base;
    }
};

double milliseconds(const std::chrono::steady_clock::time_point & since) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - since).count();
}

struct Timing {
    double median, cpu;  // ms: of the clock, and the least processor time per thread
};

template <typename F>
Timing time_calls(int threads, F f) {
    f();
    std::vector<double> times;
    double cpu = 1e30;
    auto begin = std::chrono::steady_clock::now();
    while (times.size() < 5 || (milliseconds(begin) < 1000 && times.size() < 2000)) {
        const auto start = std::chrono::steady_clock::now();
        const std::clock_t busy = std::clock();
        f();
        cpu = std::min(cpu, double(std::clock() - busy) / CLOCKS_PER_SEC * 1e3 / threads);
        times.push_back(milliseconds(start));
    }
    std::sort(times.begin(), times.end());
    return {times[times.size() / 2], cpu};
}

}  // namespace

int main(int argc, char ** argv) {
    auto text = [&](int i, const char * fallback) { return argc > i ? argv[i] : fallback; };
    auto number = [&](int i, int64_t fallback) { return argc > i ? std::atoll(argv[i]) : fallback; };
    const char *isa = text(1, "auto"), *gate_up = text(2, "iq3_s"), *down = text(3, "iq4_nl");
    const int64_t embd = number(4, 2560), ff = number(5, 640), experts = number(6, 64), used = number(7, 8);
    const int threads = int(number(8, 2));
    std::vector<int64_t> token_counts = {1, 8, 64, 512};
    if (argc > 9) token_counts = {number(9, 1)};

    const Kernels * kernels = kernels_of(best_isa());
    for (Isa i : kIsas) {
        if (std::strcmp(isa, isa_name(i)) == 0) kernels = kernels_of(i);
    }
    if (!kernels) {
        std::fprintf(stderr, "kernels_bench: this machine has no %s\n", isa);
        return 2;
    }
    RandomMatrix gate(gate_up, ff, embd, experts), up(gate_up, ff, embd, experts), dn(down, embd, ff, experts);
    std::printf("%s, %s:%s, %lldx%lld, %lld experts, %lld used, %d threads\n", kernels->name, gate_up, down,
                static_cast<long long>(embd), static_cast<long long>(ff), static_cast<long long>(experts),
                static_cast<long long>(used), threads);
    std::printf("%8s %10s %10s %8s %8s\n", "tokens", "median ms", "cpu ms", "TOPS", "GB/s");

    Workspace space;
    for (int64_t tokens : token_counts) {
        std::vector<float> x(size_t(tokens * embd)), out(size_t(tokens * embd)),
            w(size_t(tokens * used), 1.0f / float(used));
        std::vector<int32_t> ids(size_t(tokens * used)), all(size_t(experts), 0);
        std::normal_distribution<float> normal;
        for (float & v : x) v = normal(random_bits);
        std::vector<bool> touched(size_t(experts), false);
        for (int64_t e = 0; e < experts; ++e) all[size_t(e)] = int32_t(e);
        for (int64_t t = 0; t < tokens; ++t) {
            std::shuffle(all.begin(), all.end(), random_bits);
            for (int64_t s = 0; s < used; ++s) {
                ids[size_t(t * used + s)] = all[size_t(s)];
                touched[size_t(all[size_t(s)])] = true;
            }
        }
        Chain c{};
        c.gate = &gate.weight;
        c.up = &up.weight;
        c.down = &dn.weight;
        c.n_ff = ff;
        c.glu = Glu::swiglu;
        c.x = {reinterpret_cast<const char *>(x.data()), embd * 4};
        c.routing = {reinterpret_cast<const char *>(ids.data()), 4, used * 4, used, tokens};
        c.weights = reinterpret_cast<const char *>(w.data());
        c.weight_slot_stride = 4;
        c.weight_token_stride = used * 4;
        c.out = out.data();
        c.out_stride = embd;
        Timing time = time_calls(threads, [&] { run_chain(*kernels, c, space, threads); });
        double operations = 2.0 * 3.0 * double(embd * ff) * double(tokens * used);
        double share = double(std::count(touched.begin(), touched.end(), true)) / double(experts);
        double bytes = share * double(packed_bytes(gate.weight.matrix) + packed_bytes(up.weight.matrix) +
                                      packed_bytes(dn.weight.matrix));
        std::printf("%8lld %10.3f %10.3f %8.3f %8.2f\n", static_cast<long long>(tokens), time.median, time.cpu,
                    operations / time.cpu * 1e-9, bytes / time.cpu * 1e-6);
    }
}
