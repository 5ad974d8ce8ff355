#include "octet/groups.h"

#include <cstring>

namespace octet {

namespace {

Groups room_for_groups(int64_t n_experts, int64_t n_slots, Scratch & scratch) {
    int32_t * memory = scratch.get<int32_t>(size_t(2 * (n_experts + 1) + 2 * n_slots));
    std::memset(memory, 0, size_t(n_experts + 1) * sizeof(int32_t));
    return {n_experts, n_slots, memory, memory + n_experts + 1, memory + 2 * (n_experts + 1)};
}

void count_tiles(Groups & g, int tile_rows) {
    g.tile[0] = 0;
    for (int64_t e = 0; e < g.n_experts; ++e) {
        g.tile[e + 1] = g.tile[e] + int32_t((g.rows(e) + tile_rows - 1) / tile_rows);
    }
}

}  // namespace

bool group_by_expert(const Routing & r, int64_t n_experts, int tile_rows, Scratch & scratch, Groups * groups) {
    const int64_t n = r.n_used * r.n_tokens;
    Groups g = room_for_groups(n_experts, n, scratch);
    int32_t * expert = g.slot + n;
    for (int64_t t = 0; t < r.n_tokens; ++t) {
        for (int64_t s = 0; s < r.n_used; ++s) {
            int32_t id;
            std::memcpy(&id, r.ids + t * r.token_stride + s * r.slot_stride, 4);
            if (id < 0 || id >= n_experts) return false;
            expert[t * r.n_used + s] = id;
            ++g.first[id + 1];
        }
    }
    for (int64_t e = 0; e < n_experts; ++e) g.first[e + 1] += g.first[e];
    // Fills each group from its start; first[] moves to the ends and is moved back.
    for (int64_t i = 0; i < n; ++i) g.slot[g.first[expert[i]]++] = int32_t(i);
    for (int64_t e = n_experts; e > 0; --e) g.first[e] = g.first[e - 1];
    g.first[0] = 0;
    count_tiles(g, tile_rows);
    *groups = g;
    return true;
}

Groups single_group(int64_t rows, int tile_rows, Scratch & scratch) {
    Groups g = room_for_groups(1, rows, scratch);
    g.first[1] = int32_t(rows);
    for (int64_t i = 0; i < rows; ++i) g.slot[i] = int32_t(i);
    count_tiles(g, tile_rows);
    return g;
}

}  // namespace octet
