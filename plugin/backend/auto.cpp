#include "auto.h"

#include <cstring>

#include "layout.h"
#include "octet/matrix.h"
#include "status.h"

namespace octet {

namespace {

std::string & stock() {
    static std::string description = "unknown";
    return description;
}

std::string by(int64_t a, int64_t b) { return std::to_string(a) + "x" + std::to_string(b); }

std::string chain_label(const std::string & gate_up, const std::string & down, int64_t embd, int64_t ff) {
    return "chain " + gate_up + ":" + down + " " + by(embd, ff);
}

// Where a weight stands in an expert layer.
struct Place {
    enum Role { none, gate, up, merged, down } role = none;
    std::string block;  // "blk.3."
    int64_t embd = 0, ff = 0;

    std::string name_of(Role r) const {
        const char * names[] = {"", "ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps"};
        return block + names[r] + ".weight";
    }
};

Place place_of(const std::string & name, const int64_t ne[4]) {
    Place p;
    p.block = name.substr(0, name.rfind("ffn_") == std::string::npos ? 0 : name.rfind("ffn_"));
    for (Place::Role role : {Place::gate, Place::up, Place::merged, Place::down}) {
        if (name == p.name_of(role)) p.role = role;
    }
    p.embd = p.role == Place::down ? ne[1] : ne[0];
    p.ff = p.role == Place::down ? ne[0] : p.role == Place::merged ? ne[1] / 2 : ne[1];
    return p;
}

// Whether our kernels could compute with another weight of the layer, as far as its type says.
bool fits(const Settings & s, const Model & model, const std::string & name, const int64_t ne[4]) {
    const Format * format = find_format(model.type_of(name).c_str());
    const TensorFacts * facts = model.find(name.c_str());
    Layout layout;
    return format && make_layout(*format, ne[0], 32, &layout) && !(facts && facts->rotation) &&
           filtered(s, name.c_str(), ne).empty();
}

// The label of the chain that a weight is part of; "" if it is in none.
std::string known_chain(const Settings & s, const Model & model, const Place & p, const int64_t ne[4]) {
    const bool merged = !model.type_of(p.name_of(Place::merged)).empty();
    const Place::Role first = merged ? Place::merged : Place::gate;
    const std::string gate_up = model.type_of(p.name_of(first)), down = model.type_of(p.name_of(Place::down));
    if (!merged && model.type_of(p.name_of(Place::up)) != gate_up) return "";
    const int64_t in[4] = {p.embd, merged ? 2 * p.ff : p.ff, ne[2], 1}, out[4] = {p.ff, p.embd, ne[2], 1};
    const bool whole = fits(s, model, p.name_of(first), in) && fits(s, model, p.name_of(Place::down), out) &&
                       (merged || fits(s, model, p.name_of(Place::up), in));
    return whole ? chain_label(gate_up, down, p.embd, p.ff) : "";
}

// A kept chain, measured here, that such a weight can be part of; "" if there is none, or if there are
// several with different results.
std::string possible_chain(const Settings & s, const Model & model, const Place & p, const std::string & type) {
    std::string found;
    double ratio = 0;
    for (const CurveCache::Entry & e : crossovers().entries()) {
        const std::string label = value_of(e.key, "layer");
        const size_t colon = label.find(':'), blank = label.rfind(' ');
        if (label.rfind("chain ", 0) != 0 || colon == std::string::npos || blank < colon) continue;
        const std::string gate_up = label.substr(6, colon - 6), down = label.substr(colon + 1, blank - colon - 1);
        if (label != chain_label(gate_up, down, p.embd, p.ff)) continue;
        if ((p.role == Place::down ? down : gate_up) != type || e.key != crossover_key(s, model, label)) continue;
        const double its = judge(*e.curve).weighted;
        if (!found.empty() && (its > 1) != (ratio > 1)) return "";
        found = label;
        ratio = its;
    }
    return found;
}

}  // namespace

CurveCache & crossovers() {
    static CurveCache * cache = new CurveCache(cache_folder());
    return *cache;
}

void set_stock(const std::string & description) { stock() = description; }

std::string label_of(const Settings & s, const Model & model, const char * name, const char * type,
                     const int64_t ne[4]) {
    const bool experts = ne[2] > 1;
    if (experts) {
        const Place p = place_of(name, ne);
        std::string chain;
        if (p.role != Place::none)
            chain = model.tensors_of_file.empty() ? possible_chain(s, model, p, type) : known_chain(s, model, p, ne);
        if (!chain.empty()) return chain;
    }
    return std::string(experts ? "experts " : "dense ") + type + " " + by(ne[1], ne[0]);
}

Key crossover_key(const Settings & s, const Model & model, const std::string & label) {
    static const std::string cpu = cpu_model();
    const int threads = model.n_threads > 0 ? model.n_threads : pack_threads();
    return {{"version", OCTET_VERSION},
            {"stock", stock()},
            {"cpu", cpu},
            {"isa", isa_name(s.isa)},
            {"layout", layout_name(packs(s, model))},
            {"threads", std::to_string(threads)},
            {"layer", label}};
}

bool of_this_machine(const Settings & s, const Key & key) {
    Model model;
    model.n_threads = std::atoi(value_of(key, "threads").c_str());
    model.packed = value_of(key, "layout") == layout_name(true);
    return key == crossover_key(s, model, value_of(key, "layer"));
}

}  // namespace octet
