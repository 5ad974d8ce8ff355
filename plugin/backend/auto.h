// What the value `auto` of a switch follows: timings of our kernels against stock's, taken once per
// machine and kind of layer. They are made outside (llama_octet/crossover.py, or any program that calls
// octet_crossover_keep); here they are found again.
#pragma once

#include <memory>
#include <string>

#include "crossover/cache.h"
#include "model.h"
#include "settings.h"

namespace octet {

// The kept curves of this process; the cache folder is read at the first call.
CurveCache & crossovers();

// How the alternative is set up: which ggml, with or without extra buffer types. Part of every key.
void set_stock(const std::string & description);

// What a weight's curve depends on besides the machine:
//     chain GATE_UP:DOWN EMBDxFF    a whole expert layer
//     experts TYPE ROWSxK           an expert product that is in no layer of that form
//     dense TYPE ROWSxK
// If the types of the model's other tensors are not known, a kept chain that this weight can belong to.
std::string label_of(const Settings & settings, const Model & model, const char * name, const char * type,
                     const int64_t ne[4]);

// A key of this process and this model.
Key crossover_key(const Settings & settings, const Model & model, const std::string & label);

// Whether a key differs from this process's only in what is measured, in the threads, and in the layout if that is
// chosen by model.
bool of_this_machine(const Settings & settings, const Key & key);

}  // namespace octet
