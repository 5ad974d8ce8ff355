// Scheduling of products: preparing rows, grouping them by expert, dividing the work. No SIMD here.
#include "octet/products.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "octet/threads.h"

namespace octet {

bool same_activations(const Weight & a, const Weight & b) {
    return a.matrix.layout.k == b.matrix.layout.k && a.rotation == b.rotation && a.signs == b.signs &&
           a.float_products == b.float_products && a.matrix.layout.range == b.matrix.layout.range;
}

namespace {

Tiles room_for_tiles(const Layout & l, int64_t count, Scratch & q, Scratch & d, Scratch & offset) {
    const int64_t rows = count * kTileRows;
    return tiles_of(l, q.get<int8_t>(size_t(rows * l.k)), d.get<float>(size_t(rows * (l.k / activation_group(l)))),
                    offset.get<int32_t>(size_t(rows * (l.k / l.range))));
}

// So few rows are prepared before the threads start: that takes a microsecond or two, and waiting for
// each other, where other programs want the cores too, much longer.
constexpr int64_t kRowsBefore = 2;

int64_t tile_count(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

template <int kChunk>
void copy_columns(const int8_t * from, int8_t * to, int64_t k) {
    for (int64_t c = 0; c < k; c += kChunk, from += kTileRows * kChunk, to += kTileRows * kChunk) {
        std::memcpy(to, from, kChunk);
    }
}

// Copies row `from_row` of one tile to row `to_row` of another.
void copy_row(const Layout & l, const Tile & from, int from_row, const Tile & to, int to_row) {
    const int64_t chunk = activation_chunk(l);
    const int8_t * from_q = from.q + from_row * chunk;
    int8_t * to_q = to.q + to_row * chunk;
    chunk == 64 ? copy_columns<64>(from_q, to_q, l.k) : copy_columns<32>(from_q, to_q, l.k);
    const int64_t groups = l.k / activation_group(l), ranges = l.k / l.range;
    for (int64_t g = 0; g < groups; ++g) to.d[g * kTileRows + to_row] = from.d[g * kTileRows + from_row];
    for (int64_t r = 0; r < ranges; ++r) to.offset[r * kTileRows + to_row] = from.offset[r * kTileRows + from_row];
}

// f(tile, first sorted position, rows) for this thread's share of all tiles.
template <typename F>
void for_my_tiles(const Groups & g, const Thread & thread, F f) {
    int64_t begin, end;
    thread.share(g.tiles(), &begin, &end);
    int64_t e = 0;
    for (int64_t t = begin; t < end; ++t) {
        while (g.tile[e + 1] <= t) ++e;
        const int64_t at = g.first[e] + (t - g.tile[e]) * kTileRows;
        f(t, at, int(std::min<int64_t>(kTileRows, g.first[e + 1] - at)));
    }
}

// Splits (expert with rows) x (panels) into units of a few panels, enough for the threads to even
// out: at least 8 per thread if there are so many panels, at most 16 panels each.
struct Units {
    int64_t panels, per_unit, per_expert, experts;

    Units(int64_t n, int64_t active_experts, int n_threads) : panels(panel_count(n)), experts(active_experts) {
        per_unit = std::clamp<int64_t>(panels * experts / (8 * int64_t(n_threads)), kPanelsAtOnce, 16);
        per_expert = (panels + per_unit - 1) / per_unit;
    }
    int64_t count() const { return per_expert * experts; }
};

// f(first sorted position, its tile, rows) for an expert's rows, kMaxRows at a time.
template <typename F>
void for_blocks(const Groups & g, int64_t e, F f) {
    for (int64_t i = 0; i < g.rows(e); i += kMaxRows) {
        f(g.first[e] + i, g.tile[e] + i / kTileRows, int(std::min<int64_t>(kMaxRows, g.rows(e) - i)));
    }
}

// Some rows of an expert and a few panels to multiply them with.
struct Piece {
    int64_t panel;
    int panels;
    int64_t at;    // first sorted position of the rows
    int64_t tile;  // that they begin
    int rows;      // at most kMaxRows
};

// read(expert, panel, panels), then f(piece), for all panels of every expert that has rows, on whichever thread is
// free. Of a unit's panels, which the second-level cache holds, all are multiplied with a block of rows before the
// next block; but panels that `read` has to decode are read once, for all blocks.
template <typename Read, typename F>
void for_each_piece(const Groups & groups, int64_t n, bool decodes, int n_threads, Counter & counter, Read read, F f) {
    int64_t active = 0;
    for (int64_t e = 0; e < groups.n_experts; ++e) active += groups.rows(e) > 0;
    Units units(n, active, n_threads);
    int64_t unit, expert = -1, reached = -1;  // `expert` is the active expert number `reached`
    while ((unit = counter.take()) < units.count()) {
        while (reached < unit / units.per_expert) {
            ++expert;
            reached += groups.rows(expert) > 0;
        }
        const int64_t first = unit % units.per_expert * units.per_unit;
        const int64_t last = std::min(first + units.per_unit, units.panels);
        auto for_panels = [&](auto few) {
            for (int64_t p = first; p < last; p += kPanelsAtOnce) {
                few(p, int(std::min<int64_t>(kPanelsAtOnce, last - p)));
            }
        };
        auto for_rows = [&](auto block) { for_blocks(groups, expert, block); };
        if (decodes) {
            for_panels([&](int64_t p, int count) {
                read(expert, p, count);
                for_rows([&](int64_t at, int64_t tile, int m) { f(Piece{p, count, at, tile, m}); });
            });
        } else {
            for_rows([&](int64_t at, int64_t tile, int m) {
                for_panels([&](int64_t p, int count) {
                    read(expert, p, count);
                    f(Piece{p, count, at, tile, m});
                });
            });
        }
    }
}

// Rows on their way into a product: what prepares them, and where they are afterwards.
class Input {
  public:
    Input(const Kernels & kernels, const Weight & w) : kernels_(kernels), w_(w), l_(w.matrix.layout) {}

    // Room for `rows` float rows, or for one a thread to rotate in.
    void room_for_floats(int64_t rows, int n_threads, Scratch & scratch) {
        if (w_.float_products) {
            floats_ = scratch.get<float>(size_t(rows * l_.k));
        } else if (w_.rotation) {
            floats_ = scratch.get<float>(size_t(n_threads * l_.k));
        }
    }

    // x goes to row `row` of `tile`; or, for float products, to float row i.
    void prepare(const float * x, int64_t i, const Tile & tile, int row, const Thread & thread) const {
        if (floats_) {
            float * copy = floats_ + (w_.float_products ? i : thread.index) * l_.k;
            std::memcpy(copy, x, size_t(l_.k) * sizeof(float));
            if (w_.rotation) kernels_.rotate(copy, l_.k, w_.rotation, w_.signs);
            x = copy;
        }
        if (!w_.float_products) kernels_.quantize(x, l_, tile, row);
    }

    // out[p][r][0..16) = panel p of `w` times the first rows of the tiles; or times float rows row[0..rows).
    void product(const Weight & w, const Panel * panels, int count, const Tiles & tiles, const int32_t * row, int rows,
                 float * out) const {
        if (!w.float_products) return kernels_.product(panels, count, tiles, rows, out);
        const float * x[kMaxRows];
        for (int r = 0; r < rows; ++r) x[r] = floats_ + row[r] * l_.k;
        for (int p = 0; p < count; ++p) {
            kernels_.product_float(panels[p], x, rows, out + p * padded_rows(rows) * kPanelRows);
        }
    }

  private:
    const Kernels & kernels_;
    const Weight & w_;
    const Layout & l_;
    float * floats_ = nullptr;
};

// Reads the panels of a piece; with room, per thread, for those of each weight that stays the file's blocks.
class Reader {
  public:
    Reader(const Kernels & kernels, Scratch & scratch, std::initializer_list<const Weight *> weights, int n_threads)
        : kernels_(kernels) {
        for (const Weight * w : weights) {
            if (w->matrix.packed) continue;
            bytes_ = std::max(bytes_, (unpacked_bytes(w->matrix.layout) + 63) / 64 * 64);
        }
        per_thread_ = weights.size() * kPanelsAtOnce;
        if (bytes_) room_ = scratch.get<uint8_t>(bytes_ * per_thread_ * size_t(n_threads));
    }

    // panels[i] = panel p + i of expert e. The weight is number `weight` of those above.
    void read(const Thread & thread, size_t weight, const Matrix & m, int64_t e, int64_t p, int count,
              Panel * panels) const {
        const size_t first = per_thread_ * size_t(thread.index) + weight * kPanelsAtOnce;
        for (int i = 0; i < count; ++i) {
            uint8_t * const room = bytes_ ? room_ + bytes_ * (first + size_t(i)) : nullptr;
            panels[i] = matrix_panel(m, e, p + i, kernels_.read_blocks, room);
        }
    }

  private:
    const Kernels & kernels_;
    size_t bytes_ = 0, per_thread_;
    uint8_t * room_ = nullptr;
};

// Where the outputs of a piece go: to(r) is its row r of all n. Rows lie far apart in memory: asked for before the
// product, they are in the cache after it.
template <typename F>
void expect_outputs(const Piece & piece, F to) {
    for (int r = 0; r < piece.rows; ++r) {
        for (int p = 0; p < piece.panels; ++p) __builtin_prefetch(to(r) + (piece.panel + p) * kPanelRows, 1);
    }
}

template <typename F>
void copy_outputs(const float * from, const Piece & piece, int64_t n, F to) {
    for (int r = 0; r < piece.rows; ++r) {
        for (int p = 0; p < piece.panels; ++p) {
            const int64_t first = (piece.panel + p) * kPanelRows, valid = n - first;
            const float * row = from + (p * padded_rows(piece.rows) + r) * kPanelRows;
            if (valid >= kPanelRows)
                std::memcpy(to(r) + first, row, kPanelRows * sizeof(float));
            else
                std::memcpy(to(r) + first, row, size_t(valid) * sizeof(float));
        }
    }
}

// Both multiplies: x has x_rows rows; sorted position i reads row source[i] and writes row slot[i] of
// out. If the rows are already in that order, the tiles they are prepared in serve as they are.
void multiply_groups(const Kernels & kernels, const Weight & w, const RowsIn & x, int64_t x_rows, const Groups & g,
                     const int32_t * source, bool prepared, float * out, int64_t out_stride, Workspace & space,
                     int n_threads) {
    const Layout & l = w.matrix.layout;
    const bool in_order = source == g.slot;
    Input input(kernels, w);
    input.room_for_floats(x_rows, n_threads, space.x_float);
    Tiles rows = room_for_tiles(l, tile_count(x_rows), space.x_q, space.x_d, space.x_offset);
    Tiles gathered = in_order ? rows : room_for_tiles(l, g.tiles(), space.e_q, space.e_d, space.e_offset);
    const Reader reader(kernels, space.panels, {&w}, n_threads);
    Counter counter;

    auto prepare = [&](const Thread & thread) {
        int64_t first, last;
        thread.share(x_rows, &first, &last);
        for (int64_t i = first; i < last; ++i) {
            input.prepare(x.row(i), i, rows.at(i / kTileRows), int(i % kTileRows), thread);
        }
    };
    const bool few = x_rows <= kRowsBefore;
    if (!prepared && few) on_threads(1, prepare);

    auto work = [&](const Thread & thread) {
        if (!prepared && !few) {
            prepare(thread);
            thread.barrier();
        }
        if (!in_order && !w.float_products) {
            for_my_tiles(g, thread, [&](int64_t t, int64_t at, int m) {
                for (int r = 0; r < m; ++r) {
                    const int32_t from = source[at + r];
                    copy_row(l, rows.at(from / kTileRows), from % kTileRows, gathered.at(t), r);
                }
            });
            thread.barrier();
        }
        Panel panels[kPanelsAtOnce];
        auto read = [&](int64_t e, int64_t p, int count) { reader.read(thread, 0, w.matrix, e, p, count, panels); };
        for_each_piece(g, w.matrix.n, !w.matrix.packed, thread.count, counter, read, [&](const Piece & piece) {
            alignas(64) float y[kPanelsAtOnce * kMaxRows * kPanelRows];
            auto to = [&](int r) { return out + g.slot[piece.at + r] * out_stride; };
            expect_outputs(piece, to);
            input.product(w, panels, piece.panels, gathered.from(piece.tile), source + piece.at, piece.rows, y);
            copy_outputs(y, piece, w.matrix.n, to);
        });
    };
    on_threads(n_threads, work);
}

}  // namespace

void multiply(const Kernels & kernels, const Weight & w, const RowsIn & x, int64_t rows, float * out,
              int64_t out_stride, Workspace & space, int n_threads, bool prepared) {
    Groups groups = single_group(rows, kTileRows, space.groups);
    multiply_groups(kernels, w, x, rows, groups, groups.slot, prepared, out, out_stride, space, n_threads);
}

bool multiply_by_expert(const Kernels & kernels, const Weight & w, const RowsIn & x, int64_t x_rows_per_token,
                        const Routing & r, float * out, int64_t out_stride, Workspace & space, int n_threads) {
    Groups groups;
    if (!group_by_expert(r, w.matrix.n_experts, kTileRows, space.groups, &groups)) return false;
    int32_t * source = space.ids.get<int32_t>(size_t(groups.n_slots));
    for (int64_t i = 0; i < groups.n_slots; ++i) {
        int64_t token = groups.slot[i] / r.n_used, used = groups.slot[i] % r.n_used;
        source[i] = int32_t(token * x_rows_per_token + used % x_rows_per_token);
    }
    multiply_groups(kernels, w, x, r.n_tokens * x_rows_per_token, groups, source, false, out, out_stride, space,
                    n_threads);
    return true;
}

bool run_chain(const Kernels & kernels, const Chain & c, Workspace & space, int n_threads) {
    const Routing & r = c.routing;
    const Weight &gate = *c.gate, &up = *c.up, &down = *c.down;
    const Layout &in = gate.matrix.layout, &mid = down.matrix.layout;
    const int64_t n_ff = c.n_ff, n_out = down.matrix.n;

    // A dense layer is one expert for every token, and nothing to sum: its rows are in order from end to end.
    const bool dense = !r.ids;
    const int64_t most_experts = std::max({gate.matrix.n_experts, up.matrix.n_experts, down.matrix.n_experts});
    if (dense && (most_experts > 1 || r.n_used != 1 || c.weights)) return false;
    Groups g;
    if (dense)
        g = single_group(r.n_tokens, kTileRows, space.groups);
    else if (!group_by_expert(r, gate.matrix.n_experts, kTileRows, space.groups, &g))
        return false;
    const int64_t slots = g.n_slots;
    int32_t * token = space.ids.get<int32_t>(size_t(2 * slots));
    int32_t * position = token + slots;  // the numbers 0, 1, 2, ...: float rows of h
    for (int64_t i = 0; i < slots; ++i) {
        token[i] = g.slot[i] / int32_t(r.n_used);
        position[i] = int32_t(i);
    }
    float * weights = c.weights ? space.weights.get<float>(size_t(slots)) : nullptr;
    for (int64_t i = 0; weights && i < slots; ++i) {
        const char * w = c.weights + i / r.n_used * c.weight_token_stride + i % r.n_used * c.weight_slot_stride;
        std::memcpy(weights + i, w, sizeof(float));
    }

    Input first_half(kernels, gate), second_half(kernels, down);
    first_half.room_for_floats(r.n_tokens, n_threads, space.x_float);
    second_half.room_for_floats(slots, n_threads, space.h_float);
    Tiles rows = room_for_tiles(in, tile_count(r.n_tokens), space.x_q, space.x_d, space.x_offset);
    Tiles x = dense ? rows : room_for_tiles(in, g.tiles(), space.e_q, space.e_d, space.e_offset);
    Tiles ht = room_for_tiles(mid, g.tiles(), space.h_q, space.h_d, space.h_offset);
    float * h = space.h.get<float>(size_t(slots * n_ff));                   // in sorted order
    float * y = dense ? c.out : space.y.get<float>(size_t(slots * n_out));  // in order of the slots
    const int64_t y_stride = dense ? c.out_stride : n_out;
    const Reader reader(kernels, space.panels, {&gate, &up, &down}, n_threads);
    Counter gate_units, down_units;

    auto work = [&](const Thread & thread) {
        int64_t begin, end;
        thread.share(r.n_tokens, &begin, &end);
        for (int64_t i = begin; i < end; ++i) {
            first_half.prepare(c.x.row(i), i, rows.at(i / kTileRows), int(i % kTileRows), thread);
        }
        thread.barrier();
        if (!dense && !gate.float_products) {
            for_my_tiles(g, thread, [&](int64_t t, int64_t at, int m) {
                for (int i = 0; i < m; ++i) {
                    const int32_t from = token[at + i];
                    copy_row(in, rows.at(from / kTileRows), from % kTileRows, x.at(t), i);
                }
            });
            thread.barrier();
        }

        // A panel of gate and one of up make a pair, so that their outputs meet in the cache.
        Panel gate_panels[kPanelsAtOnce], up_panels[kPanelsAtOnce];
        auto read_both = [&](int64_t e, int64_t p, int count) {
            reader.read(thread, 0, gate.matrix, e, p, count, gate_panels);
            reader.read(thread, 1, up.matrix, e, p + c.up_row / kPanelRows, count, up_panels);
        };
        const bool decodes = !gate.matrix.packed || !up.matrix.packed;
        for_each_piece(g, n_ff, decodes, thread.count, gate_units, read_both, [&](const Piece & piece) {
            alignas(64) float both[2 * kMaxRows * kPanelRows];
            auto to = [&](int r) { return h + (piece.at + r) * n_ff; };
            expect_outputs(piece, to);
            for (int i = 0; i < piece.panels; ++i) {
                const Panel pair[] = {gate_panels[i], up_panels[i]};
                first_half.product(gate, pair, 2, x.from(piece.tile), token + piece.at, piece.rows, both);
                kernels.glu(c.glu, both, both + padded_rows(piece.rows) * kPanelRows, both, piece.rows * kPanelRows);
                copy_outputs(both, {piece.panel + i, 1, piece.at, piece.tile, piece.rows}, n_ff, to);
            }
        });
        thread.barrier();

        for_my_tiles(g, thread, [&](int64_t t, int64_t at, int m) {
            for (int i = 0; i < m; ++i) second_half.prepare(h + (at + i) * n_ff, at + i, ht.at(t), i, thread);
        });
        thread.barrier();

        Panel panels[kPanelsAtOnce];
        auto read = [&](int64_t e, int64_t p, int count) { reader.read(thread, 2, down.matrix, e, p, count, panels); };
        for_each_piece(g, n_out, !down.matrix.packed, thread.count, down_units, read, [&](const Piece & piece) {
            alignas(64) float out[kPanelsAtOnce * kMaxRows * kPanelRows];
            auto to = [&](int r) { return y + g.slot[piece.at + r] * y_stride; };
            expect_outputs(piece, to);
            second_half.product(down, panels, piece.panels, ht.from(piece.tile), position + piece.at, piece.rows, out);
            copy_outputs(out, piece, n_out, to);
        });
        if (dense) return;
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
