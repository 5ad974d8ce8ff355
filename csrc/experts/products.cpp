// Scheduling of products: preparing rows, grouping them by expert, dividing the work. No SIMD here.
#include "octet/products.h"

#include <algorithm>
#include <cstring>

#include "octet/threads.h"

namespace octet {

bool same_activations(const Weight & a, const Weight & b) {
    return a.matrix.layout.k == b.matrix.layout.k && a.rotation == b.rotation && a.signs == b.signs &&
           a.float_products == b.float_products && a.matrix.layout.range == b.matrix.layout.range;
}

// Row i: q + i * k, d + i * (k / group), offset + i * (k / range); or, for float products, x + i * k.
struct Prepared {
    int64_t k, group, range;
    int8_t * q = nullptr;
    float * d = nullptr;
    int32_t * offset = nullptr;
    float * x = nullptr;
};

namespace {

Prepared room_for_rows(const Weight & w, int64_t rows, Scratch & q, Scratch & d, Scratch & offset, Scratch & x,
                       int n_threads) {
    const Layout & l = w.matrix.layout;
    Prepared p;
    p.k = l.k;
    p.group = activation_group(l);
    p.range = l.range;
    if (w.float_products) {
        p.x = x.get<float>(size_t(rows * l.k));
        return p;
    }
    p.q = q.get<int8_t>(size_t(rows * l.k));
    p.d = d.get<float>(size_t(rows * (l.k / p.group)));
    p.offset = offset.get<int32_t>(size_t(rows * (l.k / p.range)));
    p.x = w.rotation ? x.get<float>(size_t(n_threads * l.k)) : nullptr;  // one row per thread
    return p;
}

void prepare_row(const Kernels & kernels, const Weight & w, const Prepared & p, int64_t i, const float * x,
                 const Thread & thread) {
    float * copy = p.x ? p.x + (w.float_products ? i : thread.index) * p.k : nullptr;
    if (copy) std::memcpy(copy, x, size_t(p.k) * sizeof(float));
    if (w.rotation) kernels.rotate(copy, p.k, w.rotation, w.signs);
    if (w.float_products) return;
    kernels.quantize(w.rotation ? copy : x, p.k, p.group, p.range, p.q + i * p.k, p.d + i * (p.k / p.group),
                     p.offset + i * (p.k / p.range));
}

// tile[r][0..16) = panel times prepared rows row[0..m).
void tile_product(const Kernels & kernels, const Weight & w, const Panel & panel, const Prepared & p,
                  const int32_t * row, int m, float * tile) {
    if (w.float_products) {
        const float * x[kTileRows];
        for (int r = 0; r < m; ++r) x[r] = p.x + row[r] * p.k;
        kernels.product_float(panel, x, m, tile);
        return;
    }
    Rows rows;
    for (int r = 0; r < m; ++r) {
        rows.q[r] = p.q + row[r] * p.k;
        rows.d[r] = p.d + row[r] * (p.k / p.group);
        rows.offset[r] = p.offset + row[r] * (p.k / p.range);
    }
    kernels.product(panel, rows, m, tile);
}

// Slots (token * n_used + used) sorted by expert: those of expert e are slot[first[e] .. first[e + 1]).
struct Groups {
    int64_t n_experts, n_slots;
    int32_t * first;
    int32_t * slot;
};

bool group_by_expert(const Routing & r, int64_t n_experts, Scratch & buffer, Groups * groups) {
    int64_t n = r.n_used * r.n_tokens;
    int32_t * memory = buffer.get<int32_t>(size_t(n_experts + 1 + 2 * n));
    Groups g{n_experts, n, memory, memory + n_experts + 1};
    int32_t * expert = g.slot + n;
    std::memset(g.first, 0, size_t(n_experts + 1) * sizeof(int32_t));
    for (int64_t t = 0; t < r.n_tokens; ++t) {
        for (int64_t s = 0; s < r.n_used; ++s) {
            int32_t id;
            std::memcpy(&id, r.ids + t * r.token_stride + s * r.slot_stride, 4);
            if (id < 0 || id >= n_experts) return false;
            expert[t * r.n_used + s] = id;
            ++g.first[id + 1];
        }
    }
    for (int64_t e = 0; e < n_experts; ++e) g.first[e + 1] += g.first[e];
    // Fills each group from its start; first[] moves to the ends and is moved back.
    for (int64_t i = 0; i < n; ++i) g.slot[g.first[expert[i]]++] = int32_t(i);
    for (int64_t e = n_experts; e > 0; --e) g.first[e] = g.first[e - 1];
    g.first[0] = 0;
    *groups = g;
    return true;
}

// All rows in the one group of a dense weight.
Groups single_group(int64_t rows, Scratch & buffer) {
    int32_t * memory = buffer.get<int32_t>(size_t(2 + rows));
    Groups g{1, rows, memory, memory + 2};
    g.first[0] = 0;
    g.first[1] = int32_t(rows);
    for (int64_t i = 0; i < rows; ++i) g.slot[i] = int32_t(i);
    return g;
}

// Splits (expert with rows) x (panels) into units of a few panels, enough for the threads to even
// out: at least 8 per thread if there are so many panels, at most 16 panels each.
struct Units {
    int64_t panels, per_unit, units_per_expert, experts;

