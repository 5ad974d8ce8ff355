// What a model file says about its tensors, read when its loading is announced.
//
// A backend sees tensors, not files, so the loader announces the file before it loads it. The
// announcement belongs to the thread that makes it: llama.cpp creates and fills the weights of a
// model on the thread that loads it, and another thread may be loading another model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

namespace octet {

struct TensorFacts {
    int rotation;     // block, 0 = not rotated
    int scale_group;  // 0 = row, 128 or 32
};

// A tensor as the file has it.
struct FileTensor {
    std::string type;
    int64_t ne[4];
    uint64_t bytes;
};

struct Model {
    std::string path;
    uint16_t seed = 0;
    int n_threads = 0;                                            // it will be computed with; 0 = not known
    int n_context = 0;                                            // tokens; 0 = not known
    std::unordered_map<std::string, TensorFacts> tensors;         // those that octet wrote
    std::unordered_map<std::string, FileTensor> tensors_of_file;  // all of them; empty if not known

    // What OCTET_LAYOUT=auto comes to, and why (layout.h).
    bool packed = true;
    std::string layout_reason;

    const TensorFacts * find(const char * name) const {
        auto it = tensors.find(name);
        return it == tensors.end() ? nullptr : &it->second;
    }
    // "" if not known.
    std::string type_of(const std::string & name) const {
        auto it = tensors_of_file.find(name);
        return it == tensors_of_file.end() ? "" : it->second.type;
    }
};

// Notes what octet wrote about one tensor. Returns "" or one line that does not name the file.
std::string add_facts(Model * model, const std::string & name, TensorFacts facts);

void add_tensor(Model * model, const char * name, const char * type, const int64_t ne[4], uint64_t bytes);

// Reads the octet.* keys of a GGUF (docs/format.md) and its tensors' types and shapes; those of a split model
// are not known from its first file. Returns "" or one line.
std::string read_model(const char * path, Model * model);

// The announced model of this thread; else that of OCTET_MODEL; else one that says nothing.
std::shared_ptr<const Model> current_model();
void set_current_model(std::shared_ptr<const Model> model);

}  // namespace octet
