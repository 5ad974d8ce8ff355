// Which path a weight takes, and why. Decided once, when the weight is offered at load.
#pragma once

#include <memory>
#include <string>

#include "../abi/ggml.h"
#include "crossover/curve.h"
#include "model.h"
#include "octet/formats.h"
#include "settings.h"

namespace octet {

enum class Path {
    ordinary,  // not ours: the CPU backend
    integer,   // our int8 products
    floating,  // ours, dequantized and multiplied in f32
};

struct Decision {
    Path path = Path::ordinary;
    std::string reason;
    const Format * format = nullptr;  // of the bytes that are stored
    int rotation = 0;
    int scale_group = 32;
    bool quantize = false;  // the file's type is something else: int8 is made of it at load
    std::string label;      // of the measurement that `auto` asks for (auto.h); "" if none
    bool measured = false;  // whether there is one
    // If not null, stock computes wherever this says that it is faster.
    std::shared_ptr<const Curve> by_rows;
};

// op is OP_MUL_MAT or OP_MUL_MAT_ID; ne are the weight's dimensions.
Decision decide(const Settings & settings, const Model & model, const char * name, const char * type,
                const int64_t ne[4], int op);

// The op that reads a weight of that shape: experts are 3-D.
inline int op_of(const int64_t ne[4]) { return ne[2] > 1 ? ggml::OP_MUL_MAT_ID : ggml::OP_MUL_MAT; }

const char * path_name(Path path);

}  // namespace octet
