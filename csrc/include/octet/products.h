// Products of activations with weight matrices, and the fused chain of an expert layer.
//
// Nothing here depends on the number of threads or on which rows are computed together: every
// output is one sequence of operations.
#pragma once

#include <cstdint>

#include "octet/groups.h"
#include "octet/kernels.h"
#include "octet/scratch.h"

namespace octet {

// A weight and what its activations go through first.
struct Weight {
    Matrix matrix;
    int rotation;         // block, 0 = none
    const float * signs;  // k of them, if rotated
    bool float_products;  // dequantize and multiply in f32 instead of int8
};

// Whether rows prepared for one weight serve the other.
bool same_activations(const Weight & a, const Weight & b);

// Scratch of one caller at a time.
struct Workspace {
    Scratch x_q, x_d, x_offset, x_float;     // input rows, rotated and quantized, in order
    Scratch e_q, e_d, e_offset;              // the same rows, gathered for each expert
    Scratch h, h_q, h_d, h_offset, h_float;  // rows between the halves of a chain
    Scratch y;                               // outputs of experts before they are summed
    Scratch groups, ids, weights;            // rows by expert; copies of small inputs
    Scratch panels;                          // per thread, for matrices that are not packed
};

// f32 rows, any distance apart (in bytes; columns are contiguous).
struct RowsIn {
    const char * data;
    int64_t stride;
    const float * row(int64_t i) const { return reinterpret_cast<const float *>(data + i * stride); }
};

// out[i][0..n) = W x[i] for i < rows, out rows out_stride floats apart. `prepared` says that the last call
// with this workspace was a multiply of the same x by a weight with same_activations(): its rotated and
// quantized rows are used again.
void multiply(const Kernels & kernels, const Weight & w, const RowsIn & x, int64_t rows, float * out,
              int64_t out_stride, Workspace & space, int n_threads, bool prepared = false);

// out[t][s] = W[expert(t, s)] x[t * x_rows_per_token + s % x_rows_per_token], slots contiguous:
// out + (t * n_used + s) * out_stride. Returns false if an id is not an expert.
bool multiply_by_expert(const Kernels & kernels, const Weight & w, const RowsIn & x, int64_t x_rows_per_token,
                        const Routing & routing, float * out, int64_t out_stride, Workspace & space, int n_threads);

// gate, up -> GLU -> down -> times the token's weights -> sum over its experts. Or a dense layer, gate, up -> GLU ->
// down: routing has no ids, but n_used = 1 and n_tokens, and there are no weights.
struct Chain {
    const Weight * gate;
    const Weight * up;  // the same as gate if merged
    const Weight * down;
    int64_t n_ff;    // rows of gate and of up
    int64_t up_row;  // first row of up in its matrix: n_ff if merged, else 0; multiple of 16
    Glu glu;
    RowsIn x;  // one row per token
    Routing routing;
    const char * weights;                             // f32 [slot][token], or null: a plain sum
    int64_t weight_slot_stride, weight_token_stride;  // bytes
    float * out;                                      // [token][down.n]
    int64_t out_stride;                               // floats
};

// x, ids and weights are read before anything is written to out, which may overlap them.
// Returns false if an id is not an expert, or if there are no ids and it is no dense layer.
bool run_chain(const Kernels & kernels, const Chain & chain, Workspace & space, int n_threads);

}  // namespace octet
