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
};

// Returns a ggml status. On failure one line has been printed.
int compute(Engine & engine, const ggml::Graph & graph);

}  // namespace octet
