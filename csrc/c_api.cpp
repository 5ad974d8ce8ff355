// The kernels as plain C functions: checks of arguments, and nothing else of its own.
#include "octet/c_api.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "isa/elementwise.h"
#include "octet/kernels.h"
#include "octet/products.h"
#include "octet/rotation.h"
#include "octet/threads.h"

struct octet_kernel_weight {
    octet::Weight weight;
    int seed;
    std::vector<float> signs;
    octet::Scratch panels;
};

namespace octet {
namespace {

thread_local std::string error;

struct Wrong : std::runtime_error {
    using std::runtime_error::runtime_error;
};

void require(bool ok, const char * what) {
    if (!ok) throw Wrong(what);
}

// f() in the default floating-point mode; its complaints become octet_kernel_error().
template <typename F>
int guarded(F f) {
    error.clear();
    try {
        f();
        return 0;
    } catch (const std::bad_alloc &) {
        error = "out of memory";
    } catch (const std::exception & why) {
        error = why.what();
    }
    return -1;
}

template <typename F>
void in_default_mode(F f) {
    auto work = [&](const Thread &) { f(); };
    on_threads(1, work);
}

const Kernels & kernels_named(const char * isa) {
    if (!isa) return *kernels_of(best_isa());
    for (Isa i : kIsas) {
        if (std::strcmp(isa_name(i), isa) != 0) continue;
        const Kernels * kernels = kernels_of(i);
        if (!kernels) throw Wrong(std::string(isa) + " is not available here");
        return *kernels;
    }
    throw Wrong(std::string(isa) + " is no instruction set known here");
}

Glu glu_named(const char * op) {
    require(op, "the GLU is NULL");
    if (std::strcmp(op, "swiglu") == 0) return Glu::swiglu;
    if (std::strcmp(op, "geglu") == 0) return Glu::geglu;
    if (std::strcmp(op, "reglu") == 0) return Glu::reglu;
    throw Wrong(std::string(op) + " is none of swiglu, geglu, reglu");
}

void check_rows(int64_t rows, int64_t k) {
    require(rows >= 0 && rows <= INT32_MAX, "rows is out of range");
    require(k > 0 && k % 32 == 0 && k <= INT32_MAX, "k is not a positive multiple of 32");
}

void check_rotation(int64_t k, int block, int seed) {
    require(block == 32 || block == 64 || block == 128, "the rotation block is none of 32, 64, 128");
    require(k % block == 0, "the rotation block does not divide k");
    require(seed >= 0 && seed <= 65535, "the seed is not in 0 ... 65535");
}

void check_threads(int n) { require(n >= 1 && n <= 256, "n_threads is not in 1 ... 256"); }

int64_t group_or_row(int64_t group, int64_t k) {
    if (group == 0) group = k;
    require(group > 0 && group % 32 == 0 && k % group == 0, "group is not a multiple of 32 that divides k");
    return group;
}

// Buffers that live until the thread ends: benchmarks call again and again.
Workspace & workspace() {
    thread_local Workspace space;
    return space;
}

// f(panel, number of rows, first row) for every panel of an expert.
template <typename F>
void for_panels(const Kernels & kernels, const Matrix & m, int64_t expert, F f) {
    Scratch room;
    uint8_t * buffer = m.packed ? nullptr : room.get<uint8_t>(unpacked_bytes(m.layout));
    for (int64_t p = 0; p < panel_count(m.n); ++p) {
        int64_t first = p * kPanelRows;
        f(matrix_panel(m, expert, p, kernels.read_blocks, buffer), int(std::min<int64_t>(kPanelRows, m.n - first)),
          first);
    }
}

void copy_tile(const float * tile, int rows, int columns, float * out, int64_t stride) {
    for (int r = 0; r < rows; ++r)
        std::memcpy(out + r * stride, tile + r * kPanelRows, size_t(columns) * sizeof(float));
}

// Tiles for kMaxRows rows and their memory, with access row by row.
class OwnTiles {
  public:
    explicit OwnTiles(const Layout & l)
        : k_(l.k), group_(activation_group(l)), chunk_(activation_chunk(l)), range_(l.range) {
        tiles = tiles_of(l, fresh<int8_t>(q_, kMaxRows * k_), fresh<float>(d_, kMaxRows * (k_ / group_)),
                         fresh<int32_t>(offset_, kMaxRows * (k_ / range_)));
    }

