// The functions that exist once per instruction set, behind one table.
//
// scalar is the definition: every other table gives the same bits for the same input.
#pragma once

#include <cstdint>

#include "octet/matrix.h"

namespace octet {

// Activation rows that a product takes at a time: the rows of an AMX tile; and with 8 weight registers,
// 16 accumulators and the scale they fill the 32 registers of AVX-512.
constexpr int kTileRows = 16;

enum class Glu { swiglu, geglu, reglu };

// Sixteen quantized activation rows, in the order the kernels read them: every row at a fixed distance
// from the first, so that one pointer walks through all of them.
//     q[k / chunk][16 rows][chunk] int8
//     d[k / group][16] the scales
//     offset[k / range][16] int32, -128 * sum(q) of each range of the weight: what has to be added to
//         a dot product of q with weights that carry an excess of 128
// group is activation_group(), chunk is activation_chunk(), range is the weight layout's.
struct Tile {
    int8_t * q;
    float * d;
    int32_t * offset;
};

// Tiles behind one another: rows 16 i .. 16 i + 15 are tile i.
struct Tiles {
    Tile first;
    int64_t q_size, d_size, offset_size;  // elements of one tile

    [[gnu::always_inline]] Tile at(int64_t i) const {
        return {first.q + i * q_size, first.d + i * d_size, first.offset + i * offset_size};
    }
    [[gnu::always_inline]] Tiles from(int64_t i) const { return {at(i), q_size, d_size, offset_size}; }
};

// The tiles of a weight's activations in memory that holds 16 x count of their elements.
static inline Tiles tiles_of(const Layout & l, int8_t * q, float * d, int32_t * offset) {
    return {{q, d, offset}, l.k * kTileRows, l.k / activation_group(l) * kTileRows, l.k / l.range * kTileRows};
}

// Rows that one call of a product takes at most: enough to decode a panel rarely, and their outputs
// (8 KiB) stay in the first-level cache.
constexpr int kMaxRows = 128;

// Panels that are multiplied together: AMX takes two, to multiply 2 x 2 tiles with as many loads as products; and
// the 256 bytes of outputs that four leave in a row share an entry of the TLB.
constexpr int kPanelsAtOnce = 4;

// Rows of whole tiles.
static inline int padded_rows(int rows) { return (rows + kTileRows - 1) / kTileRows * kTileRows; }

struct Kernels {
    const char * name;

    ReadBlocks read_blocks;

    // x[k] in place: per block of `block` columns, times signs[k] (+1, -1), the Walsh-Hadamard
    // butterflies with strides 1, 2, 4, ... and 1 / sqrt(block). block is 32, 64 or 128.
    void (*rotate)(float * x, int64_t k, int block, const float * signs);

    // One row onto the q8_1 grid, as row `row` of a tile: per group d = max|x| / 127, q = x / d rounded
    // half away from zero. A group of zeros, or so small that d underflows, gives d = 0, q = 0. A group
    // with a non-finite value gives d = NaN, q = 0.
    void (*quantize)(const float * x, const Layout & w, const Tile & tile, int row);

    // out[p][r][o] = row r of the tiles times weight row o of panel p < count, r < rows <= kMaxRows. For each
    // range of columns, ascending: acc = fma(float(integer dot), weight scale * activation scale, acc).
    // out has room for whole tiles, padded_rows(rows); rows beyond `rows` are left with anything. The panels
    // have the same k and range.
    void (*product)(const Panel * w, int count, const Tiles & x, int rows, float * out);

    // The same with float activations: acc = fma(x, weight, acc), columns ascending.
    void (*product_float)(const Panel & w, const float * const * x, int rows, float * out);

    // h[i] = act(g[i]) * u[i]
    void (*glu)(Glu op, const float * g, const float * u, float * h, int64_t n);

    // out[i] = w[0] * y[0][i] + w[1] * y[1][i] + ..., each product and each sum rounded, in this
    // order; rows of y are `stride` apart. w may be null: a plain sum.
    void (*weighted_sum)(const float * y, int64_t stride, const float * w, int count, float * out, int64_t n);
};

enum class Isa { scalar, avx2, avxvnni, avx512vnni, amx, neon, i8mm };
constexpr Isa kIsas[] = {Isa::scalar, Isa::avx2, Isa::avxvnni, Isa::avx512vnni, Isa::amx, Isa::neon, Isa::i8mm};

const char * isa_name(Isa isa);

// The table of an instruction set, or nullptr if this build or this machine (CPUID, and the
// registers the operating system saves) does not have it.
const Kernels * kernels_of(Isa isa);

// The fastest that this machine has.
Isa best_isa();

}  // namespace octet
