// What in a graph is ours.
#pragma once

#include "../abi/ggml.h"
#include "weights.h"

namespace octet {

// Whether this backend can run an op. While a model loads, the op is a dummy whose weight has no data
// yet, and the answer decides which buffer the weight gets.
bool supports(const ggml::Tensor * op);

// The whole layer that starts at graph node `first`. Of experts:
// MUL_MAT_ID gate and up (or merged), GLU, MUL_MAT_ID down, MUL by the weights, n_used views, ADDs.
// Dense: MUL_MAT gate and up, GLU, MUL_MAT down.
struct MatchedChain {
    const ggml::Tensor *gate, *up;  // products; the same node if merged
    const ggml::Tensor *glu, *down;
    const ggml::Tensor * weighted;  // MUL; null if dense
    const ggml::Tensor * out;       // last ADD; down if dense
    Stored *gate_weight, *up_weight, *down_weight;
    int nodes;  // of the graph, from `first` on
};

// False unless every intermediate result is used inside the pattern only, as often as the pattern
// says, so that none of them has to be written.
bool match_chain(const ggml::Graph & graph, int first, MatchedChain * chain);

// The GLU of a node; false for a variant that is not ours.
bool glu_of(const ggml::Tensor * node, Glu * glu);

// Whether the op was asked to keep its activations more precisely than int8.
bool wants_float(const ggml::Tensor * node);

}  // namespace octet
