#include "execute.h"

#include <cstdio>
#include <cstring>
#include <new>

#include "../gpu/execute.h"
#include "../gpu/weights.h"
#include "match.h"
#include "octet/threads.h"
#include "status.h"

namespace octet {

using namespace ggml;

namespace {

const char * bytes_of(const Tensor * t) { return static_cast<const char *>(t->data); }
float * floats_of(const Tensor * t) { return static_cast<float *>(t->data); }
int64_t floats_between(const Tensor * t, int dim) { return int64_t(t->nb[dim] / sizeof(float)); }

// The weight as this op wants it.
Weight weight_for(const Stored & s, const Tensor * op) {
    Weight w = s.weight;
    w.float_products |= wants_float(op);
    return w;
}

// src1 may have more dimensions than the weight: each of its matrices is one product.
bool run_mul_mat(Engine & e, const Tensor * op) {
    Stored & s = *stored(op->src[0]);
    const Tensor * x = op->src[1];
    const Weight w = weight_for(s, op);
    const bool one = x->ne[2] * x->ne[3] == 1;
    const bool again = one && e.prepared == x && same_activations(e.prepared_for, w);
    e.prepared = nullptr;
    for (int64_t i3 = 0; i3 < x->ne[3]; ++i3) {
        for (int64_t i2 = 0; i2 < x->ne[2]; ++i2) {
            RowsIn rows{bytes_of(x) + i2 * int64_t(x->nb[2]) + i3 * int64_t(x->nb[3]), int64_t(x->nb[1])};
            float * out = floats_of(op) + i2 * floats_between(op, 2) + i3 * floats_between(op, 3);
            multiply(*e.kernels, w, rows, x->ne[1], out, floats_between(op, 1), e.space, e.n_threads, again);
        }
    }
    if (one) {
        e.prepared = x;
        e.prepared_for = w;
    }
    ++s.calls;
    s.products->add(x->ne[1] * x->ne[2] * x->ne[3]);
    return true;
}

Routing routing_of(const Tensor * ids) {
    return {bytes_of(ids), int64_t(ids->nb[0]), int64_t(ids->nb[1]), ids->ne[0], ids->ne[1]};
}

bool run_mul_mat_id(Engine & e, const Tensor * op) {
    Stored & s = *stored(op->src[0]);
    const Tensor *x = op->src[1], *ids = op->src[2];
    // Rows of x are [token][x->ne[1]]; they are one sequence if tokens follow each other without gaps.
    if (x->nb[2] != x->nb[1] * size_t(x->ne[1])) {
        if (x->ne[1] != 1) {
            std::fprintf(stderr, "octet: %s: expert input with gaps between tokens\n", s.name.c_str());
            return false;
        }
    }
    RowsIn rows{bytes_of(x), int64_t(x->ne[1] == 1 ? x->nb[2] : x->nb[1])};
    ++s.calls;
    float * out = floats_of(op);
    const int64_t out_stride = floats_between(op, 1);
    if (!wants_float(op) && multiply_on_gpu(s, rows, x->ne[1], routing_of(ids), out, out_stride)) return true;
    bring_to_cpu(s);
    s.expert_products->add(ids->ne[0] * ids->ne[1]);
    return multiply_by_expert(*e.kernels, weight_for(s, op), rows, x->ne[1], routing_of(ids), out, out_stride, e.space,
                              e.n_threads);
}

void count_chain(Stored & gate, const Stored & down, int64_t rows) {
    Count * count = gate.chain.load(std::memory_order_acquire);
    const Count * end = gate.ne[2] > 1 ? down.expert_products : down.products;
    if (!count || count->down != end) {
        count = &status().chain_counter(gate, down);
        gate.chain.store(count, std::memory_order_release);
    }
    count->add(rows);
}

bool run_matched_chain(Engine & e, const MatchedChain & m) {
    e.prepared = nullptr;
    const Tensor * x = m.gate->src[1];
    const bool dense = !m.weighted;
    Chain c{};
    c.gate = &m.gate_weight->weight;
    c.up = &m.up_weight->weight;
    c.down = &m.down_weight->weight;
    c.n_ff = m.glu->ne[0];
    c.up_row = m.gate == m.up ? c.n_ff : 0;
    glu_of(m.glu, &c.glu);
    c.x = {bytes_of(x), int64_t(x->nb[dense ? 1 : 2])};
    if (dense) {
        c.routing.n_used = 1;
        c.routing.n_tokens = x->ne[1];
    } else {
        const Tensor * w = m.weighted->src[1];
        c.routing = routing_of(m.gate->src[2]);
        c.weights = bytes_of(w);
        c.weight_slot_stride = int64_t(w->nb[1]);
        c.weight_token_stride = int64_t(w->nb[2]);
    }
    c.out = floats_of(m.out);
    c.out_stride = floats_between(m.out, 1);
    ++m.gate_weight->calls;
    if (m.up_weight != m.gate_weight) ++m.up_weight->calls;
    ++m.down_weight->calls;
    if (!dense) {
        if (run_chain_on_gpu(m, c)) return true;
        for (Stored * s : {m.gate_weight, m.up_weight, m.down_weight}) bring_to_cpu(*s);
    }
    count_chain(*m.gate_weight, *m.down_weight, c.routing.n_used * c.routing.n_tokens);
    return run_chain(*e.kernels, c, e.space, e.n_threads);
}

// ---- the neighbours, where no chain was matched. Row by row, on all threads.

template <typename F>
void for_rows(Engine & e, const Tensor * op, F f) {
    const int64_t rows = op->ne[1] * op->ne[2] * op->ne[3];
    auto work = [&](const Thread & thread) {
        int64_t first, last;
        thread.share(rows, &first, &last);
        for (int64_t i = first; i < last; ++i) f(i % op->ne[1], i / op->ne[1] % op->ne[2], i / op->ne[1] / op->ne[2]);
    };
    on_threads(e.n_threads, work);
}

float * row_of(const Tensor * t, int64_t i1, int64_t i2, int64_t i3) {
    return reinterpret_cast<float *>(static_cast<char *>(t->data) + size_t(i1) * t->nb[1] + size_t(i2) * t->nb[2] +
                                     size_t(i3) * t->nb[3]);
}

bool run_glu(Engine & e, const Tensor * op) {
    Glu glu;
    if (!glu_of(op, &glu)) return false;
    for_rows(e, op, [&](int64_t i1, int64_t i2, int64_t i3) {
        e.kernels->glu(glu, row_of(op->src[0], i1, i2, i3), row_of(op->src[1], i1, i2, i3), row_of(op, i1, i2, i3),
                       op->ne[0]);
    });
    return true;
}

bool run_weighting(Engine & e, const Tensor * op) {
    for_rows(e, op, [&](int64_t i1, int64_t i2, int64_t i3) {
        const float w = *row_of(op->src[1], i1, i2, i3);
        e.kernels->weighted_sum(row_of(op->src[0], i1, i2, i3), 0, &w, 1, row_of(op, i1, i2, i3), op->ne[0]);
    });
    return true;
}

bool run_sum(Engine & e, const Tensor * op) {
    for_rows(e, op, [&](int64_t i1, int64_t i2, int64_t i3) {
        const float *a = row_of(op->src[0], i1, i2, i3), *b = row_of(op->src[1], i1, i2, i3);
        float * out = row_of(op, i1, i2, i3);
        for (int64_t j = 0; j < op->ne[0]; ++j) out[j] = a[j] + b[j];
    });
    return true;
}

// A weight that turned out unusable fails the computation: nothing plausible must come of it.
bool usable(const Tensor * op) {
    Stored * s = stored(op->src[0]);
    if (!s || usable(*s)) return true;
    std::fprintf(stderr, "octet: %s: %s\n", s->name.c_str(), s->fault.c_str());
    return false;
}

bool run_node(Engine & e, const Tensor * op) {
    if (!usable(op)) return false;
    if (op->op != OP_MUL_MAT) e.prepared = nullptr;
    switch (op->op) {
        case OP_MUL_MAT: return run_mul_mat(e, op);
        case OP_MUL_MAT_ID: return run_mul_mat_id(e, op);
        case OP_GLU: return run_glu(e, op);
        case OP_MUL: return run_weighting(e, op);
        case OP_ADD: return run_sum(e, op);
        default: return false;
    }
}

}  // namespace

int compute(Engine & e, const Graph & graph) {
    e.prepared = nullptr;
    try {
        for (int i = 0; i < graph.n_nodes;) {
            const Tensor * node = graph.nodes[i];
            MatchedChain chain;
            bool ok = true;
            int taken = 1;
            if (is_view_op(node->op) || !(node->flags & FLAG_COMPUTE)) {
                // nothing to do
            } else if (match_chain(graph, i, &chain)) {
                ok = run_matched_chain(e, chain);
                taken = chain.nodes;
            } else {
                ok = run_node(e, node);
            }
            if (!ok) {
                std::fprintf(stderr, "octet: cannot compute %s (%s)\n", node->name, ggml_op_name(node->op));
                return STATUS_FAILED;
            }
            i += taken;
        }
    } catch (const std::bad_alloc &) {
        std::fprintf(stderr, "octet: out of memory for activations: use a smaller batch\n");
        return STATUS_ALLOC_FAILED;
    }
    return STATUS_SUCCESS;
}

}  // namespace octet
