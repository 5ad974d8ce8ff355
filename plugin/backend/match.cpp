#include "match.h"

#include "../abi/gate.h"
#include "status.h"

namespace octet {

using namespace ggml;

namespace {

bool is_f32(const Tensor * t) { return t && t->type == TYPE_F32 && t->nb[0] == sizeof(float); }

bool same_shape(const Tensor * a, const Tensor * b) {
    return a->ne[0] == b->ne[0] && a->ne[1] == b->ne[1] && a->ne[2] == b->ne[2] && a->ne[3] == b->ne[3];
}

// A view's tensor, or the tensor itself.
const Tensor * behind_view(const Tensor * t) { return t && t->view_src ? t->view_src : t; }

// Whether stock is faster at this op's rows, and can read the weight.
bool left_to_stock(const Stored & s, const Tensor * op) {
    if (!s.decision.by_rows) return false;
    const Tensor *w = op->src[0], *x = op->src[1], *ids = op->src[2];
    const double rows = op->op == OP_MUL_MAT_ID ? double(ids->ne[0] * ids->ne[1]) / double(w->ne[2])
                                                : double(x->ne[1] * x->ne[2] * x->ne[3]);
    return rows > 0 && ratio_at(*s.decision.by_rows, rows) < 1;
}

bool supports_product(const Tensor * op) {
    const Tensor *w = op->src[0], *x = op->src[1];
    if (!w || !is_ours(w) || w->view_src || !is_f32(x) || !is_f32(op)) return false;
    if (op->op == OP_MUL_MAT && op->op_params[1] == 1) return false;  // x times a Hadamard matrix
    if (op->op == OP_MUL_MAT_ID && (!op->src[2] || op->src[2]->type != TYPE_I32)) return false;
    if (x->ne[0] != w->ne[0] || (op->op == OP_MUL_MAT_ID) != (w->ne[2] > 1)) return false;
    if (w->data) {
        const Stored * s = stored(w);
        return s && !left_to_stock(*s, op);
    }
    Decision d = decide(settings(), *current_model(), w->name, ggml_type_name(w->type), w->ne, op->op);
    return d.path != Path::ordinary;
}

bool product_of_ours(const Tensor * t, int op = OP_MUL_MAT_ID) {
    return t && t->op == op && stored(t->src[0]) && supports_product(t);
}

// The neighbours of our products, which a fused chain takes along. Each is claimed in the one
// shape in which execute.cpp can also run it alone.
bool supports_glu(const Tensor * op) {
    Glu glu;
    const Tensor *gate = op->src[0], *up = op->src[1];
    if (!glu_of(op, &glu) || !up || !is_f32(gate) || !is_f32(up) || !is_f32(op) || !same_shape(gate, up)) return false;
    return (product_of_ours(behind_view(gate)) && product_of_ours(behind_view(up))) ||
           (product_of_ours(gate, OP_MUL_MAT) && product_of_ours(up, OP_MUL_MAT));
}

bool supports_weighting(const Tensor * op) {
    const Tensor *y = op->src[0], *w = op->src[1];
    return product_of_ours(y) && is_f32(y) && is_f32(w) && is_f32(op) && w->ne[0] == 1 && w->ne[1] == y->ne[1] &&
           w->ne[2] == y->ne[2] && w->ne[3] == 1 && y->ne[3] == 1;
}

bool is_weighting(const Tensor * t) { return t && t->op == OP_MUL && supports_weighting(t); }

bool supports_sum(const Tensor * op) {
    const Tensor *a = op->src[0], *b = op->src[1];
    return b && b->op == OP_VIEW && is_weighting(b->view_src) && is_f32(a) && is_f32(b) && is_f32(op) &&
           same_shape(a, b) && a->ne[2] == 1 && a->ne[3] == 1;
}

// The nodes of a graph from some point on, views left out.
class Nodes {
  public:
    Nodes(const Graph & graph, int first) : graph_(graph), at_(first) {}

    const Tensor * next() {
        while (at_ < graph_.n_nodes && is_view_op(graph_.nodes[at_]->op)) ++at_;
        if (at_ >= graph_.n_nodes) return nullptr;
        const Tensor * t = graph_.nodes[at_++];
        return t->flags & FLAG_COMPUTE ? t : nullptr;
    }
    int position() const { return at_; }