    Units(int64_t n, int64_t active_experts, int n_threads) : panels(panel_count(n)), experts(active_experts) {
        int64_t wanted = panels * experts / (8 * int64_t(n_threads));
        per_unit = std::clamp<int64_t>(wanted, 1, 16);
        units_per_expert = (panels + per_unit - 1) / per_unit;
    }
    int64_t count() const { return units_per_expert * experts; }
};

// f(expert, panel) for every panel of every expert that has rows, on whichever thread is free.
template <typename F>
void for_each_panel(const Groups & groups, int64_t n, int n_threads, Counter & counter, F f) {
    int64_t active = 0;
    for (int64_t e = 0; e < groups.n_experts; ++e) active += groups.first[e + 1] > groups.first[e];
    Units units(n, active, n_threads);
    int64_t unit, expert = -1, reached = -1;  // `expert` is the active expert number `reached`
    while ((unit = counter.take()) < units.count()) {
        while (reached < unit / units.units_per_expert) {
            ++expert;
            reached += groups.first[expert + 1] > groups.first[expert];
        }
        int64_t p = unit % units.units_per_expert * units.per_unit;
        for (int64_t end = std::min(p + units.per_unit, units.panels); p < end; ++p) f(expert, p);
    }
}

// Room for one panel that is packed on the fly, per thread.
uint8_t * panel_room(Workspace & space, std::initializer_list<const Weight *> weights, int n_threads, size_t * bytes) {
    *bytes = 0;
    for (const Weight * w : weights) {
        if (w->matrix.packed) continue;
        size_t need = w->matrix.layout.panel_bytes + pack_scratch_bytes(w->matrix.layout);
        *bytes = std::max(*bytes, (need + 63) / 64 * 64);
    }
    return *bytes ? space.panels.get<uint8_t>(*bytes * size_t(n_threads)) : nullptr;
}

// The rows of one group through one panel: put(tile, first, m) gets each tile of outputs.
template <typename F>
void panel_times_group(const Kernels & kernels, const Weight & w, int64_t expert, int64_t p, uint8_t * room,
                       const Prepared & x, const int32_t * row, int64_t rows, F put) {
    Panel panel = matrix_panel(w.matrix, expert, p, room);
    for (int64_t i = 0; i < rows; i += kTileRows) {
        alignas(64) float tile[kTileRows * kPanelRows];
        int m = int(std::min<int64_t>(kTileRows, rows - i));
        tile_product(kernels, w, panel, x, row + i, m, tile);
        put(tile, i, m);
    }
}

void copy_outputs(const float * from, float * to, int64_t panel, int64_t n) {
    int64_t valid = std::min<int64_t>(kPanelRows, n - panel * kPanelRows);
    std::memcpy(to + panel * kPanelRows, from, size_t(valid) * sizeof(float));
}

// Both multiplies: x has x_rows rows; slot i reads row source[i] and writes out + i * out_stride.
void multiply_groups(const Kernels & kernels, const Weight & w, const RowsIn & x, int64_t x_rows, const Groups & groups,
                     const int32_t * source, float * out, int64_t out_stride, Workspace & space, int n_threads) {
    Prepared p = room_for_rows(w, x_rows, space.x_q, space.x_d, space.x_offset, space.x_float, n_threads);
    size_t room_bytes;
    uint8_t * room = panel_room(space, {&w}, n_threads, &room_bytes);
    Counter counter;
    auto work = [&](const Thread & thread) {
        int64_t first, last;
        thread.share(x_rows, &first, &last);
        for (int64_t i = first; i < last; ++i) prepare_row(kernels, w, p, i, x.row(i), thread);
        thread.barrier();
        for_each_panel(groups, w.matrix.n, thread.count, counter, [&](int64_t e, int64_t panel) {
            const int32_t *slot = groups.slot + groups.first[e], *row = source + groups.first[e];
            panel_times_group(kernels, w, e, panel, room + room_bytes * size_t(thread.index), p, row,
                              groups.first[e + 1] - groups.first[e], [&](const float * tile, int64_t i, int m) {
                for (int r = 0; r < m; ++r) {
                    copy_outputs(tile + r * kPanelRows, out + slot[i + r] * out_stride, panel, w.matrix.n);
                }
            });
        });
    };
    on_threads(n_threads, work);
}

}  // namespace

void multiply(const Kernels & kernels, const Weight & w, const RowsIn & x, int64_t rows, float * out,
              int64_t out_stride, Workspace & space, int n_threads) {
    Groups groups = single_group(rows, space.groups);
    multiply_groups(kernels, w, x, rows, groups, groups.slot, out, out_stride, space, n_threads);
}

bool multiply_by_expert(const Kernels & kernels, const Weight & w, const RowsIn & x, int64_t x_rows_per_token,
                        const Routing & r, float * out, int64_t out_stride, Workspace & space, int n_threads) {
    Groups groups;
    if (!group_by_expert(r, w.matrix.n_experts, space.groups, &groups)) return false;
    int32_t * source = space.ids.get<int32_t>(size_t(groups.n_slots));
    for (int64_t i = 0; i < groups.n_slots; ++i) {
        int64_t token = groups.slot[i] / r.n_used, used = groups.slot[i] % r.n_used;
        source[i] = int32_t(token * x_rows_per_token + used % x_rows_per_token);
    }
    multiply_groups(kernels, w, x, r.n_tokens * x_rows_per_token, groups, source, out, out_stride, space, n_threads);
    return true;
}

bool run_chain(const Kernels & kernels, const Chain & c, Workspace & space, int n_threads) {
    const Routing & r = c.routing;
    const Weight &gate = *c.gate, &up = *c.up, &down = *c.down;
    const int64_t n_ff = c.n_ff, n_out = down.matrix.n;

    Groups groups;
    if (!group_by_expert(r, gate.matrix.n_experts, space.groups, &groups)) return false;
    const int64_t slots = groups.n_slots;
    int32_t * token = space.ids.get<int32_t>(size_t(slots));
    for (int64_t i = 0; i < slots; ++i) token[i] = groups.slot[i] / int32_t(r.n_used);

    float * weights = c.weights ? space.weights.get<float>(size_t(slots)) : nullptr;
    for (int64_t i = 0; weights && i < slots; ++i) {
        std::memcpy(weights + i, c.weights + i / r.n_used * c.weight_token_stride + i % r.n_used * c.weight_slot_stride,
                    4);
    }

    Prepared x = room_for_rows(gate, r.n_tokens, space.x_q, space.x_d, space.x_offset, space.x_float, n_threads);
    Prepared hp = room_for_rows(down, slots, space.h_q, space.h_d, space.h_offset, space.h_float, n_threads);
    // h and y are in order of the sorted slots, so that an expert's rows lie together.
    float * h = space.h.get<float>(size_t(slots * n_ff));
    float * y = space.y.get<float>(size_t(slots * n_out));
    int32_t * sorted = groups.slot;
    size_t room_bytes;
    uint8_t * room = panel_room(space, {&gate, &up, &down}, 2 * n_threads, &room_bytes);
    Counter first_half, second_half;

    auto work = [&](const Thread & thread) {
        int64_t begin, end;
        thread.share(r.n_tokens, &begin, &end);
        for (int64_t i = begin; i < end; ++i) prepare_row(kernels, gate, x, i, c.x.row(i), thread);
        thread.barrier();

        uint8_t * my_room = room + 2 * room_bytes * size_t(thread.index);
        for_each_panel(groups, n_ff, thread.count, first_half, [&](int64_t e, int64_t p) {
            const int64_t row = groups.first[e], rows = groups.first[e + 1] - row;
            Panel up_panel = matrix_panel(up.matrix, e, p + c.up_row / kPanelRows, my_room + room_bytes);
            panel_times_group(kernels, gate, e, p, my_room, x, token + row, rows,
                              [&](const float * g, int64_t i, int m) {
                alignas(64) float u[kTileRows * kPanelRows], act[kTileRows * kPanelRows];
                tile_product(kernels, up, up_panel, x, token + row + i, m, u);
                kernels.glu(c.glu, g, u, act, m * kPanelRows);
                for (int t = 0; t < m; ++t) copy_outputs(act + t * kPanelRows, h + (row + i + t) * n_ff, p, n_ff);
            });
        });
        thread.barrier();

        thread.share(slots, &begin, &end);
        for (int64_t i = begin; i < end; ++i) prepare_row(kernels, down, hp, i, h + i * n_ff, thread);
        thread.barrier();

        for_each_panel(groups, n_out, thread.count, second_half, [&](int64_t e, int64_t p) {
            int32_t index[kTileRows];
            Panel panel = matrix_panel(down.matrix, e, p, my_room);
            for (int64_t i = groups.first[e]; i < groups.first[e + 1]; i += kTileRows) {
                alignas(64) float tile[kTileRows * kPanelRows];
                int m = int(std::min<int64_t>(kTileRows, groups.first[e + 1] - i));
                for (int t = 0; t < m; ++t) index[t] = int32_t(i + t);
                tile_product(kernels, down, panel, hp, index, m, tile);
                for (int t = 0; t < m; ++t) copy_outputs(tile + t * kPanelRows, y + sorted[i + t] * n_out, p, n_out);
            }
        });
        thread.barrier();

        thread.share(r.n_tokens, &begin, &end);
        for (int64_t t = begin; t < end; ++t) {
            kernels.weighted_sum(y + t * r.n_used * n_out, n_out, weights ? weights + t * r.n_used : nullptr,
                                 int(r.n_used), c.out + t * c.out_stride, n_out);
        }
    };
    on_threads(n_threads, work);
    return true;
}

}  // namespace octet
