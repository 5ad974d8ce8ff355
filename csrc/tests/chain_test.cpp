// The fused chain: the bits of its steps done one by one, whatever the layout, threads, batch and routing.
#include "check.h"
#include "matrix_data.h"
#include "tests.h"

namespace octet_test {

struct Sizes {
    Case gate_up, down;
    int64_t k, n_ff, n_out;
    int rotation, down_rotation;
    bool float_products;
};

static const std::vector<Sizes> & layers() {
    static const Case iq3_s{"iq3_s", 32, {}}, iq3_xxs{"iq3_xxs", 32, {}}, iq2_s{"iq2_s", 32, {}},
        iq4_nl{"iq4_nl", 32, {}}, q2_0{"q2_0", 32, {}}, per_32{"q8_0", 32, {}}, per_128{"q8_0", 128, {}},
        per_row{"q8_0", 0, {}};
    static const std::vector<Sizes> all = {
        {iq3_s, iq4_nl, 256, 96, 33, 0, 0, false},         {iq3_s, q2_0, 256, 64, 16, 0, 0, false},
        {iq3_xxs, iq4_nl, 512, 32, 17, 0, 0, false},       {iq3_xxs, q2_0, 256, 192, 31, 0, 0, false},
        {iq2_s, iq4_nl, 256, 160, 48, 0, 0, false},        {iq2_s, q2_0, 256, 64, 15, 0, 0, false},
        {iq2_s, iq3_s, 256, 256, 7, 0, 0, false},          {per_32, per_32, 96, 96, 33, 0, 0, false},
        {per_128, per_128, 128, 256, 33, 128, 128, false}, {per_row, per_row, 192, 96, 20, 64, 32, false},
        {per_row, per_row, 192, 96, 20, 64, 32, true},     {iq3_s, iq4_nl, 256, 64, 9, 0, 0, true},
    };
    return all;
}

// An expert layer: gate and up apart and merged, down.
class Layer {
  public:
    Layer(const Sizes & s, int64_t n_experts, bool tame)
        : sizes(s),
          n_experts(n_experts),
          x_signs(rotation_signs(s.k, 3)),
          h_signs(rotation_signs(s.n_ff, 4)),
          merged(s.gate_up, n_experts, 2 * s.n_ff, s.k, 1, tame),
          gate(merged.layout(), n_experts, s.n_ff, half(0)),
          up(merged.layout(), n_experts, s.n_ff, half(1)),
          down(s.down, n_experts, s.n_out, s.n_ff, 2, tame) {}

    // Which of the ways to store the same layer.
    Weight gate_weight(bool is_merged, bool packed) const { return outer(is_merged ? merged : gate, packed); }
    Weight up_weight(bool is_merged, bool packed) const { return outer(is_merged ? merged : up, packed); }
    Weight down_weight(bool packed) const {
        return {packed ? down.packed() : down.native(), sizes.down_rotation,
                sizes.down_rotation ? h_signs.data() : nullptr, sizes.float_products};
    }

    Sizes sizes;
    int64_t n_experts;

  private:
    Weight outer(const MatrixData & m, bool packed) const {
        return {packed ? m.packed() : m.native(), sizes.rotation, sizes.rotation ? x_signs.data() : nullptr,
                sizes.float_products};
    }

    // The rows of gate (0) or up (1) out of the merged blocks.
    std::vector<uint8_t> half(int64_t which) const {
        const Matrix & m = merged.native();
        const size_t bytes = size_t(sizes.n_ff) * m.row_bytes;
        std::vector<uint8_t> blocks;
        for (int64_t e = 0; e < n_experts; ++e) {
            const uint8_t * first = m.data + size_t(2 * e + which) * bytes;
            blocks.insert(blocks.end(), first, first + bytes);
        }
        return blocks;
    }

    std::vector<float> x_signs, h_signs;
    MatrixData merged, gate, up, down;
};

enum class Spread { ragged, one_expert, few_experts, kinds };

// Tokens of a layer: rows, ids, weights, all with gaps between them.
struct Tokens {
    int64_t count, n_used;
    ActivationData x;
    std::vector<int32_t> ids;    // [token][n_used + 1]
    std::vector<float> weights;  // [slot][count + 2]

