#include "runner.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "../kernels/launch.h"
#include "codebooks.inc"

namespace octet::gpu {

namespace dev = octet_device;

namespace {

constexpr int64_t kPanel = dev::kPanelRows, kRows = dev::kTileRows;

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

std::string option(const char * name, int64_t value) {
    return " -DOCTET_" + std::string(name) + "=" + std::to_string(value);
}

// Columns that a thread of octet_rows holds at a time.
int64_t chunk_of(int64_t k) { return k % 128 == 0 ? 128 : k % 64 == 0 ? 64 : 32; }

// Rows first_row ... first_row + n - 1 of every expert of a weight, whose products go to output column
// `column` on.
struct Part {
    const DeviceWeight * weight;
    int64_t first_row, n, column;

    const uint8_t * of(int64_t expert) const {
        return weight->data + size_t(expert * weight->n + first_row) * weight->row_bytes;
    }
};

// Jobs of one launch: a range of the plan's, all of one format.
struct Launch {
    const DeviceWeight * weight;
    int64_t n;
    size_t first, count;
    size_t first_dequantized, dequantized;  // matrices to turn to fp16 before
};

// What one set of launches works on: some experts, and the tiles of their rows.
struct LaunchGroup {
    std::vector<int32_t> experts;
    int64_t first_tile, tiles, rows;
    int tiles_per_thread;
    Arithmetic arithmetic;
    std::vector<Launch> launches[2];  // the products before and after the GLU
};

// Pieces of host memory that go to one piece of device memory.
class Pieces {
  public:
    template <typename T>
    void add(const std::vector<T> & from, const T ** to) {
        list_.push_back({from.data(), from.size() * sizeof(T), size_, reinterpret_cast<const void **>(to)});
        size_ += aligned(from.size() * sizeof(T));
    }
    size_t size() const { return size_; }

    void write(uint8_t * staging, const uint8_t * device) const {
        for (const Piece & p : list_) {
            if (p.size) std::memcpy(staging + p.offset, p.data, p.size);
            *p.to = device + p.offset;
        }
    }

  private:
    struct Piece {
        const void * data;
        size_t size, offset;
        const void ** to;
    };
    std::vector<Piece> list_;
    size_t size_ = 0;
};

// What the caller chooses, unless a weight leaves no choice.
ChooseArithmetic allowed(const ChooseArithmetic & choose, std::initializer_list<const DeviceWeight *> weights) {
    for (const DeviceWeight * w : weights) {
        if (float_only(w->format)) return [](double) { return Arithmetic::half; };
    }
    return choose;
}

}  // namespace

struct Runner::Plan {
    Groups g;
    std::vector<LaunchGroup> groups;
    int64_t most_tiles = 0;  // of a group
    Ran ran = {true, 0, 0};

    // Per position: its row of x; its row between the products, counted from the group's first position;
    // its output row. Negative for padding.
    std::vector<int32_t> source, between, slot;
    std::vector<float> weights;  // of the slots
    std::vector<dev::Job> jobs, dequantized;

    // The same in device memory.
    const int32_t *dev_source, *dev_between, *dev_slot;
    const float * dev_weights;
    const dev::Job *dev_jobs, *dev_dequantized;

    Plan(const Groups & by_expert, const Choices & choices, int64_t x_rows_per_token, int64_t n_used,
         const ChooseArithmetic & choose)
        : g(by_expert) {
        const size_t positions = size_t(g.tiles() * kRows);
        source.assign(positions, -1);
        between.assign(positions, -1);
        slot.assign(positions, -1);
        for (int64_t e = 0; e < g.n_experts; ++e) {
            if (g.rows(e) == 0) continue;
            if (groups.empty() || groups.back().experts.size() == size_t(dev::kMaxExperts)) {
                groups.push_back({{}, g.tile[e], 0, 0, 0, {}, {}});
            }
            LaunchGroup & of = groups.back();
            of.experts.push_back(int32_t(e));
            of.tiles = g.tile[e + 1] - of.first_tile;
            of.rows += g.rows(e);
            for (int64_t i = 0; i < g.rows(e); ++i) {
                const size_t p = size_t(g.tile[e] * kRows + i);
                const int32_t from = g.slot[g.first[e] + i];
                slot[p] = from;
                source[p] = int32_t(from / n_used * x_rows_per_token + from % n_used % x_rows_per_token);
                between[p] = int32_t(int64_t(p) - of.first_tile * kRows);
            }
        }
        for (LaunchGroup & of : groups) {
            most_tiles = std::max(most_tiles, of.tiles);
            of.tiles_per_thread =
                choices.tiles ? choices.tiles : dev::tiles_per_thread(of.tiles, int64_t(of.experts.size()));
            of.arithmetic = choose(double(of.rows) / double(of.experts.size()));
            (of.arithmetic == Arithmetic::half ? ran.half_rows : ran.int8_rows) += of.rows;
        }
    }

