// The gate: exact versions that were tested, then the layout itself.
#include "gate.h"

#include <cstring>

namespace ggml {

namespace {

// A build outside its repository does not know its commit.
struct Tested {
    const char *version, *commit;
};
constexpr Tested kTested[] = {
    {"0.25.3", "0c1e570"},  // llama-cpp-python 0.3.36
};

bool tested(const char * version, const char * commit) {
    for (const Tested & t : kTested) {
        if (std::strcmp(version, t.version) != 0) continue;
        if (std::strncmp(commit, t.commit, std::strlen(t.commit)) == 0) return true;
        if (std::strcmp(commit, "unknown") == 0) return true;
    }
    return false;
}

bool same(const char * a, const char * b) { return a && b && std::strcmp(a, b) == 0; }

// What a number of an enum is called in the running ggml.
struct Numbered {
    int number;
    const char * name;
};

std::string check_names() {
    const Numbered ops[] = {{OP_NONE, "NONE"},
                            {OP_ADD, "ADD"},
                            {OP_MUL, "MUL"},
                            {OP_MUL_MAT, "MUL_MAT"},
                            {OP_MUL_MAT_ID, "MUL_MAT_ID"},
                            {OP_RESHAPE, "RESHAPE"},
                            {OP_VIEW, "VIEW"},
                            {OP_PERMUTE, "PERMUTE"},
                            {OP_TRANSPOSE, "TRANSPOSE"},
                            {OP_GLU, "GLU"}};
    for (auto & o : ops) {
        if (!same(ggml_op_name(o.number), o.name)) return std::string("operation ") + o.name + " has another number";
    }
    const Numbered glus[] = {{GLU_REGLU, "REGLU"}, {GLU_GEGLU, "GEGLU"}, {GLU_SWIGLU, "SWIGLU"}};
    for (auto & g : glus) {
        if (!same(ggml_glu_op_name(g.number), g.name)) return std::string("GLU ") + g.name + " has another number";
    }
    const Numbered types[] = {{TYPE_F32, "f32"}, {TYPE_Q8_0, "q8_0"}, {TYPE_I32, "i32"}};
    for (auto & t : types) {
        if (!same(ggml_type_name(t.number), t.name)) return std::string("type ") + t.name + " has another number";
    }
    const TypeTraits * q8 = ggml_get_type_traits(TYPE_Q8_0);
    if (!same(q8->type_name, "q8_0") || q8->block_weights != 32 || q8->block_bytes != 34 || !q8->to_float) {
        return "the traits of q8_0 are laid out differently";
    }
    return "";
}

std::string check_layout() {
    BufferType * cpu = ggml_backend_cpu_buffer_type();
    if (cpu->iface.get_name(cpu) != ggml_backend_buft_name(cpu) ||
        cpu->iface.get_alignment(cpu) != ggml_backend_buft_get_alignment(cpu) || !cpu->iface.is_host(cpu)) {
        return "buffer types are laid out differently";
    }

    Context * ctx = ggml_init({16 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true});
    if (!ctx) return "no memory";
    std::string wrong;
    Tensor * a = ggml_new_tensor_2d(ctx, TYPE_F32, 32, 3);
    Tensor * b = ggml_new_tensor_2d(ctx, TYPE_F32, 32, 5);
    Tensor * c = ggml_mul_mat(ctx, a, b);
    Tensor * v = ggml_view_2d(ctx, c, 3, 2, c->nb[1], c->nb[1]);
    Tensor * d = ggml_add(ctx, v, v);
    ggml_set_name(c, "octet");
    bool ok = c->type == TYPE_F32 && c->ne[0] == 3 && c->ne[1] == 5 && c->ne[2] == 1 && c->nb[1] == 12 &&
              c->op == OP_MUL_MAT && c->src[0] == a && c->src[1] == b && !c->src[2] && !c->view_src && !c->data &&
              !c->extra && same(c->name, "octet") && v->view_src == c && v->view_offs == 12 && v->op == OP_VIEW;
    if (!ok) wrong = "tensors are laid out differently";

    Graph * g = ggml_new_graph(ctx);
    ggml_build_forward_expand(g, d);
    if (ok && (g->n_nodes != 3 || g->nodes[0] != c || g->nodes[2] != d || !(c->flags & FLAG_COMPUTE) ||
               use_count(*g, c) != 1 || use_count(*g, v) != 2 || use_count(*g, d) != 0)) {
        wrong = "graphs are laid out differently";
    }
    ggml_free(ctx);
    return wrong;
}

}  // namespace

int use_count(const Graph & graph, const Tensor * t) {
    const HashSet & set = graph.visited;
    if (!set.size || !graph.use_counts) return -1;
    // ggml hashes an address by its bits above the alignment and probes linearly.
    size_t start = (reinterpret_cast<uintptr_t>(t) >> 4) % set.size;
    for (size_t i = start;;) {
        if (!(set.used[i / 32] >> (i % 32) & 1)) return -1;
        if (set.keys[i] == t) return graph.use_counts[i];
        i = (i + 1) % set.size;
        if (i == start) return -1;
    }
}

std::string check_runtime() {
    const char *version = ggml_version(), *commit = ggml_commit();
    if (!tested(version, commit)) {
        return std::string("ggml ") + version + " (" + commit + ") was not tested with this version of " +
               "llama-octet: install llama-cpp-python==0.3.36 (ggml " + kTested[0].version + ", " + kTested[0].commit +
               ")";
    }
    std::string wrong = check_names();
    if (wrong.empty()) wrong = check_layout();
    return wrong.empty() ? "" : std::string("ggml ") + version + " is not the one that was tested: " + wrong;
}

}  // namespace ggml
