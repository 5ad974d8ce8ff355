#include "placement.h"

#include <algorithm>
#include "gpus.h"
#include "octet/formats.h"

namespace octet {

namespace {

// "blk.3." of "blk.3.ffn_up_exps.weight".
std::string layer_of(const std::string & name) {
    const size_t at = name.rfind("ffn_");
    return at == std::string::npos ? name : name.substr(0, at);
}

size_t bytes_of(const std::string & type, int64_t weights) {
    const Format * f = find_format(type.c_str());
    return f ? size_t(weights / f->block_weights) * size_t(f->block_bytes) : 0;
}

// Of all experts of the layer.
size_t bytes_of_layer(const Model & model, const std::string & name, const int64_t ne[4], size_t bytes) {
    const std::string layer = layer_of(name);
    auto is = [&](const char * part) { return name == layer + part; };
    const bool merged = is("ffn_gate_up_exps.weight");
    const int64_t weights = ne[0] * ne[1] * ne[2] / (merged ? 2 : 1);  // of one projection
    size_t sum = 0;
    for (const char * part :
         {"ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_gate_up_exps.weight", "ffn_down_exps.weight"}) {
        const bool both = std::string(part) == "ffn_gate_up_exps.weight";
        sum += is(part) ? bytes : bytes_of(model.type_of(layer + part), both ? 2 * weights : weights);
    }
    // Not announced: three projections, none above IQ4_NL's or this one's size.
    return sum > bytes ? sum : 3 * std::max(bytes, bytes_of("iq4_nl", weights));
}

}  // namespace

bool Placement::takes(const std::shared_ptr<const Model> & model, const std::string & name, const int64_t ne[4],
                      size_t bytes, uint64_t free, const std::string & title, const std::string & next) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (model_.lock() != model) {
        model_ = model;
        layers_.clear();
        promised_ = 0;
        told_ = false;
    }
    const std::string layer = layer_of(name);
    auto known = layers_.find(layer);
    if (known != layers_.end()) return known->second;

    const size_t needed = bytes_of_layer(*model, name, ne, bytes);
    const bool fits = promised_ + needed <= free;
    if (fits) promised_ += needed;
    layers_[layer] = fits;
    if (!fits && !told_) {
        const int taken = int(std::count_if(layers_.begin(), layers_.end(), [](const auto & l) { return l.second; }));
        say(title + " takes the experts of " + std::to_string(taken) + " layers and has no room for those of " + layer +
            " (" + std::to_string(needed >> 20) + " MiB): " + next);
        told_ = true;
    }
    return fits;
}

void Placement::filled() {
    std::lock_guard<std::mutex> lock(mutex_);
    layers_.clear();
    promised_ = 0;
}

}  // namespace octet
