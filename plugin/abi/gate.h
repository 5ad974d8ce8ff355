// Whether the running ggml is one that abi/ggml.h describes.
#pragma once

#include <string>

#include "ggml.h"

namespace ggml {

// "" if it is, else one line that says what differs.
std::string check_runtime();

// How many nodes of the whole graph read `t`, also from inside a view of the graph (a split); -1 if
// the graph does not know it.
int use_count(const Graph & graph, const Tensor * t);

}  // namespace ggml