    void get(int i, int8_t * q, float * d) const {
        const Tile tile = tiles.at(i / kTileRows);
        const int row = i % kTileRows;
        for (int64_t j = 0; j < k_; j += 32) std::memcpy(q + j, tile_columns(tile, chunk_, row, j), 32);
        for (int64_t g = 0; g < k_ / group_; ++g) d[g] = tile.d[g * kTileRows + row];
    }

    void set(int i, const int8_t * q, const float * d) {
        const Tile tile = tiles.at(i / kTileRows);
        const int row = i % kTileRows;
        for (int64_t j = 0; j < k_; j += 32) std::memcpy(tile_columns(tile, chunk_, row, j), q + j, 32);
        for (int64_t g = 0; g < k_ / group_; ++g) tile.d[g * kTileRows + row] = d[g];
        for (int64_t r = 0; r < k_ / range_; ++r) {
            int32_t sum = 0;
            for (int64_t j = 0; j < range_; ++j) sum += q[r * range_ + j];
            tile.offset[r * kTileRows + row] = -128 * sum;
        }
    }

    Tiles tiles;

  private:
    template <typename T>
    static T * fresh(Scratch & scratch, int64_t count) {
        T * memory = scratch.get<T>(size_t(count));
        std::memset(memory, 0, size_t(count) * sizeof(T));
        return memory;
    }

    int64_t k_, group_, chunk_, range_;
    Scratch q_, d_, offset_;
};

// ids[n_tokens][n_used], dense.
Routing routing_of(const int32_t * ids, int64_t n_tokens, int64_t n_used) {
    require(n_tokens >= 0 && n_used >= 1 && n_tokens * n_used <= INT32_MAX, "n_tokens or n_used is out of range");
    require(ids || n_tokens == 0, "ids is NULL");
    return {reinterpret_cast<const char *>(ids), 4, 4 * n_used, n_used, n_tokens};
}

RowsIn dense_rows(const float * x, int64_t k) {
    return {reinterpret_cast<const char *>(x), k * int64_t(sizeof(float))};
}

void make_weight(const octet_kernel_weight_spec & s, octet_kernel_weight & w) {
    require(s.format && s.blocks, "format or blocks is NULL");
    const Format * format = find_format(s.format);
    if (!format) throw Wrong(std::string(s.format) + " is no format known here");
    Matrix & m = w.weight.matrix;
    require(s.n > 0 && s.n <= INT32_MAX && s.n_experts > 0 && s.n_experts <= INT32_MAX,
            "n or n_experts is out of range");
    require(make_layout(*format, s.k, s.scale_group, &m.layout), "k or scale_group does not suit the format");
    if (s.rotation) check_rotation(s.k, s.rotation, s.seed);
    m.n = s.n;
    m.n_experts = s.n_experts;
    m.packed = s.packed != 0;
    m.data = s.blocks;
    m.row_bytes = size_t(s.k / format->block_weights) * size_t(format->block_bytes);
    require(s.bytes == size_t(s.n_experts) * size_t(s.n) * m.row_bytes, "bytes does not agree with the shape");
    for (int64_t i = 0; i < s.n_experts * s.n; ++i) {
        require(shares_scale(m.layout, s.blocks + size_t(i) * m.row_bytes), "blocks of one range differ in scale");
    }
    w.weight.rotation = s.rotation;
    w.weight.float_products = s.float_products != 0;
    w.seed = s.seed;
    if (s.rotation) w.signs = rotation_signs(s.k, uint16_t(s.seed));
    w.weight.signs = s.rotation ? w.signs.data() : nullptr;
    if (!m.packed) return;

    uint8_t * panels = w.panels.get<uint8_t>(packed_bytes(m));
    Scratch scratch;
    uint8_t * room = scratch.get<uint8_t>(pack_scratch_bytes(m.layout));
    for (int64_t e = 0; e < m.n_experts; ++e) {
        for (int64_t p = 0; p < panel_count(m.n); ++p) {
            int64_t first = p * kPanelRows;
            pack_panel(m.layout, s.blocks + size_t(e * m.n + first) * m.row_bytes, m.row_bytes,
                       int(std::min<int64_t>(kPanelRows, m.n - first)),
                       panels + size_t(e * panel_count(m.n) + p) * m.layout.panel_bytes, room);
        }
    }
    m.data = panels;
}

}  // namespace
}  // namespace octet

