#include "decide.h"

#include <cstring>

#include "auto.h"
#include "layout.h"
#include "octet/matrix.h"
#include "octet/rotation.h"

namespace octet {

namespace {

bool ends_with(const char * text, const char * end) {
    size_t n = std::strlen(text), m = std::strlen(end);
    return n >= m && std::strcmp(text + n - m, end) == 0;
}

// The weights that OCTET_QUANTIZE turns to int8: those the converter does by default. Routers,
// embeddings and the head keep their type.
bool quantizable(const char * name) {
    return std::strncmp(name, "blk.", 4) == 0 && ends_with(name, ".weight") && !std::strstr(name, "gate_inp");
}

Decision ordinary(std::string reason) {
    Decision d;
    d.reason = std::move(reason);
    return d;
}

// A weight that stock reads as well, after its switch has had its say. `ours` is what to do if the kernels
// here take it, `by_default` whether they do before anything was measured.
Decision by_switch(const Settings & s, const Model & model, const char * name, const char * type, const int64_t ne[4],
                   Switch rule, const char * variable, bool by_default, Decision ours) {
    if (rule == Switch::off) return ordinary(std::string(variable) + "=0");
    if (rule == Switch::on) return ours;
    const std::string why = std::string(variable) + "=auto: ";
    // The plain C++ kernels are for checking, not for speed.
    if (s.isa == Isa::scalar) return ordinary(why + "no vector instructions");
    ours.label = label_of(s, model, name, type, ne);
    Decision theirs = ordinary("");
    theirs.label = ours.label;
    const auto curve = crossovers().find(crossover_key(s, model, ours.label));
    ours.measured = theirs.measured = curve != nullptr;

    bool take = by_default;
    std::string measured = "not measured";
    if (curve) {
        const Verdict v = judge(*curve);
        measured = "measured: " + describe(v, "stock");
        if (v.clear && v.crossing == 0) {
            take = v.ours_few;
        } else if (v.clear && !packs(s, model)) {
            take = true;
            ours.by_rows = curve;
        } else if (v.clear) {
            // Packed weights cannot go back to stock for some batches.
            take = v.weighted > 1;
            measured += take ? "; ours on balance" : "; stock on balance";
        }
    }
    theirs.reason = why + (take || curve ? measured : "stock, " + measured);
    ours.reason += "; " + why + measured;
    return take ? ours : theirs;
}

// A tensor that octet wrote. If it is rotated nobody else can read it, so what would leave another
// tensor to the ordinary path makes this one go through float products.
Decision decide_listed(const Settings & s, const Model & model, const TensorFacts & facts, const Format & format,
                       const char * name, const char * type, const int64_t ne[4]) {
    Decision d;
    d.format = &format;
    d.rotation = facts.rotation;
    d.scale_group = facts.scale_group;
    d.path = Path::integer;
    d.reason = format.code_bits == 8 ? "int8" : format.name;
    if (facts.rotation) d.reason += ", rotated in blocks of " + std::to_string(facts.rotation);
    std::string why_not = filtered(s, name, ne);
    const Switch rule = format.code_bits == 8 ? s.w8a8 : s.moe;
    const char * variable = format.code_bits == 8 ? "OCTET_W8A8" : "OCTET_MOE";
    if (!facts.rotation) {
        if (!why_not.empty()) return ordinary(why_not);
        return by_switch(s, model, name, type, ne, rule, variable, true, d);
    }
    if (why_not.empty() && rule == Switch::off) why_not = std::string(variable) + "=0";
    if (!why_not.empty()) {
        d.path = Path::floating;
        d.reason = why_not + ", and rotated: float products";
    }
    return d;
}

}  // namespace

const char * path_name(Path path) {
    switch (path) {
        case Path::ordinary: return "ordinary";
        case Path::integer: return "int8";
        case Path::floating: return "float";
    }
    return "?";
}

Decision decide(const Settings & s, const Model & model, const char * name, const char * type, const int64_t ne[4],
                int op) {
    const bool experts = op == ggml::OP_MUL_MAT_ID;
    if (ne[3] != 1 || ne[0] < 1 || ne[1] < 1) return ordinary("more than 3 dimensions");
    if (!experts && (ne[2] != 1 || ne[1] == 1)) return ordinary("not a matrix");
    if (std::strstr(name, ".lora_")) return ordinary("LoRA");

    Layout layout;
    const Format * format = find_format(type);
    const TensorFacts * facts = model.find(name);
    if (facts) {
        if (!format || !make_layout(*format, ne[0], facts->scale_group, &layout)) {
            return ordinary("listed in the file, but its type and shape do not fit");
        }
        return decide_listed(s, model, *facts, *format, name, type, ne);
    }

    std::string why_not = filtered(s, name, ne);
    if (!why_not.empty()) return ordinary(why_not);

    if (s.quantize && quantizable(name)) {
        if (!packs(s, model)) return ordinary("the native layout keeps the file's blocks");
        Decision d;
        d.format = find_format("q8_0");
        d.rotation = rotation_block(ne[0], 128);
        d.scale_group = 0;
        d.quantize = true;
        if (!make_layout(*d.format, ne[0], 0, &layout)) return ordinary("K is not a multiple of 32");
        d.path = s.w8a8 == Switch::off ? Path::floating : Path::integer;
        d.reason = std::string("OCTET_QUANTIZE, from ") + type;
        return d;
    }

    if (!format) return ordinary(std::string("type ") + type);
    if (!make_layout(*format, ne[0], 32, &layout))
        return ordinary("K = " + std::to_string(ne[0]) + " does not fit " + type);
    // The embedding of a tied model is also in the CPU's memory: a second copy for the head is not worth it.
    if (std::strcmp(name, "token_embd.weight") == 0) return ordinary("shared with the embedding");

    Decision d;
    d.format = format;
    d.path = Path::integer;
    d.reason = std::string(type) + (experts ? " experts" : ", one scale per 32");
    if (experts) return by_switch(s, model, name, type, ne, s.moe, "OCTET_MOE", true, d);
    if (format->code_bits == 8) return by_switch(s, model, name, type, ne, s.w8a8, "OCTET_W8A8", true, d);
    return by_switch(s, model, name, type, ne, s.dense, "OCTET_DENSE", false, d);
}

}  // namespace octet
