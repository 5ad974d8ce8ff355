// Rows of an expert layer sorted by the expert they go to, and the tiles they fill: the plan that every
// engine follows, on the CPU or on a GPU.
#pragma once

#include <cstdint>

#include "octet/scratch.h"

namespace octet {

// Which expert each of n_used slots of each of n_tokens tokens goes to; strides in bytes.
struct Routing {
    const char * ids;
    int64_t slot_stride, token_stride;
    int64_t n_used, n_tokens;
};

// Slots (token * n_used + used) sorted by expert, and the tiles that an expert's slots fill: expert e
// has sorted positions first[e] .. first[e + 1], in tiles tile[e] .. tile[e + 1]. Each expert starts a
// new tile.
struct Groups {
    int64_t n_experts, n_slots;
    int32_t *first, *tile, *slot;

    int64_t rows(int64_t e) const { return first[e + 1] - first[e]; }
    int64_t tiles() const { return tile[n_experts]; }
};

// Groups of tiles of `tile_rows` rows, in memory of `scratch`. Returns false if an id is not an expert.
bool group_by_expert(const Routing & routing, int64_t n_experts, int tile_rows, Scratch & scratch, Groups * groups);

// All rows in the one group of a dense weight, in their order.
Groups single_group(int64_t rows, int tile_rows, Scratch & scratch);

}  // namespace octet
