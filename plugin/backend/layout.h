// Whether a model's weights are re-encoded for the kernels or stay the file's blocks (OCTET_LAYOUT).
//
// One answer per model, given when its file is announced: the loader asks the device once per model
// whether it can use mapped memory.
#pragma once

#include <string>

#include "model.h"
#include "settings.h"

namespace octet {

inline const char * layout_name(bool packed) { return packed ? "packed" : "native"; }

// What an announced model was given; a model that nobody announced is packed unless the settings say native.
bool packs(const Settings & settings, const Model & model);

// Sets model->packed and model->layout_reason: packed if the packed weights, everything else in the file,
// the context and the largest activations fit into the memory that is available, less an eighth of it. An
// eighth, because what is left out (the rest of this process, other processes, and what the estimate misses)
// grows with the machine rather than with the model, and because swapping costs far more than blocks in place.
void choose_layout(const Settings & settings, Model * model);

// The choice for the user; "" if there was none.
std::string layout_line(const Settings & settings, const Model & model);

}  // namespace octet