    Tokens(const Layer & l, int64_t count, int64_t n_used, Spread spread, bool tame)
        : count(count),
          n_used(n_used),
          x(count, l.sizes.k, 2, l.sizes.k + 8, tame),
          ids(size_t(count * (n_used + 1)), -9),
          weights(size_t(n_used * (count + 2)), 1e30f) {
        Random random(11);
        for (int64_t t = 0; t < count; ++t) {
            for (int64_t s = 0; s < n_used; ++s) {
                ids[size_t(t * (n_used + 1) + s)] = spread == Spread::ragged       ? random.below(int(l.n_experts))
                                                    : spread == Spread::one_expert ? 2
                                                                                   : int32_t(3 * ((t + s) % 2));
                weights[size_t(s * (count + 2) + t)] = random.uniform();
            }
        }
    }

    // `one` >= 0: that token alone.
    void put_into(Chain & c, int64_t one = -1) const {
        const int64_t first = one < 0 ? 0 : one;
        c.x = x.rows();
        c.x.data = reinterpret_cast<const char *>(x.row(first));
        c.routing = {reinterpret_cast<const char *>(ids.data() + first * (n_used + 1)), 4, 4 * (n_used + 1), n_used,
                     one < 0 ? count : 1};
        c.weights = reinterpret_cast<const char *>(weights.data() + first);
        c.weight_slot_stride = 4 * (count + 2);
        c.weight_token_stride = 4;
    }
};

struct Way {
    bool merged, packed;
    int threads;
};

static bool fused(const Kernels & kernels, const Layer & l, const Tokens & t, Glu glu, const Way & way, float * out,
                  int64_t out_stride, int64_t one = -1) {
    const Weight gate = l.gate_weight(way.merged, way.packed), up = l.up_weight(way.merged, way.packed),
                 down = l.down_weight(way.packed);
    Chain c{};
    c.gate = &gate;
    c.up = way.merged ? &gate : &up;
    c.down = &down;
    c.n_ff = l.sizes.n_ff;
    c.up_row = way.merged ? c.n_ff : 0;
    c.glu = glu;
    t.put_into(c, one);
    c.out = out;
    c.out_stride = out_stride;
    static Workspace space;
    return run_chain(kernels, c, space, way.threads);
}

// The same by single steps of the scalar kernels.
static void node_by_node(const Layer & l, const Tokens & t, Glu glu, float * out) {
    const int64_t slots = t.count * t.n_used, n_ff = l.sizes.n_ff, n_out = l.sizes.n_out;
    Chain c{};
    t.put_into(c);
    Workspace space;
    std::vector<float> g(size_t(slots * n_ff)), u(g.size()), h(g.size()), y(size_t(slots * n_out)), w(size_t(t.n_used));
    multiply_by_expert(scalar(), l.gate_weight(false, true), c.x, 1, c.routing, g.data(), n_ff, space, 1);
    multiply_by_expert(scalar(), l.up_weight(false, true), c.x, 1, c.routing, u.data(), n_ff, space, 1);
    scalar().glu(glu, g.data(), u.data(), h.data(), slots * n_ff);
    const RowsIn rows{reinterpret_cast<const char *>(h.data()), n_ff * 4};
    multiply_by_expert(scalar(), l.down_weight(true), rows, t.n_used, c.routing, y.data(), n_out, space, 1);
    for (int64_t i = 0; i < t.count; ++i) {
        for (int64_t s = 0; s < t.n_used; ++s) w[size_t(s)] = t.weights[size_t(s * (t.count + 2) + i)];
        scalar().weighted_sum(y.data() + i * t.n_used * n_out, n_out, w.data(), int(t.n_used), out + i * n_out, n_out);
    }
}

static std::vector<const Kernels *> all_kernels() {
    std::vector<const Kernels *> all = faster_kernels();
    all.push_back(&scalar());
    return all;
}

static void test_ways() {
    const std::vector<Way> ways = {{false, true, 1}, {false, true, 2},  {true, true, 1},
                                   {true, true, 3},  {false, false, 1}, {true, false, 2}};
    int which = 0;
    for (const Sizes & s : layers()) {
        Layer layer(s, 5, false);
        for (int spread = 0; spread < int(Spread::kinds); ++spread) {
            for (int64_t count : {1, 19, 60}) {  // 180 slots of one expert: more than one call takes
                if (quick() && count == 60) continue;
                const Glu glu = Glu(which++ % 3);
                Tokens tokens(layer, count, 3, Spread(spread), false);
                OutputData expected(count, s.n_out);
                node_by_node(layer, tokens, glu, expected.data());
                for (const Kernels * kernels : all_kernels()) {
                    for (const Way & way : ways) {
                        OutputData out(count, s.n_out, s.n_out + 4);
                        bool ok = fused(*kernels, layer, tokens, glu, way, out.data(), out.stride());
                        CHECK(ok && out.same_as(expected) && out.canaries_intact(),
                              "%s, %s:%s, rotation %d, float %d, glu %d, spread %d, %d tokens, %s, %s, %d threads",
                              kernels->name, s.gate_up.format, s.down.format, s.rotation, int(s.float_products),
                              int(glu), spread, int(count), way.merged ? "merged" : "apart",
                              way.packed ? "packed" : "native", way.threads);
                    }
                }
            }
        }
    }
}

// A token alone gives the bits it gives among 512.
static void test_token_alone() {
    const int64_t count = quick() ? 50 : 512;
    for (const Sizes & s : layers()) {
        Layer layer(s, 7, true);
        Tokens tokens(layer, count, 2, Spread::ragged, true);
        for (const Kernels * kernels : all_kernels()) {
            OutputData all(count, s.n_out);
            fused(*kernels, layer, tokens, Glu::swiglu, {false, true, 2}, all.data(), s.n_out);
            for (int64_t i = 0; i < count; i += 23) {
                OutputData one(1, s.n_out);
                fused(*kernels, layer, tokens, Glu::swiglu, {true, false, 1}, one.data(), s.n_out, i);
                CHECK(first_difference(one.row(0), all.row(i), s.n_out) < 0, "%s, %s:%s, token %d", kernels->name,
                      s.gate_up.format, s.down.format, int(i));
            }
            bool finite = true;
            for (int64_t i = 0; i < count * s.n_out; ++i) finite &= std::isfinite(all.data()[i]) != 0;
            CHECK(finite, "%s, %s:%s: ordinary rows gave a non-finite number", kernels->name, s.gate_up.format,
                  s.down.format);
        }
    }
}

// The output may lie where x, ids or weights were.
static void test_overlap() {
    const Sizes & s = layers()[0];
    Layer layer(s, 5, true);
    for (const Kernels * kernels : all_kernels()) {
        for (int over = 0; over < 3; ++over) {
            Tokens tokens(layer, 20, 3, Spread::ragged, true);
            OutputData expected(20, s.n_out);
            node_by_node(layer, tokens, Glu::swiglu, expected.data());
            std::vector<char> shared(size_t(20 * (s.k + s.n_out + 8)) * 4);
            float * out = reinterpret_cast<float *>(shared.data());
            const Weight gate = layer.gate_weight(false, true), up = layer.up_weight(false, true),
                         down = layer.down_weight(true);
            Chain c{};
            c.gate = &gate;
            c.up = &up;
            c.down = &down;
            c.n_ff = s.n_ff;
            tokens.put_into(c);
            if (over == 0) std::memcpy(shared.data(), c.x.data, tokens.x.memory().size() * 4), c.x.data = shared.data();
            if (over == 1)
                std::memcpy(shared.data(), c.routing.ids, tokens.ids.size() * 4), c.routing.ids = shared.data();
            if (over == 2) std::memcpy(shared.data(), c.weights, tokens.weights.size() * 4), c.weights = shared.data();
            c.out = out;
            c.out_stride = s.n_out;
            Workspace space;
            bool ok = run_chain(*kernels, c, space, 2);
            CHECK(ok && first_difference(out, expected.data(), 20 * s.n_out) < 0, "%s: output over %s", kernels->name,
                  over == 0   ? "x"
                  : over == 1 ? "ids"
                              : "weights");
        }
    }
}

static void test_wrong_ids() {
    const Sizes & s = layers()[0];
    Layer layer(s, 5, true);
    for (int32_t wrong : {-1, 5, INT32_MIN, INT32_MAX}) {
        Tokens tokens(layer, 20, 3, Spread::ragged, true);
        tokens.ids[4 * 20 - 2] = wrong;
        for (const Kernels * kernels : all_kernels()) {
            OutputData out(20, s.n_out);
            bool ok = fused(*kernels, layer, tokens, Glu::swiglu, {false, true, 1}, out.data(), s.n_out);
            CHECK(!ok && out.untouched(), "%s: expert %d was taken", kernels->name, int(wrong));
        }
    }
}

// Without weights the experts' outputs are added as they are.
static void test_plain_sum() {
    const Sizes & s = layers()[0];
    Layer layer(s, 5, true);
    Tokens tokens(layer, 9, 3, Spread::ragged, true);
    std::fill(tokens.weights.begin(), tokens.weights.end(), 1.0f);
    OutputData expected(9, s.n_out), out(9, s.n_out);
    node_by_node(layer, tokens, Glu::swiglu, expected.data());
    const Weight gate = layer.gate_weight(false, true), up = layer.up_weight(false, true),
                 down = layer.down_weight(true);
    Chain c{};
    c.gate = &gate;
    c.up = &up;
    c.down = &down;
    c.n_ff = s.n_ff;
    tokens.put_into(c);
    c.weights = nullptr;
    c.out = out.data();
    c.out_stride = s.n_out;
    Workspace space;
    CHECK(run_chain(scalar(), c, space, 1) && out.same_as(expected), "no weights");
}

// A dense layer: the bits of multiply, GLU, multiply; its output may lie where x was.
static void test_dense() {
    const std::vector<Way> ways = {{false, true, 1}, {false, true, 2}, {true, true, 3}, {false, false, 2}};
    int which = 0;
    for (const Sizes & s : layers()) {
        Layer layer(s, 1, false);
        for (int64_t count : {1, 19, 150}) {  // 150 rows: more than one call takes
            if (quick() && count == 150) continue;
            const Glu op = Glu(which++ % 3);
            ActivationData x(count, s.k, 2, s.k + 8, false);
            std::vector<float> g(size_t(count * s.n_ff)), u(g.size()), h(g.size());
            OutputData expected(count, s.n_out);
            Workspace space;
            multiply(scalar(), layer.gate_weight(false, true), x.rows(), count, g.data(), s.n_ff, space, 1);
            multiply(scalar(), layer.up_weight(false, true), x.rows(), count, u.data(), s.n_ff, space, 1);
            scalar().glu(op, g.data(), u.data(), h.data(), count * s.n_ff);
            const RowsIn rows{reinterpret_cast<const char *>(h.data()), s.n_ff * 4};
            multiply(scalar(), layer.down_weight(true), rows, count, expected.data(), s.n_out, space, 1);
            for (const Kernels * kernels : all_kernels()) {
                for (const Way & way : ways) {
                    const Weight gate = layer.gate_weight(way.merged, way.packed),
                                 up = layer.up_weight(way.merged, way.packed), down = layer.down_weight(way.packed);
                    Chain c{};
                    c.gate = &gate;
                    c.up = way.merged ? &gate : &up;
                    c.down = &down;
                    c.n_ff = s.n_ff;
                    c.up_row = way.merged ? s.n_ff : 0;
                    c.glu = op;
                    c.x = x.rows();
                    c.routing.n_used = 1;
                    c.routing.n_tokens = count;
                    OutputData out(count, s.n_out, s.n_out + 4);
                    c.out = out.data();
                    c.out_stride = out.stride();
                    const bool ok = run_chain(*kernels, c, space, way.threads);
                    CHECK(ok && out.same_as(expected) && out.canaries_intact(),
                          "%s, dense %s:%s, rotation %d, float %d, %d rows, %s, %s, %d threads", kernels->name,
                          s.gate_up.format, s.down.format, s.rotation, int(s.float_products), int(count),
                          way.merged ? "merged" : "apart", way.packed ? "packed" : "native", way.threads);

                    std::vector<char> over(size_t(count * (s.k + s.n_out + 8)) * 4);
                    std::memcpy(over.data(), x.memory().data(), x.memory().size() * 4);
                    c.x.data = over.data();
                    c.out = reinterpret_cast<float *>(over.data());
                    c.out_stride = s.n_out;
                    CHECK(run_chain(*kernels, c, space, way.threads) &&
                              first_difference(c.out, expected.data(), count * s.n_out) < 0,
                          "%s, dense %s:%s: output over x", kernels->name, s.gate_up.format, s.down.format);
                }
            }
        }
    }
    Layer experts(layers()[0], 5, true);
    const Weight gate = experts.gate_weight(false, true), down = experts.down_weight(true);
    Chain c{};
    c.gate = c.up = &gate;
    c.down = &down;
    c.n_ff = down.matrix.layout.k;
    ActivationData x(1, layers()[0].k, 2, layers()[0].k, true);
    OutputData out(1, layers()[0].n_out);
    c.x = x.rows();
    c.out = out.data();
    c.out_stride = out.stride();
    c.routing.n_used = c.routing.n_tokens = 1;
    Workspace space;
    CHECK(!run_chain(scalar(), c, space, 1) && out.untouched(), "five experts without ids");
}

void test_chain() {
    test_dense();
    test_ways();
    test_token_alone();
    test_overlap();
    test_wrong_ids();
    test_plain_sum();
}

}  // namespace octet_test
