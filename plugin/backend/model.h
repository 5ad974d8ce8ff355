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

struct Model {
    std::string path;
    uint16_t seed = 0;
    std::unordered_map<std::string, TensorFacts> tensors;  // those that octet wrote

    const TensorFacts * find(const char * name) const {
        auto it = tensors.find(name);
        return it == tensors.end() ? nullptr : &it->second;
    }
};

// Reads the octet.* keys of a GGUF (docs/format.md). Returns "" or one line.
std::string read_model(const char * path, Model * model);

// The announced model of this thread; else that of OCTET_MODEL; else one that says nothing.
std::shared_ptr<const Model> current_model();
void set_current_model(std::shared_ptr<const Model> model);

}  // namespace octet