using namespace octet;

const char * octet_kernel_error(void) { return error.c_str(); }

int octet_kernel_isas(const char ** names, int capacity) {
    int count = 0;
    for (Isa isa : kIsas) {
        if (!kernels_of(isa)) continue;
        if (names && count < capacity) names[count] = isa_name(isa);
        ++count;
    }
    return count;
}

int octet_kernel_format(const char * format, int64_t * block_weights, int64_t * block_bytes) {
    return guarded([&] {
        require(format && block_weights && block_bytes, "an argument is NULL");
        const Format * f = find_format(format);
        if (!f) throw Wrong(std::string(format) + " is no format known here");
        *block_weights = f->block_weights;
        *block_bytes = f->block_bytes;
    });
}

int octet_kernel_rotate(const char * isa, float * x, int64_t rows, int64_t k, int block, int seed) {
    return guarded([&] {
        const Kernels & kernels = kernels_named(isa);
        check_rows(rows, k);
        check_rotation(k, block, seed);
        require(x || rows == 0, "x is NULL");
        std::vector<float> signs = rotation_signs(k, uint16_t(seed));
        in_default_mode([&] {
            for (int64_t i = 0; i < rows; ++i) kernels.rotate(x + i * k, k, block, signs.data());
        });
    });
}

int octet_kernel_quantize(const char * isa, const float * x, int64_t rows, int64_t k, int64_t group, int8_t * q,
                          float * d) {
    return guarded([&] {
        const Kernels & kernels = kernels_named(isa);
        check_rows(rows, k);
        Layout layout{};
        layout.k = k;
        layout.range = group_or_row(group, k);
        require(layout.range <= kMaxRange, "group is too large for int32 sums");
        require((x && q && d) || rows == 0, "x, q or d is NULL");
        OwnTiles own(layout);
        in_default_mode([&] {
            for (int64_t i = 0; i < rows; ++i) {
                kernels.quantize(x + i * k, layout, own.tiles.first, 0);
                own.get(0, q + i * k, d + i * (k / layout.range));
            }
        });
    });
}

int octet_kernel_quantize_weights(const float * w, int64_t rows, int64_t k, int block, int seed, int64_t group,
                                  uint8_t * blocks) {
    return guarded([&] {
        check_rows(rows, k);
        group = group_or_row(group, k);
        if (block) check_rotation(k, block, seed);
        require((w && blocks) || rows == 0, "w or blocks is NULL");
        std::vector<float> signs;
        if (block) signs = rotation_signs(k, uint16_t(seed));
        std::vector<double> scratch(static_cast<size_t>(k));
        bool ok = true;
        in_default_mode([&] {
            for (int64_t i = 0; i < rows && ok; ++i) {
                ok = quantize_weights(w + i * k, k, block, signs.data(), group, scratch.data(),
                                      blocks + i * (k / 32 * 34));
            }
        });
        require(ok, "a weight is not finite, or its scale does not fit fp16");
    });
}

int octet_kernel_exp(const float * x, float * y, int64_t n) {
    return guarded([&] {
        require(n >= 0 && ((x && y) || n == 0), "x or y is NULL, or n negative");
        in_default_mode([&] {
            for (int64_t i = 0; i < n; ++i) y[i] = exp_clamped(x[i]);
        });
    });
}

int octet_kernel_glu(const char * isa, const char * op, const float * g, const float * u, float * h, int64_t n) {
    return guarded([&] {
        const Kernels & kernels = kernels_named(isa);
        const Glu glu_op = glu_named(op);
        require(n >= 0 && ((g && u && h) || n == 0), "g, u or h is NULL, or n negative");
        in_default_mode([&] { kernels.glu(glu_op, g, u, h, n); });
    });
}

