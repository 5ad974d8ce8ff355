#include "choose.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <random>

#include "../backend/auto.h"
#include "../backend/status.h"
#include "weights.h"

namespace octet {

namespace {

// Mean rows per expert at which both are timed. Below the first, int8 is not in doubt: it reads a quarter
// of the bytes and writes no fp16 copies.
constexpr double kMeanRows[] = {16, 32, 64, 128, 256};
constexpr int kExperts = 16, kRepeats = 3;
// A card takes a fraction of it. When it is used up, no more is repeated, and once there are enough numbers
// of rows the rest is left out.
constexpr double kMilliseconds = 2000;

double milliseconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// Random blocks of the same shape as a weight's experts, every d a small number.
gpu::OwnedWeight synthetic(gpu::Gpu & gpu, const Stored & like, std::mt19937 & random) {
    const Matrix & m = like.weight.matrix;
    const Format & f = *m.layout.format;
    gpu::DeviceWeight w{};
    w.k = m.layout.k;
    w.n = m.n;
    w.n_experts = kExperts;
    w.range = activation_group(m.layout);
    w.format = gpu::format_number(f.name, w.k, w.range);
    w.rotation = like.weight.rotation;
    w.row_bytes = m.row_bytes;
    std::vector<uint8_t> blocks(size_t(w.n_experts * w.n) * w.row_bytes);
    for (size_t i = 0; i + 4 <= blocks.size(); i += 4) {
        const uint32_t word = uint32_t(random());
        std::memcpy(&blocks[i], &word, 4);
    }
    for (size_t i = 0; i < blocks.size(); i += size_t(f.block_bytes)) {
        blocks[i] = 0;
        blocks[i + 1] = 0x10;  // fp16 0x1000 = 2^-11
    }
    return gpu::OwnedWeight(gpu, w, blocks.data(), like.weight.signs);
}

// Ids of `tokens` tokens, one expert each, uneven: expert e gets a share that falls to a quarter.
std::vector<int32_t> uneven_ids(int64_t tokens, std::mt19937 & random) {
    std::vector<double> share;
    for (int e = 0; e < kExperts; ++e) share.push_back(1.0 / (1.0 + 3.0 * e / (kExperts - 1)));
    std::discrete_distribution<int32_t> draw(share.begin(), share.end());
    std::vector<int32_t> ids(static_cast<size_t>(tokens));
    for (int32_t & id : ids) id = draw(random);
    return ids;
}

// Throws gpu::Error.
Curve measure(Graphics & g, const Stored & gate, const Stored & up, const Stored & down, const Chain & like) {
    std::mt19937 random(1);
    gpu::Runner runner(*g.gpu, g.runner->choices());  // its scratch goes with it
    const gpu::OwnedWeight a = synthetic(*g.gpu, gate, random), b = synthetic(*g.gpu, up, random),
                           c = synthetic(*g.gpu, down, random);
    const int64_t k = a.view().k, n = c.view().n;
    Curve curve;
    double spent = 0;
    for (double mean : kMeanRows) {
        if (curve.size() >= kLeastSamples && spent > kMilliseconds) break;
        const int64_t tokens = int64_t(mean) * kExperts;
        const std::vector<int32_t> ids = uneven_ids(tokens, random);
        std::vector<float> x(size_t(tokens * k)), out(size_t(tokens * n));
        for (size_t i = 0; i < x.size(); ++i) x[i] = float(int(random() % 255) - 127) / 64.0f;
        Chain chain = like;
        chain.x = {reinterpret_cast<const char *>(x.data()), k * int64_t(sizeof(float))};
        chain.routing = {reinterpret_cast<const char *>(ids.data()), 4, 4, 1, tokens};
        chain.weights = nullptr;
        chain.out = out.data();
        chain.out_stride = n;
        double best[2];
        for (int side = 0; side < 2; ++side) {
            const gpu::Arithmetic how = side ? gpu::Arithmetic::half : gpu::Arithmetic::int8;
            best[side] = std::numeric_limits<double>::max();
            for (int i = 0; i <= kRepeats; ++i) {  // the first one builds and allocates
                if (i > 1 && spent > kMilliseconds) break;
                const auto start = std::chrono::steady_clock::now();
                runner.run_chain(chain, a.view(), &gate == &up ? a.view() : b.view(), c.view(),
                                 [how](double) { return how; });
                if (i == 0) continue;
                const double ms = milliseconds_since(start);
                spent += ms;
                best[side] = std::min(best[side], ms);
            }
        }
        curve.push_back({mean, best[0], best[1]});
    }
    return curve;
}

std::string choices_of(const gpu::Runner & r) {
    return "MT " + std::to_string(r.choices().tiles) + " WG " + std::to_string(r.choices().work_groups) + " GRF " +
           std::to_string(settings().sycl_registers);
}

std::string by(int64_t a, int64_t b) { return std::to_string(a) + "x" + std::to_string(b); }

// The curve of a kind of layer: known, kept, or measured now. Null if it cannot be measured.
std::shared_ptr<const Curve> curve_of(Graphics & g, const Stored & gate, const Stored & up, const Stored & down,
                                      const Chain & chain, bool measure_now) {
    const octet_gpu_info & d = g.gpu->info();
    const std::string types = gate.kind + (up.kind == gate.kind ? "" : "+" + up.kind) + ":" + down.kind;
    const Key key = {{"layer", "sycl chain " + types + " " + by(gate.ne[0], chain.n_ff)},
                     {"device", d.name},
                     {"architecture", d.architecture},
                     {"driver", d.driver},
                     {"kernels", g.gpu->source_hash()},
                     {"choices", choices_of(*g.runner)},
                     {"version", OCTET_VERSION}};
    auto kept = crossovers().find(key);
    if (kept || !measure_now || g.not_measured.count(key[0].second)) return kept;
    try {
        const Curve curve = measure(g, gate, up, down, chain);
        crossovers().keep(key, curve);
        const Verdict v = judge(curve);
        say(g.name + ": " + key[0].second + ": measured int8 against fp16: " + describe(v, "fp16") +
            (v.clear ? "" : " (not clear)"));
        return crossovers().find(key);
    } catch (const gpu::Error & why) {
        say(g.name + ": int8 and fp16 cannot be compared (" + why.what() + "): int8 below " +
            std::to_string(int(kRowsWithoutMeasurement)) + " rows per expert");
        g.not_measured.insert(key[0].second);
        return nullptr;
    }
}

}  // namespace

gpu::ChooseArithmetic chooser(Graphics & g, const Stored & gate, const Stored & up, const Stored & down,
                              const Chain & chain) {
    const auto always = [](gpu::Arithmetic a) { return [a](double) { return a; }; };
    const auto only_half = [](const Stored & s) { return gpu::float_only(s.on_gpu->weight->view().format); };
    if (gate.weight.float_products || down.weight.float_products || only_half(gate) || only_half(up) || only_half(down))
        return always(gpu::Arithmetic::half);
    const bool int8_weights = gate.decision.format->code_bits == 8 && gate.kind == "int8";
    if ((int8_weights ? settings().w8a8 : settings().moe) == Switch::on || g.no_int8 || g.no_half) {
        return always(gpu::Arithmetic::int8);
    }
    // So many rows that a group of launches can have the least that is measured.
    const int64_t rows_in_all = chain.routing.n_used * chain.routing.n_tokens;
    if (rows_in_all < int64_t(kMeanRows[0])) return always(gpu::Arithmetic::int8);
    const auto curve = curve_of(g, gate, up, down, chain, rows_in_all >= int64_t(kMeanRows[0]) * kExperts);
    return [curve](double rows) {
        if (rows < kMeanRows[0]) return gpu::Arithmetic::int8;
        const bool int8 = curve ? ratio_at(*curve, rows) >= 1 : rows < kRowsWithoutMeasurement;
        return int8 ? gpu::Arithmetic::int8 : gpu::Arithmetic::half;
    };
}

}  // namespace octet