  private:
    const Graph & graph_;
    int at_;
};

bool used(const Graph & g, const Tensor * t, int times) {
    return !(t->flags & FLAG_OUTPUT) && use_count(g, t) == times;
}

// View number `half` of the two halves of a merged gate-up product.
bool is_half(const Tensor * view, const Tensor * merged, int half) {
    return view->op == OP_VIEW && view->view_src == merged && view->ne[0] * 2 == merged->ne[0] &&
           view->ne[1] == merged->ne[1] && view->ne[2] == merged->ne[2] && view->nb[1] == merged->nb[1] &&
           view->nb[2] == merged->nb[2] && view->view_offs == size_t(half) * size_t(view->ne[0]) * sizeof(float);
}

// gate and up of an expert layer, or of a dense one, as `op` says.
bool match_gate_up(const Graph & g, Nodes & nodes, int op, MatchedChain * c) {
    const Tensor * a = nodes.next();
    if (!product_of_ours(a, op) || wants_float(a)) return false;
    const Tensor * next = nodes.next();
    if (!next) return false;
    if (next->op == OP_GLU) {
        const Tensor *gate = next->src[0], *up = next->src[1];
        c->gate = c->up = a;
        c->glu = next;
        if (op != OP_MUL_MAT_ID || !up || !is_half(gate, a, 0) || !is_half(up, a, 1)) return false;
        if (a->ne[0] / 2 % kPanelRows != 0) return false;
        if (!used(g, a, 2) || !used(g, gate, 1) || !used(g, up, 1)) return false;
    } else {
        const Tensor * b = next;
        if (!product_of_ours(b, op) || wants_float(b) || a->src[1] != b->src[1] || a->src[2] != b->src[2]) return false;
        c->glu = nodes.next();
        if (!c->glu || c->glu->op != OP_GLU) return false;
        c->gate = c->glu->src[0];
        c->up = c->glu->src[1];
        if (!((c->gate == a && c->up == b) || (c->gate == b && c->up == a))) return false;
        if (!used(g, a, 1) || !used(g, b, 1) || !same_shape(a, b)) return false;
    }
    c->gate_weight = stored(c->gate->src[0]);
    c->up_weight = stored(c->up->src[0]);
    const Tensor *x = c->gate->src[1], *ids = c->gate->src[2];
    Glu glu;
    if (!glu_of(c->glu, &glu) || !used(g, c->glu, 1) || x->ne[3] != 1 || !is_f32(x)) return false;
    if (ids ? x->ne[1] != 1 || ids->nb[0] != sizeof(int32_t) : x->ne[2] != 1) return false;
    return same_activations(c->gate_weight->weight, c->up_weight->weight) &&
           c->gate_weight->ne[2] == c->up_weight->ne[2];
}

bool match_down(Nodes & nodes, int op, MatchedChain * c) {
    c->down = nodes.next();
    if (!product_of_ours(c->down, op) || wants_float(c->down)) return false;
    c->down_weight = stored(c->down->src[0]);
    if (c->down->src[1] != c->glu || c->down->src[2] != c->gate->src[2]) return false;
    return c->down_weight->ne[2] == c->gate_weight->ne[2] && c->down_weight->ne[0] == c->glu->ne[0];
}

bool match_weighting(const Graph & g, Nodes & nodes, MatchedChain * c) {
    c->weighted = nodes.next();
    return is_weighting(c->weighted) && c->weighted->src[0] == c->down && used(g, c->down, 1);
}

// View `slot` of the weighted outputs: one expert of every token.
bool is_slot(const Graph & g, const Tensor * view, const Tensor * weighted, int64_t slot) {
    return view && view->op == OP_VIEW && view->view_src == weighted && view->ne[0] == weighted->ne[0] &&
           view->ne[1] == weighted->ne[2] && view->ne[2] == 1 && view->nb[1] == weighted->nb[2] &&
           view->view_offs == size_t(slot) * weighted->nb[1] && used(g, view, 1);
}

bool match_sum(const Graph & g, Nodes & nodes, MatchedChain * c) {
    const int64_t n_used = c->weighted->ne[1];
    if (n_used < 2 || !used(g, c->weighted, int(n_used))) return false;
    const Tensor * sum = nullptr;
    for (int64_t slot = 1; slot < n_used; ++slot) {
        const Tensor * add = nodes.next();
        if (!add || add->op != OP_ADD || !is_f32(add) || !is_slot(g, add->src[1], c->weighted, slot)) return false;
        if (slot == 1 ? !is_slot(g, add->src[0], c->weighted, 0) : add->src[0] != sum || !used(g, sum, 1)) return false;
        sum = add;
    }
    c->out = sum;
    return true;
}

}  // namespace

bool glu_of(const Tensor * node, Glu * glu) {
    if (node->op_params[1] != 0) return false;  // gate and up swapped
    switch (node->op_params[0]) {
        case GLU_SWIGLU: *glu = Glu::swiglu; return true;
        case GLU_GEGLU: *glu = Glu::geglu; return true;
        case GLU_REGLU: *glu = Glu::reglu; return true;
        default: return false;
    }
}

bool wants_float(const Tensor * node) {
    const int32_t precision = node->op_params[3];  // of src1
    return precision >= PREC_F32 && precision <= PREC_F16;
}

bool supports(const Tensor * op) {
    switch (op->op) {
        case OP_NONE:
        case OP_RESHAPE:
        case OP_VIEW:
        case OP_PERMUTE:
        case OP_TRANSPOSE: return is_ours(op);
        case OP_MUL_MAT:
        case OP_MUL_MAT_ID: return supports_product(op);
        case OP_GLU: return supports_glu(op);
        case OP_MUL: return supports_weighting(op);
        case OP_ADD: return supports_sum(op);
        default: return false;
    }
}

bool match_chain(const Graph & g, int first, MatchedChain * c) {
    Nodes nodes(g, first);
    const int op = g.nodes[first]->op;
    if (op != OP_MUL_MAT && op != OP_MUL_MAT_ID) return false;
    if (!match_gate_up(g, nodes, op, c) || !match_down(nodes, op, c)) return false;
    if (op == OP_MUL_MAT_ID) {
        if (!match_weighting(g, nodes, c) || !match_sum(g, nodes, c)) return false;
    } else {
        c->weighted = nullptr;
        c->out = c->down;
    }
    for (Stored * w : {c->gate_weight, c->up_weight, c->down_weight}) {
        if (!usable(*w)) return false;  // alone, the product will say so
    }
    c->nodes = nodes.position() - first;
    return true;
}

}  // namespace octet
