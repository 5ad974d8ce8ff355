// Each file of this folder defines one of these. They are compiled with the flags of their
// instruction set, so nothing in them may be called before kernels_of() has looked at the machine,
// and nothing in them may be visible to the linker but the table.
#pragma once

#include "octet/kernels.h"

namespace octet {

extern const Kernels kScalarKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvxVnniKernels;
extern const Kernels kAvx512VnniKernels;
extern const Kernels kAmxKernels;
extern const Kernels kNeonKernels;
extern const Kernels kI8mmKernels;

}  // namespace octet
