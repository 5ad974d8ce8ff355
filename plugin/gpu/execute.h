// Expert products on graphics processors.
#pragma once

#include "../backend/match.h"
#include "octet/products.h"

namespace octet {

// Whether the device did it. If not, nothing is lost: the caller computes on the CPU. An id that is no
// expert is left to the caller as well.
bool run_chain_on_gpu(const MatchedChain & m, const Chain & chain);
bool multiply_on_gpu(Stored & s, const RowsIn & x, int64_t x_rows_per_token, const Routing & routing, float * out,
                     int64_t out_stride);

}  // namespace octet
