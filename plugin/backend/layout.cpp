#include "layout.h"

#include <cstdio>

#include "decide.h"
#include "memory.h"
#include "octet/matrix.h"

namespace octet {

namespace {

constexpr double kShare = 7.0 / 8;
constexpr int kContext = 4096;  // tokens, where it is not known
constexpr int kBatch = 512;     // tokens that llama.cpp computes at once, if nobody asks for another number

// Bytes of a weight if the kernels here may come to compute with it, also after a measurement; else of its
// tensor as it is.
double bytes_packed(const Settings & s, const Model & model, const std::string & name, const FileTensor & t) {
    const Decision d = decide(s, model, name.c_str(), t.type.c_str(), t.ne, op_of(t.ne));
    const Format * format = d.path == Path::ordinary && !d.label.empty() ? find_format(t.type.c_str()) : d.format;
    Matrix m{};
    m.n = t.ne[1];
    m.n_experts = t.ne[2];
    if (!format || !make_layout(*format, t.ne[0], d.scale_group, &m.layout)) return double(t.bytes);
    return double(packed_bytes(m));
}

// Keys and values of all layers as fp16. Where one matrix makes queries too, they are counted as well.
double context_bytes(const Model & model) {
    static const std::vector<std::string> made_of = {"*.attn_k.weight", "*.attn_v.weight", "*.attn_qkv.weight",
                                                     "*.attn_kv_a_mqa.weight"};
    double rows = 0;
    for (const auto & [name, t] : model.tensors_of_file) {
        if (matches_any(made_of, name.c_str())) rows += double(t.ne[1]);
    }
    return rows * 2 * (model.n_context > 0 ? model.n_context : kContext);
}

// The logits of a batch, the largest of a graph's results, in f32.
double activation_bytes(const Model & model) {
    const auto it = model.tensors_of_file.find("token_embd.weight");
    return it == model.tensors_of_file.end() ? 0 : double(it->second.ne[1]) * kBatch * sizeof(float);
}

std::string mebibytes(double bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.0f MiB", bytes / (1 << 20));
    return text;
}

}  // namespace

bool packs(const Settings & s, const Model & model) {
    return s.layout == LayoutChoice::automatic ? model.packed : s.layout == LayoutChoice::packed;
}

void choose_layout(const Settings & s, Model * model) {
    model->packed = true;
    model->layout_reason.clear();
    if (s.layout != LayoutChoice::automatic) {
        model->layout_reason = "OCTET_LAYOUT";
        return;
    }
    if (model->tensors_of_file.empty()) {
        model->layout_reason = "OCTET_LAYOUT=auto: the file's tensors are not known";
        return;
    }
    double weights = 0;
    for (const auto & [name, t] : model->tensors_of_file) weights += bytes_packed(s, *model, name, t);
    const double rest = context_bytes(*model) + activation_bytes(*model);
    const double available = double(available_memory());
    model->packed = weights + rest <= kShare * available;
    model->layout_reason = "OCTET_LAYOUT=auto: " + mebibytes(weights) + " if packed and " + mebibytes(rest) +
                           " for context and batch " + (model->packed ? "fit" : "do not fit") + " into 7/8 of the " +
                           mebibytes(available) + " available";
}

std::string layout_line(const Settings & s, const Model & model) {
    if (s.layout != LayoutChoice::automatic || model.path.empty()) return "";
    return model.path + ": weights " + (model.packed ? "are packed (" : "stay the file's blocks (") +
           model.layout_reason + ")";
}

}  // namespace octet
