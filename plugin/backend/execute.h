// Running the nodes of a graph that are ours.
#pragma once

#include "../abi/ggml.h"
#include "octet/products.h"

namespace octet {

// One per llama context.
struct Engine {
    const Kernels * kernels;
    int n_threads;
    Workspace space;

    // The input, and the weight it was prepared for, of the last product, if the next may use it again: q, k
    // and v, or gate and up, read the same tensor. Only within one graph, where a tensor that is still to
    // be read cannot have changed.
    const ggml::Tensor * prepared = nullptr;
    Weight prepared_for = {};
};

// Returns a ggml status. On failure one line has been printed.
int compute(Engine & engine, const ggml::Graph & graph);

}  // namespace octet