    bool any_half() const { return ran.half_rows > 0; }

    // The jobs of one side of the GLU. Parts whose weights are of one format share a launch. The matrices of
    // a group that takes fp16 go to the address `matrices`, where its jobs read them.
    void add_jobs(int side, std::initializer_list<Part> parts, uint64_t matrices) {
        for (LaunchGroup & of : groups) {
            const uint64_t half = of.arithmetic == Arithmetic::half ? matrices : 0;
            int32_t index = 0;  // of the matrix in half
            for (const Part & part : parts) {
                std::vector<Launch> & list = of.launches[side];
                const bool joins = !list.empty() && list.back().weight->format == part.weight->format &&
                                   list.back().n == part.n && list.back().weight->row_bytes == part.weight->row_bytes;
                if (!joins) list.push_back({part.weight, part.n, jobs.size(), 0, dequantized.size(), 0});
                for (int32_t e : of.experts) {
                    uint64_t address = uint64_t(reinterpret_cast<uintptr_t>(part.of(e)));
                    if (half) {
                        dequantized.push_back({address, 0, 0, index, {}});
                        address = half + uint64_t(index) * uint64_t(part.n * part.weight->k) * 2;
                        ++index;
                    }
                    const int64_t first = g.tile[e] - of.first_tile, end = g.tile[e + 1] - of.first_tile;
                    for (int64_t t = first; t < end; t += of.tiles_per_thread) {
                        jobs.push_back({address,
                                        int32_t(t),
                                        int32_t(std::min<int64_t>(of.tiles_per_thread, end - t)),
                                        int32_t(part.column),
                                        {}});
                    }
                }
                list.back().count = jobs.size() - list.back().first;
                list.back().dequantized = dequantized.size() - list.back().first_dequantized;
            }
        }
    }
};

const uint32_t * Runner::codebook(int format) {
    // Kernels of formats without a codebook take any address.
    if (dev::codebook_words(format) == 0) return reinterpret_cast<const uint32_t *>(none_.get<uint8_t>(gpu_, 64));
    Memory & memory = codebooks_[format];
    if (!memory.data()) {
        const uint32_t * words = format == dev::kIq3S     ? kCodebookIq3S
                                 : format == dev::kIq3Xxs ? kCodebookIq3Xxs
                                 : format == dev::kIq2S   ? kCodebookIq2S
                                 : format == dev::kIq2Xs  ? kCodebookIq2Xs
                                                          : kCodebookIq2Xxs;
        const size_t bytes = size_t(dev::codebook_words(format)) * sizeof(uint32_t);
        Memory fresh = gpu_.device_memory(bytes);
        gpu_.copy(fresh.data(), words, bytes);
        gpu_.wait();
        memory = std::move(fresh);
    }
    return reinterpret_cast<const uint32_t *>(memory.data());
}

void Runner::upload(Plan & p, size_t room_for_output) {
    Pieces pieces;
    pieces.add(p.source, &p.dev_source);
    pieces.add(p.between, &p.dev_between);
    pieces.add(p.slot, &p.dev_slot);
    pieces.add(p.weights, &p.dev_weights);
    pieces.add(p.jobs, &p.dev_jobs);
    pieces.add(p.dequantized, &p.dev_dequantized);
    const size_t staging = std::max(pieces.size(), room_for_output);
    if (staging > staging_.size()) {
        staging_ = Memory();
        staging_ = gpu_.host_memory(staging);
    }
    uint8_t * device = tables_.get<uint8_t>(gpu_, pieces.size());
    pieces.write(staging_.data(), device);
    gpu_.copy(device, staging_.data(), pieces.size());
}

// Rows as they lie, gaps included, so that one copy brings them.
const float * Runner::device_rows(const RowsIn & x, int64_t rows, int64_t k, int64_t * stride) {
    *stride = rows > 1 ? x.stride / int64_t(sizeof(float)) : k;
    const size_t floats = size_t((rows - 1) * *stride + k);
    float * to = x_.get<float>(gpu_, floats);
    gpu_.copy(to, x.data, floats * sizeof(float));
    return to;
}

// Room for the tiles of any group, before the first launch: memory that a launch uses must not move.
void Runner::reserve_tiles(const Plan & plan, std::initializer_list<const DeviceWeight *> readers) {
    const size_t rows = size_t(plan.most_tiles * kRows);
    size_t q = 1, d = 1;
    for (const DeviceWeight * w : readers) {
        q = std::max(q, rows * size_t(w->k) * (plan.any_half() ? 2 : 1));
        d = std::max(d, rows * size_t(w->k / std::max<int64_t>(32, w->range)));
    }
    q_.get<uint8_t>(gpu_, q);
    d_.get<float>(gpu_, d);
    none_.get<uint8_t>(gpu_, 64);
}

// Rows of a group to tiles, as `reader` wants them.
void Runner::prepare(const Plan & plan, size_t group, const float * x, const int32_t * source, int64_t stride,
                     const DeviceWeight & reader, int glu) {
    const bool half = plan.groups[group].arithmetic == Arithmetic::half;
    const int64_t k = reader.k, chunk = chunk_of(k), range = half ? 32 : std::max<int64_t>(32, reader.range);
    const size_t positions = size_t(plan.groups[group].tiles * kRows);
    void * q = q_.get<uint8_t>(gpu_, 1);
    float * d = d_.get<float>(gpu_, 1);
    const float * signs =
        reader.rotation ? reader.signs : reinterpret_cast<const float *>(none_.get<uint8_t>(gpu_, 64));
    const size_t parts = range == k && k > chunk ? 1 : size_t(k / chunk);
    gpu_.launch(gpu_.kernel("rows", option("GLU", glu) + option("CHUNK", chunk) + option("HALF", half)),
                {positions, parts}, {1, 1}, x, source, signs, q, d, int32_t(k), int32_t(stride), int32_t(range),
                int32_t(reader.rotation));
}

void Runner::multiply(const Plan & plan, size_t group, int side, const int32_t * slot, float * out, int64_t ldc) {
    const LaunchGroup & of = plan.groups[group];
    for (const Launch & l : of.launches[side]) {
        const int32_t k = int32_t(l.weight->k), n = int32_t(l.n);
        const size_t panels = size_t(n / kPanel);
        const dev::Job * jobs = plan.dev_jobs + l.first;
        const void * q = q_.get<uint8_t>(gpu_, 1);
        if (of.arithmetic == Arithmetic::half) {
            // One program serves every Q8_0.
            const bool q8_0 = l.weight->format >= dev::kInt8 && l.weight->format <= dev::kInt8Row;
            const int format = q8_0 ? int(dev::kInt8) : l.weight->format;
            gpu_.launch(gpu_.kernel("dequantize", option("FORMAT", format)), {l.dequantized, panels}, {1, 1},
                        plan.dev_dequantized + l.first_dequantized, codebook(format), half_.get<uint8_t>(gpu_, 1), k,
                        n);
            gpu_.launch(gpu_.kernel("product_half", option("MT", of.tiles_per_thread)), {l.count, panels}, {1, 1}, jobs,
                        q, out, slot, k, n, int32_t(ldc));
        } else {
            const size_t threads = choices_.work_groups ? size_t(dev::kGroupThreads) : 1;
            const std::string options = option("FORMAT", l.weight->format) + option("MT", of.tiles_per_thread) +
                                        option("WG", choices_.work_groups);
            gpu_.launch(gpu_.kernel("product", options), {l.count, (panels + threads - 1) / threads * threads},
                        {1, threads}, jobs, q, d_.get<float>(gpu_, 1), codebook(l.weight->format), out, slot, k, n,
                        int32_t(ldc));
        }
    }
}

Ran Runner::run_chain(const Chain & c, const DeviceWeight & gate, const DeviceWeight & up, const DeviceWeight & down,
                      const ChooseArithmetic & choose) {
    const Routing & r = c.routing;
    Groups g;
    if (!group_by_expert(r, gate.n_experts, int(kRows), groups_, &g)) return {false, 0, 0};
    if (g.n_slots == 0) return {true, 0, 0};
    Plan plan(g, choices_, 1, r.n_used, allowed(choose, {&gate, &up, &down}));
    plan.weights.assign(size_t(g.n_slots), 1.0f);
    for (int64_t i = 0; c.weights && i < g.n_slots; ++i) {
        const char * w = c.weights + i / r.n_used * c.weight_token_stride + i % r.n_used * c.weight_slot_stride;
        std::memcpy(&plan.weights[size_t(i)], w, sizeof(float));
    }

    // fp16 matrices of one group, first of gate and up, then of down.
    uint64_t matrices = 0;
    if (plan.any_half()) {
        const size_t most = size_t(std::max(2 * c.n_ff * gate.k, down.n * down.k)) * dev::kMaxExperts;
        matrices = uint64_t(reinterpret_cast<uintptr_t>(half_.get<uint8_t>(gpu_, most * 2)));
    }
    plan.add_jobs(0, {{&gate, 0, c.n_ff, 0}, {&up, c.up_row, c.n_ff, c.n_ff}}, matrices);
    plan.add_jobs(1, {{&down, 0, down.n, 0}}, matrices);
    // The output may overlap what the chain reads, which the CPU needs once more if the device fails half way:
    // then it is written when nothing can fail any more.
    const auto * out_end = reinterpret_cast<const char *>(c.out + (r.n_tokens - 1) * c.out_stride + down.n);
    const auto apart = [&](const char * data, int64_t bytes) {
        return data + bytes <= reinterpret_cast<const char *>(c.out) || out_end <= data;
    };
    const bool direct =
        c.out_stride == down.n && apart(c.x.data, (r.n_tokens - 1) * c.x.stride + gate.k * 4) &&
        apart(r.ids, (r.n_tokens - 1) * r.token_stride + r.n_used * r.slot_stride) &&
        (!c.weights || apart(c.weights, (r.n_tokens - 1) * c.weight_token_stride + r.n_used * c.weight_slot_stride));
    upload(plan, direct ? 0 : size_t(r.n_tokens * down.n) * sizeof(float));
    reserve_tiles(plan, {&gate, &down});
    for (const DeviceWeight * w : {&gate, &up, &down}) codebook(w->format);

    int64_t stride;
    const float * x = device_rows(c.x, r.n_tokens, gate.k, &stride);
    float * between = between_.get<float>(gpu_, size_t(plan.most_tiles * kRows * 2 * c.n_ff));
    float * y = y_.get<float>(gpu_, size_t(g.n_slots * down.n));
    float * out = out_.get<float>(gpu_, size_t(r.n_tokens * down.n));
    for (size_t i = 0; i < plan.groups.size(); ++i) {
        const int64_t first = plan.groups[i].first_tile * kRows;
        prepare(plan, i, x, plan.dev_source + first, stride, gate, 0);
        multiply(plan, i, 0, nullptr, between, 2 * c.n_ff);
        prepare(plan, i, between, plan.dev_between + first, 2 * c.n_ff, down, 1 + int(c.glu));
        multiply(plan, i, 1, plan.dev_slot + first, y, down.n);
    }

    const size_t columns = size_t((down.n + 15) / 16 * 16);
    gpu_.launch(gpu_.kernel("sum", ""), {size_t(r.n_tokens), columns}, {1, 16}, static_cast<const float *>(y),
                plan.dev_weights, out, int32_t(r.n_used), int32_t(down.n), int32_t(down.n));
    const size_t row = size_t(down.n) * sizeof(float);
    if (direct) {
        gpu_.copy(c.out, out, size_t(r.n_tokens) * row);
        gpu_.wait();
        return plan.ran;
    }
    gpu_.copy(staging_.data(), out, size_t(r.n_tokens) * row);
    gpu_.wait();
    for (int64_t t = 0; t < r.n_tokens; ++t) {
        std::memcpy(c.out + t * c.out_stride, staging_.data() + size_t(t) * row, row);
    }
    return plan.ran;
}

Ran Runner::multiply(const DeviceWeight & w, const RowsIn & x_rows, int64_t x_rows_per_token, const Routing & r,
                     float * out, const ChooseArithmetic & choose) {
    Groups g;
    if (!group_by_expert(r, w.n_experts, int(kRows), groups_, &g)) return {false, 0, 0};
    if (g.n_slots == 0) return {true, 0, 0};
    Plan plan(g, choices_, x_rows_per_token, r.n_used, allowed(choose, {&w}));
    uint64_t matrices = 0;
    if (plan.any_half()) {
        matrices =
            uint64_t(reinterpret_cast<uintptr_t>(half_.get<uint8_t>(gpu_, size_t(w.n * w.k) * dev::kMaxExperts * 2)));
    }
    plan.add_jobs(0, {{&w, 0, w.n, 0}}, matrices);
    upload(plan, 0);
    reserve_tiles(plan, {&w});
    codebook(w.format);
    int64_t stride;
    const float * x = device_rows(x_rows, r.n_tokens * x_rows_per_token, w.k, &stride);
    float * y = y_.get<float>(gpu_, size_t(g.n_slots * w.n));
    for (size_t i = 0; i < plan.groups.size(); ++i) {
        const int64_t first = plan.groups[i].first_tile * kRows;
        prepare(plan, i, x, plan.dev_source + first, stride, w, 0);
        multiply(plan, i, 0, plan.dev_slot + first, y, w.n);
    }
    gpu_.copy(out, y, size_t(g.n_slots * w.n) * sizeof(float));
    gpu_.wait();
    return plan.ran;
}

}  // namespace octet::gpu