int octet_kernel_weighted_sum(const char * isa, const float * y, const float * w, int count, float * out, int64_t n) {
    return guarded([&] {
        const Kernels & kernels = kernels_named(isa);
        require(count >= 1 && n >= 0, "count or n is out of range");
        require((y && out) || n == 0, "y or out is NULL");
        in_default_mode([&] { kernels.weighted_sum(y, n, w, count, out, n); });
    });
}

octet_kernel_weight * octet_kernel_weight_new(const octet_kernel_weight_spec * spec) {
    octet_kernel_weight * w = nullptr;
    int failed = guarded([&] {
        require(spec, "spec is NULL");
        w = new octet_kernel_weight();
        make_weight(*spec, *w);
    });
    if (!failed) return w;
    delete w;
    return nullptr;
}

void octet_kernel_weight_free(octet_kernel_weight * weight) { delete weight; }

size_t octet_kernel_weight_bytes(const octet_kernel_weight * weight) {
    return weight && weight->weight.matrix.packed ? packed_bytes(weight->weight.matrix) : 0;
}

int octet_kernel_dequantize(const octet_kernel_weight * weight, int64_t expert, float * out) {
    return guarded([&] {
        require(weight && out, "weight or out is NULL");
        require(expert >= 0 && expert < weight->weight.matrix.n_experts, "expert is out of range");
        const int64_t k = weight->weight.matrix.layout.k;
        for_panels(*kernels_of(Isa::scalar), weight->weight.matrix, expert,
                   [&](const Panel & panel, int valid, int64_t first) {
            for (int64_t g = 0; g < k / 32; ++g) {
                int8_t q[512];
                decode_group(panel, g, q);
                for (int j = 0; j < 32; ++j) {
                    for (int o = 0; o < valid; ++o) {
                        float scale = weight_scale(panel, 32 * g + j, o);
                        out[(first + o) * k + 32 * g + j] = float(q[64 * (j / 4) + 4 * o + j % 4]) * scale;
                    }
                }
            }
        });
    });
}

int octet_kernel_product(const char * isa, const octet_kernel_weight * weight, int64_t expert, const int8_t * q,
                         const float * d, int64_t rows, float * out) {
    return guarded([&] {
        const Kernels & kernels = kernels_named(isa);
        require(weight, "weight is NULL");
        require(rows >= 0 && rows <= INT32_MAX && ((q && d && out) || rows == 0), "q, d or out is NULL, or rows wrong");
        const Matrix & m = weight->weight.matrix;
        require(expert >= 0 && expert < m.n_experts, "expert is out of range");
        const int64_t k = m.layout.k, groups = k / activation_group(m.layout);
        OwnTiles own(m.layout);
        in_default_mode([&] {
            for (int64_t i = 0; i < rows; i += kMaxRows) {
                const int count = int(std::min<int64_t>(kMaxRows, rows - i));
                for (int r = 0; r < count; ++r) own.set(r, q + (i + r) * k, d + (i + r) * groups);
                for_panels(kernels, m, expert, [&](const Panel & panel, int valid, int64_t first) {
                    alignas(64) float result[kMaxRows * kPanelRows];
                    kernels.product(&panel, 1, own.tiles, count, result);
                    copy_tile(result, count, valid, out + i * m.n + first, m.n);
                });
            }
        });
    });
}

int octet_kernel_product_float(const char * isa, const octet_kernel_weight * weight, int64_t expert, const float * x,
                               int64_t rows, float * out) {
    return guarded([&] {
        const Kernels & kernels = kernels_named(isa);
        require(weight, "weight is NULL");
        require(rows >= 0 && rows <= INT32_MAX && ((x && out) || rows == 0), "x or out is NULL, or rows wrong");
        const Matrix & m = weight->weight.matrix;
        require(expert >= 0 && expert < m.n_experts, "expert is out of range");
        in_default_mode([&] {
            for (int64_t i = 0; i < rows; i += kTileRows) {
                const int count = int(std::min<int64_t>(kTileRows, rows - i));
                const float * row[kTileRows];
                for (int r = 0; r < count; ++r) row[r] = x + (i + r) * m.layout.k;
                for_panels(kernels, m, expert, [&](const Panel & panel, int valid, int64_t first) {
                    alignas(64) float result[kTileRows * kPanelRows];
                    kernels.product_float(panel, row, count, result);
                    copy_tile(result, count, valid, out + i * m.n + first, m.n);
                });
            }
        });
    });
}

