// What the devices of this backend share.
#pragma once

#include "../abi/ggml.h"

namespace octet {

// A backend of a device that computes graphs as execute.h does.
ggml::Backend * make_backend(ggml::Device * device, const char * (*name)(ggml::Backend *) );

ggml::Registry * registry_of_backend();

}  // namespace octet
