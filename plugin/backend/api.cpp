#include "api.h"

#include <cstdio>
#include <cstring>
#include <locale>
#include <memory>
#include <sstream>

#include "../gpu/weights.h"
#include "auto.h"
#include "decide.h"
#include "layout.h"
#include "status.h"

namespace octet {

static std::string registration_error;
static thread_local std::string call_error;
static thread_local bool called = false;

void set_error(const std::string & line) { registration_error = line; }

static int result(const std::string & wrong) {
    called = true;
    call_error = wrong;
    return wrong.empty() ? 0 : 1;
}

static size_t write(const std::string & text, char * out, size_t size) {
    if (out && size > text.size()) std::memcpy(out, text.c_str(), text.size() + 1);
    return text.size() + 1;
}

// Patterns that name nothing are a mistake in the environment, which the user should see.
static void warn_unmatched(const Model & model) {
    const std::pair<const char *, const std::vector<std::string> *> lists[] = {{"OCTET_INCLUDE", &settings().include},
                                                                               {"OCTET_EXCLUDE", &settings().exclude}};
    for (const auto & [variable, patterns] : lists) {
        for (const std::string & pattern : *patterns) {
            bool found = model.tensors_of_file.empty();
            for (const auto & [name, tensor] : model.tensors_of_file)
                found = found || matches_any({pattern}, name.c_str());
            if (!found) {
                std::fprintf(stderr, "octet: %s: %s has no tensor named %s\n", variable, model.path.c_str(),
                             pattern.c_str());
            }
        }
    }
}

static int begin(const std::shared_ptr<Model> & model, const std::string & wrong) {
    if (wrong.empty()) {
        warn_unmatched(*model);
        choose_layout(settings(), model.get());
        set_current_model(model);
        hold_lines();
    }
    return result(wrong);
}

static std::string number(double x) {
    std::ostringstream text;
    text.imbue(std::locale::classic());
    text << x;
    return text.str();
}

static std::string entry_json(const CurveCache::Entry & e) {
    std::string samples;
    for (const Sample & s : *e.curve) {
        samples += (samples.empty() ? "[" : ", [") + number(s.rows) + ", " + number(s.ours_ms) + ", " +
                   number(s.other_ms) + "]";
    }
    const Verdict v = judge(*e.curve);
    std::string text = "{\"label\": " + quoted(value_of(e.key, "layer"));
    for (const char * name : {"isa", "threads", "layout", "cpu", "version"})
        text += std::string(", \"") + name + "\": " + quoted(value_of(e.key, name));
    return text + ", \"current\": " + (of_this_machine(settings(), e.key) ? "true" : "false") + ", \"samples\": [" +
           samples + "], \"crossing\": " + (v.crossing > 0 ? number(v.crossing) : "null") +
           ", \"clear\": " + (v.clear ? "true" : "false") + ", \"weighted\": " + number(v.weighted) +
           ", \"verdict\": " + quoted(describe(v, "stock")) + "}";
}

}  // namespace octet

using namespace octet;

const char * octet_error() { return called ? call_error.c_str() : registration_error.c_str(); }

int octet_model_begin(const char * path) {
    auto model = std::make_shared<Model>();
    return begin(model, read_model(path, model.get()));
}

int octet_model_begin_read(const char * path, int seed, int64_t n_tensors, const char * const * names,
                           const char * const * types, const int64_t * shapes, const uint64_t * bytes,
                           const int32_t * rotations, const int32_t * scale_groups, int n_threads, int n_context) {
    auto model = std::make_shared<Model>();
    model->path = path;
    model->n_threads = n_threads;
    model->n_context = n_context;
    std::string wrong;
    if (seed < 0 || seed > 0xffff) wrong = "the seed " + std::to_string(seed) + " is not in 0 ... 65535";
    model->seed = uint16_t(seed);
    for (int64_t i = 0; i < n_tensors && wrong.empty(); ++i) {
        add_tensor(model.get(), names[i], types[i], shapes + 4 * i, bytes[i]);
        if (rotations[i] >= 0) wrong = add_facts(model.get(), names[i], {rotations[i], scale_groups[i]});
    }
    return begin(model, wrong.empty() ? "" : "'" + model->path + "': " + wrong);
}

void octet_use_gpus(const char * driver, const char * sources, const char * cache, const char * why_not) {
    use_gpus(driver ? driver : "", sources ? sources : "", cache ? cache : "", why_not ? why_not : "");
}

void octet_model_end() {
    const std::string line = layout_line(settings(), *current_model());
    if (!line.empty() && status().holds(*current_model())) say(line);
    set_current_model(nullptr);
    release_lines();
}

size_t octet_status(char * out, size_t size) { return write(status().json(), out, size); }

size_t octet_layout(char * out, size_t size) {
    const std::shared_ptr<const Model> model = current_model();
    return write("{\"layout\": " + quoted(layout_name(packs(settings(), *model))) +
                     ", \"reason\": " + quoted(model->layout_reason) + "}",
                 out, size);
}

size_t octet_decide(const char * name, const char * type, const int64_t ne[4], char * out, size_t size) {
    Decision d = decide(settings(), *current_model(), name, type, ne, op_of(ne));
    decide_where(*current_model(), name, type, ne, &d);
    return write("{\"path\": " + quoted(path_name(d.path)) + ", \"reason\": " + quoted(d.reason) +
                     ", \"label\": " + quoted(d.label) + ", \"measured\": " + (d.measured ? "true" : "false") + "}",
                 out, size);
}

size_t octet_model_faults(char * out, size_t size) { return write(status().faults(*current_model()), out, size); }

size_t octet_crossovers(char * out, size_t size) {
    std::string entries;
    for (const CurveCache::Entry & e : crossovers().entries()) entries += (entries.empty() ? "" : ", ") + entry_json(e);
    return write("{\"folder\": " + quoted(cache_folder()) + ", \"entries\": [" + entries + "]}", out, size);
}

void octet_set_stock(const char * description) { set_stock(description); }

int octet_crossover_keep(const char * label, int packed, int n_samples, const double * rows, const double * ours_ms,
                         const double * stock_ms) {
    Curve curve;
    for (int i = 0; i < n_samples; ++i) curve.push_back({rows[i], ours_ms[i], stock_ms[i]});
    if (!is_curve(curve)) return result(std::string(label) + ": the timings make no sense");
    Model model = *current_model();
    model.packed = packed != 0;
    if (crossovers().keep(crossover_key(settings(), model, label), curve)) return result("");
    result(cache_folder() + " cannot be written (OCTET_CACHE_DIR)");
    return 2;
}