int octet_kernel_multiply(const char * isa, const octet_kernel_weight * weight, const float * x, int64_t rows,
                          float * out, int n_threads) {
    return guarded([&] {
        const Kernels & kernels = kernels_named(isa);
        require(weight, "weight is NULL");
        require(rows >= 0 && rows <= INT32_MAX && ((x && out) || rows == 0), "x or out is NULL, or rows wrong");
        check_threads(n_threads);
        const Weight & w = weight->weight;
        multiply(kernels, w, dense_rows(x, w.matrix.layout.k), rows, out, w.matrix.n, workspace(), n_threads);
    });
}

int octet_kernel_multiply_by_expert(const char * isa, const octet_kernel_weight * weight, const float * x,
                                    int64_t x_rows, const int32_t * ids, int64_t n_tokens, int64_t n_used, float * out,
                                    int n_threads) {
    return guarded([&] {
        const Kernels & kernels = kernels_named(isa);
        require(weight, "weight is NULL");
        require((x && out) || n_tokens == 0, "x or out is NULL");
        check_threads(n_threads);
        const Routing routing = routing_of(ids, n_tokens, n_used);
        require(x_rows == 1 || x_rows == n_used, "x_rows is neither 1 nor n_used");
        const Weight & w = weight->weight;
        bool ok = multiply_by_expert(kernels, w, dense_rows(x, w.matrix.layout.k), x_rows, routing, out, w.matrix.n,
                                     workspace(), n_threads);
        require(ok, "an id is not an expert");
    });
}

int octet_kernel_run_chain(const char * isa, const octet_kernel_chain * chain, int n_threads) {
    return guarded([&] {
        const Kernels & kernels = kernels_named(isa);
        require(chain && chain->gate && chain->down, "chain, gate or down is NULL");
        check_threads(n_threads);
        const octet_kernel_weight *gate = chain->gate, *up = chain->up ? chain->up : chain->gate;
        const Matrix &gm = gate->weight.matrix, &um = up->weight.matrix, &dm = chain->down->weight.matrix;
        const bool merged = up == gate;
        Chain c{};
        c.gate = &gate->weight;
        c.up = &up->weight;
        c.down = &chain->down->weight;
        c.n_ff = dm.layout.k;
        c.up_row = merged ? c.n_ff : 0;
        c.glu = glu_named(chain->glu);
        require(gm.n == (merged ? 2 : 1) * c.n_ff && um.n == gm.n, "rows of gate and up do not agree with down's k");
        require(!merged || c.n_ff % kPanelRows == 0, "n_ff of merged gate and up is not a multiple of 16");
        require(gm.n_experts == um.n_experts && gm.n_experts == dm.n_experts, "the numbers of experts differ");
        require(gm.layout.k == um.layout.k && gm.layout.range == um.layout.range &&
                    gate->weight.rotation == up->weight.rotation &&
                    (!gate->weight.rotation || gate->seed == up->seed) &&
                    gate->weight.float_products == up->weight.float_products,
                "gate and up want different activations");
        if (chain->n_tokens == 0) return;
        require(chain->x && chain->out, "x or out is NULL");
        c.routing = routing_of(chain->ids, chain->n_tokens, chain->n_used);
        c.x = dense_rows(chain->x, gm.layout.k);
        c.weights = reinterpret_cast<const char *>(chain->weights);
        c.weight_slot_stride = 4;
        c.weight_token_stride = 4 * chain->n_used;
        c.out = chain->out;
        c.out_stride = dm.n;
        require(run_chain(kernels, c, workspace(), n_threads), "an id is not an expert");
    });
}
