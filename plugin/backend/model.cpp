#include "model.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../abi/ggml.h"
#include "layout.h"
#include "status.h"

namespace octet {

namespace {

class Keys {
  public:
    explicit Keys(const char * path) : gguf_(ggml::gguf_init_from_file(path, {true, &tensors_})) {}
    ~Keys() {
        if (gguf_) ggml::gguf_free(gguf_);
        if (tensors_) ggml::ggml_free(tensors_);
    }
    bool open() const { return gguf_; }

    bool has(const char * key) const { return ggml::gguf_find_key(gguf_, key) >= 0; }

    bool u32(const char * key, uint32_t * value) const {
        int64_t id = ggml::gguf_find_key(gguf_, key);
        if (id < 0 || ggml::gguf_get_kv_type(gguf_, id) != ggml::KV_UINT32) return false;
        *value = ggml::gguf_get_val_u32(gguf_, id);
        return true;
    }

    bool is_text(const char * key, const char * expected) const {
        int64_t id = ggml::gguf_find_key(gguf_, key);
        return id >= 0 && ggml::gguf_get_kv_type(gguf_, id) == ggml::KV_STRING &&
               std::strcmp(ggml::gguf_get_val_str(gguf_, id), expected) == 0;
    }

    // The array of a key and its length, or -1 if it is no array of that type.
    int64_t array(const char * key, int type, int64_t * n) const {
        int64_t id = ggml::gguf_find_key(gguf_, key);
        if (id < 0 || ggml::gguf_get_kv_type(gguf_, id) != ggml::KV_ARRAY) return -1;
        if (ggml::gguf_get_arr_type(gguf_, id) != type) return -1;
        *n = int64_t(ggml::gguf_get_arr_n(gguf_, id));
        return id;
    }
    const int32_t * ints(int64_t id) const { return static_cast<const int32_t *>(ggml::gguf_get_arr_data(gguf_, id)); }
    const char * text(int64_t id, int64_t i) const { return ggml::gguf_get_arr_str(gguf_, id, size_t(i)); }

    void tensors(Model * model) const {
        if (has("split.count")) return;
        for (int64_t i = 0; i < ggml::gguf_get_n_tensors(gguf_); ++i) {
            const char * name = ggml::gguf_get_tensor_name(gguf_, i);
            const ggml::Tensor * t = ggml::ggml_get_tensor(tensors_, name);
            if (t) add_tensor(model, name, ggml::ggml_type_name(t->type), t->ne, ggml::ggml_nbytes(t));
        }
    }

  private:
    ggml::Context * tensors_ = nullptr;
    ggml::GgufContext * gguf_;
};

}  // namespace

std::string add_facts(Model * model, const std::string & name, TensorFacts facts) {
    bool known = (facts.rotation == 0 || facts.rotation == 32 || facts.rotation == 64 || facts.rotation == 128) &&
                 (facts.scale_group == 0 || facts.scale_group == 128 || facts.scale_group == 32);
    if (!known) {
        return name + " has rotation " + std::to_string(facts.rotation) + " and scale group " +
               std::to_string(facts.scale_group) + ", not known here: use a newer llama-octet";
    }
    model->tensors.emplace(name, facts);
    return "";
}

void add_tensor(Model * model, const char * name, const char * type, const int64_t ne[4], uint64_t bytes) {
    model->tensors_of_file.emplace(name, FileTensor{type, {ne[0], ne[1], ne[2], ne[3]}, bytes});
}

std::string read_model(const char * path, Model * model) {
    const std::string file = std::string("'") + path + "'";
    Keys keys(path);
    if (!keys.open()) return file + " is not a readable GGUF file";
    model->path = path;
    keys.tensors(model);

    uint32_t version = 0;
    if (!keys.has("octet.version")) return "";
    if (!keys.u32("octet.version", &version) || version != 1) {
        return file + ": octet.version " + std::to_string(version) +
               " is not known here (1 is): use a newer llama-octet";
    }
    int64_t n = 0, n_rotation = 0, n_group = 0;
    int64_t names = keys.array("octet.tensors", ggml::KV_STRING, &n);
    if (names < 0) return keys.has("octet.tensors") ? file + ": octet.tensors is not a list of names" : "";
    if (n == 0) return "";
    int64_t rotations = keys.array("octet.tensors.rotation", ggml::KV_INT32, &n_rotation);
    int64_t groups = keys.array("octet.tensors.scale_group", ggml::KV_INT32, &n_group);
    if (rotations < 0 || groups < 0 || n_rotation != n || n_group != n) {
        return file + ": octet.tensors.rotation and .scale_group must be as long as octet.tensors; convert it again";
    }

    bool rotated = false;
    for (int64_t i = 0; i < n; ++i) {
        TensorFacts facts{keys.ints(rotations)[i], keys.ints(groups)[i]};
        std::string wrong = add_facts(model, keys.text(names, i), facts);
        if (!wrong.empty()) return file + ": " + wrong;
        rotated |= facts.rotation != 0;
    }
    if (rotated) {
        uint32_t seed;
        if (!keys.is_text("octet.rotation.hash", "mix16") || !keys.is_text("octet.rotation.axis", "input") ||
            !keys.u32("octet.rotation.seed", &seed) || seed > 0xffff) {
            return file + ": octet.rotation.hash, .axis or .seed is missing or not known here: use a newer llama-octet";
        }
        model->seed = uint16_t(seed);
    }
    return "";
}

static thread_local std::shared_ptr<const Model> announced;

void set_current_model(std::shared_ptr<const Model> model) { announced = std::move(model); }

std::shared_ptr<const Model> current_model() {
    if (announced) return announced;
    static const std::shared_ptr<const Model> by_default = [] {
        auto model = std::make_shared<Model>();
        const char * path = std::getenv("OCTET_MODEL");
        if (path && *path) {
            std::string wrong = read_model(path, model.get());
            if (!wrong.empty()) {
                std::fprintf(stderr, "octet: OCTET_MODEL: %s\n", wrong.c_str());
                *model = Model();
            }
        }
        choose_layout(settings(), model.get());
        const std::string line = layout_line(settings(), *model);
        if (!line.empty()) std::fprintf(stderr, "octet: %s\n", line.c_str());
        return model;
    }();
    return by_default;
}

}  // namespace octet
