// rotate, quantize, glu and weighted_sum: every instruction set gives the scalar's bits.
#include "check.h"
#include "matrix_data.h"
#include "tests.h"

namespace octet_test {

static void test_rotate() {
    for (const Kernels * fast : faster_kernels()) {
        for (int64_t k : {32, 64, 96, 128, 640, 768}) {
            for (int block : {32, 64, 128}) {
                if (k % block) continue;
                Guarded<float> signs{size_t(k)};
                std::vector<float> values = rotation_signs(k, uint16_t(k + block));
                std::memcpy(signs.data(), values.data(), size_t(k) * sizeof(float));
                for (int kind = 0; kind < int(RowKind::kinds); ++kind) {
                    ActivationData a(1, k, kind), b(1, k, kind);
                    scalar().rotate(a.memory().data(), k, block, signs.data());
                    fast->rotate(b.memory().data(), k, block, signs.data());
                    CHECK(first_difference(a.row(0), b.row(0), k) < 0, "%s, k %d, block %d, kind %d", fast->name,
                          int(k), block, kind);
                }
            }
        }
    }
}

static void test_rotate_twice() {
    // H D then D H is the identity: a rotation loses nothing but rounding.
    for (int block : {32, 64, 128}) {
        const int64_t k = 256;
        std::vector<float> signs = rotation_signs(k, 9), ones(size_t(k), 1.0f);
        ActivationData a(1, k, 0), b(1, k, 0);
        scalar().rotate(b.memory().data(), k, block, signs.data());
        scalar().rotate(b.memory().data(), k, block, ones.data());
        float worst = 0.0f;
        for (int64_t j = 0; j < k; ++j)
            worst = std::fmax(worst, std::fabs(b.row(0)[j] * signs[size_t(j)] - a.row(0)[j]));
        CHECK(worst < 2e-6f, "block %d: %g", block, double(worst));
    }
}

static void test_quantize() {
    for (const Case & c : cases()) {
        for (int64_t k : c.ks) {
            Layout layout;
            make_layout(*find_format(c.format), k, c.scale_group, &layout);
            for (int row = 0; row < kTileRows; ++row) {
                // All kinds on all rows, but with --quick each kind once.
                for (int kind = 0; kind < (quick() ? 1 : int(RowKind::kinds)); ++kind) {
                    ActivationData x(1, k, row + kind);
                    TileData expected(layout);
                    scalar().quantize(x.row(0), layout, expected.tiles.first, row);
                    if (!is_finite(x.kind(0))) {
                        bool found = false;
                        for (int64_t g = 0; g < k / activation_group(layout); ++g) {
                            found |= std::isnan(expected.tiles.first.d[g * kTileRows + row]);
                        }
                        CHECK(found, "%s k %d: no scale says that the row is not finite", c.format, int(k));
                    }
                    for (const Kernels * fast : faster_kernels()) {
                        TileData tile(layout);
                        fast->quantize(x.row(0), layout, tile.tiles.first, row);
                        CHECK(tile.same_as(expected), "%s, %s group %d, k %d, row %d, kind %d", fast->name, c.format,
                              c.scale_group, int(k), row, int(x.kind(0)));
                    }
                }
            }
        }
    }
}

// Halves between two steps of the grid, and their neighbours.
static void test_ties() {
    const int64_t k = 32;
    Layout layout;
    make_layout(*find_format("q8_0"), k, 32, &layout);
    for (float half = -126.5f; half <= 126.5f; half += 1.0f) {
        Guarded<float> x(k);
        for (int j = 0; j < k; ++j) x[size_t(j)] = half;
        x[0] = 127.0f;  // so that d = 1
        x[1] = std::nextafterf(half, 0.0f);
        x[2] = std::nextafterf(half, 2.0f * half);
        const int away = int(half + (half > 0 ? 0.5f : -0.5f)), toward = away + (half > 0 ? -1 : 1);
        std::vector<const Kernels *> all = faster_kernels();
        all.push_back(&scalar());
        for (const Kernels * kernels : all) {
            TileData t(layout);
            kernels->quantize(x.data(), layout, t.tiles.first, 3);
            const int8_t * q = t.tiles.first.q + 3 * 32;
            CHECK(t.tiles.first.d[3] == 1.0f && q[3] == away && q[2] == away && q[1] == toward,
                  "%s: %g became %d, %d, %d", kernels->name, double(half), q[1], q[2], q[3]);
        }
    }
}

static std::vector<float> sweep() {
    std::vector<float> x;
    for (float v = -110.0f; v <= 110.0f; v += quick() ? 0.37f : 0.013f) x.push_back(v);
    for (float v : {0.0f, 1e-45f, 1e-38f, 1e-30f, 1e-8f, 87.0f, 88.0f, 89.0f, 1e5f, 1e20f, 3e38f, INFINITY}) {
        x.push_back(v);
        x.push_back(-v);
    }
    x.push_back(NAN);
    return x;
}

static void test_glu() {
    const std::vector<float> values = sweep();
    for (Glu op : {Glu::swiglu, Glu::geglu, Glu::reglu}) {
        for (const Kernels * fast : faster_kernels()) {
            // All values at once, then short runs, whose tail is not a whole register.
            for (int64_t n :
                 {int64_t(values.size()), int64_t(1), int64_t(7), int64_t(8), int64_t(15), int64_t(17), int64_t(33)}) {
                for (int64_t first = 0; first + n <= int64_t(values.size()); first += 997) {
                    const size_t count = size_t(n);
                    Guarded<float> g(count), u(count), expected(count), h(count);
                    Random random{uint64_t(first)};
                    for (size_t i = 0; i < count; ++i) {
                        g[i] = values[size_t(first) + i];
                        u[i] = random.below(50) ? random.normal() : values[size_t(random.below(int(values.size())))];
                    }
                    scalar().glu(op, g.data(), u.data(), expected.data(), n);
                    fast->glu(op, g.data(), u.data(), h.data(), n);
                    const int64_t at = first_difference(expected.data(), h.data(), n);
                    CHECK(at < 0, "%s, glu %d, n %d, g %g", fast->name, int(op), int(n), double(g[size_t(at)]));
                }
            }
        }
    }
}

static void test_weighted_sum() {
    for (const Kernels * fast : faster_kernels()) {
        for (int count : {1, 2, 3, 8, 9}) {
            for (int64_t n : {1, 7, 8, 9, 15, 16, 17, 31, 33, 640}) {
                ActivationData y(count, n < 32 ? 32 : n, 1, n + 5, true);
                Guarded<float> w(size_t(count), Edge::begin);
                for (int e = 0; e < count; ++e) w[size_t(e)] = 1.0f / float(3 + e);
                for (const float * weights :
                     {static_cast<const float *>(w.data()), static_cast<const float *>(nullptr)}) {
                    OutputData a(1, n), b(1, n);
                    scalar().weighted_sum(y.row(0), n + 5, weights, count, a.data(), n);
                    fast->weighted_sum(y.row(0), n + 5, weights, count, b.data(), n);
                    CHECK(a.same_as(b), "%s, count %d, n %d", fast->name, count, int(n));
                    float first = (weights ? weights[0] : 1.0f) * y.row(0)[0];
                    for (int e = 1; e < count; ++e) {
                        float term = (weights ? weights[e] : 1.0f) * y.row(e)[0];
                        first = first + term;
                    }
                    CHECK(same(first, a.row(0)[0]), "count %d, n %d: %g, not %g", count, int(n), double(a.row(0)[0]),
                          double(first));
                }
            }
        }
    }
}

void test_elementwise() {
    test_rotate();
    test_rotate_twice();
    test_quantize();
    test_ties();
    test_glu();
    test_weighted_sum();
}

}  // namespace octet_test
