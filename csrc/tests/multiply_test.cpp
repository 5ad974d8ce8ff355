// Whole matrices: layouts, threads, strides, routing, and the caller's floating-point mode.
#include <thread>

#include "check.h"
#include "float_mode.h"
#include "matrix_data.h"
#include "tests.h"

namespace octet_test {

static std::vector<const Kernels *> all_kernels() {
    std::vector<const Kernels *> all = faster_kernels();
    all.insert(all.begin(), &scalar());
    return all;
}

// What a weight does to its activations.
struct Treatment {
    int rotation;
    bool float_products;
};

static const Treatment kTreatments[] = {{0, false}, {32, false}, {0, true}, {32, true}};

static Weight weight_of(const Matrix & m, const Treatment & t, const std::vector<float> & signs) {
    return {m, t.rotation, t.rotation ? signs.data() : nullptr, t.float_products};
}

static void test_dense() {
    for (const Case & c : cases()) {
        const int64_t k = c.ks.back() >= 640 ? c.ks[c.ks.size() - 2] : c.ks.back();
        const std::vector<float> signs = rotation_signs(k, 5);
        for (int64_t n : {9, 33}) {
            MatrixData w(c, 1, n, k, n);
            for (int64_t rows : {0, 1, 17, 40}) {
                if (quick() && rows == 40) continue;
                ActivationData x(rows, k, n + rows, k + 3);
                for (const Treatment & t : kTreatments) {
                    OutputData expected(rows, n);
                    Workspace space;
                    multiply(scalar(), weight_of(w.packed(), t, signs), x.rows(), rows, expected.data(), n, space, 1);
                    for (const Kernels * kernels : all_kernels()) {
                        for (int threads : {1, 2, 3}) {
                            for (const Matrix * m : {&w.packed(), &w.native()}) {
                                OutputData out(rows, n, n + 2);
                                multiply(*kernels, weight_of(*m, t, signs), x.rows(), rows, out.data(), n + 2, space,
                                         threads);
                                CHECK(out.same_as(expected) && out.canaries_intact(),
                                      "%s, %s group %d, k %d, n %d, rows %d, rotation %d, float %d, %d threads, %s",
                                      kernels->name, c.format, c.scale_group, int(k), int(n), int(rows), t.rotation,
                                      int(t.float_products), threads, m->packed ? "packed" : "native");
                            }
                        }
                    }
                }
            }
        }
    }
}

// Rows that were prepared for one weight serve another.
static void test_prepared() {
    const int64_t rows = 21;
    for (const Case & c : cases()) {
        const int64_t k = c.ks[0] < 128 ? c.ks[1] : c.ks[0];
        const std::vector<float> signs = rotation_signs(k, 5);
        MatrixData first(c, 1, 40, k, 1), second(c, 1, 23, k, 2);
        ActivationData x(rows, k, 3, k + 2);
        for (const Treatment & t : kTreatments) {
            const Weight a = weight_of(first.packed(), t, signs), b = weight_of(second.native(), t, signs);
            CHECK(same_activations(a, b), "%s", c.format);
            for (const Kernels * kernels : all_kernels()) {
                for (int threads : {1, 2}) {
                    Workspace space;
                    OutputData expected(rows, 23), ignored(rows, 40), out(rows, 23);
                    multiply(*kernels, b, x.rows(), rows, expected.data(), 23, space, threads);
                    multiply(*kernels, a, x.rows(), rows, ignored.data(), 40, space, threads);
                    multiply(*kernels, b, x.rows(), rows, out.data(), 23, space, threads, true);
                    CHECK(out.same_as(expected), "%s, %s group %d, rotation %d, float %d, %d threads", kernels->name,
                          c.format, c.scale_group, t.rotation, int(t.float_products), threads);
                }
            }
        }
    }
}

// A row alone gives the bits it gives among 512.
static void test_row_alone() {
    const int64_t rows = quick() ? 60 : 512, n = 19;
    for (const Case & c : cases()) {
        const int64_t k = c.ks[0] < 128 ? c.ks[1] : c.ks[0];
        MatrixData w(c, 1, n, k, 3);
        ActivationData x(rows, k, 1);
        const Weight weight{w.packed(), 0, nullptr, false};
        for (const Kernels * kernels : all_kernels()) {
            Workspace space;
            OutputData all(rows, n);
            multiply(*kernels, weight, x.rows(), rows, all.data(), n, space, 2);
            for (int64_t i = 0; i < rows; i += 29) {
                OutputData one(1, n);
                const RowsIn row{reinterpret_cast<const char *>(x.row(i)), 0};
                multiply(*kernels, weight, row, 1, one.data(), n, space, 1);
                CHECK(first_difference(one.row(0), all.row(i), n) < 0, "%s, %s group %d, row %d", kernels->name,
                      c.format, c.scale_group, int(i));
            }
        }
    }
}

// ids with any strides.
struct Ids {
    int64_t n_used, n_tokens, token_stride;
    std::vector<int32_t> data;

    Ids(int64_t n_tokens, int64_t n_used, int64_t token_stride)
        : n_used(n_used), n_tokens(n_tokens), token_stride(token_stride), data(size_t(n_tokens * token_stride), -7) {}
    int32_t & at(int64_t t, int64_t s) { return data[size_t(t * token_stride + s)]; }
    Routing routing() const {
        return {reinterpret_cast<const char *>(data.data()), 4, 4 * token_stride, n_used, n_tokens};
    }
};

static void test_experts() {
    const int64_t n_experts = 5, n = 19, n_used = 2, tokens = quick() ? 20 : 37;
    for (const Case & c : cases()) {
        const int64_t k = c.ks[0] < 128 ? c.ks[1] : c.ks[0];
        MatrixData w(c, n_experts, n, k, 2);
        for (int64_t x_rows : {int64_t(1), n_used}) {
            ActivationData x(tokens * x_rows, k, 4, k + 1);
            for (int spread = 0; spread < 3; ++spread) {
                Ids ids(tokens, n_used, n_used + 3);
                Random random(7);
                for (int64_t t = 0; t < tokens; ++t) {
                    for (int64_t s = 0; s < n_used; ++s) {
                        // ragged; all on the last expert; only experts 1 and 3
                        ids.at(t, s) = spread == 0   ? random.below(int(n_experts))
                                       : spread == 1 ? int32_t(n_experts - 1)
                                                     : int32_t(1 + 2 * ((t + s) % 2));
                    }
                }
                OutputData expected(tokens * n_used, n);
                Workspace space;
                // Slot by slot, each a product of its own.
                for (int64_t t = 0; t < tokens; ++t) {
                    for (int64_t s = 0; s < n_used; ++s) {
                        Matrix one = w.native();
                        one.n_experts = 1;
                        one.data += size_t(ids.at(t, s) * n) * one.row_bytes;
                        const RowsIn row{reinterpret_cast<const char *>(x.row(t * x_rows + s % x_rows)), 0};
                        multiply(scalar(), {one, 0, nullptr, false}, row, 1, expected.data() + (t * n_used + s) * n, n,
                                 space, 1);
                    }
                }
                for (const Kernels * kernels : all_kernels()) {
                    for (int threads : {1, 2}) {
                        for (const Matrix * m : {&w.packed(), &w.native()}) {
                            OutputData out(tokens * n_used, n, n + 1);
                            bool ok = multiply_by_expert(*kernels, {*m, 0, nullptr, false}, x.rows(), x_rows,
                                                         ids.routing(), out.data(), n + 1, space, threads);
                            CHECK(ok && out.same_as(expected) && out.canaries_intact(),
                                  "%s, %s group %d, %d rows per token, spread %d, %d threads, %s", kernels->name,
                                  c.format, c.scale_group, int(x_rows), spread, threads,
                                  m->packed ? "packed" : "native");
                        }
                    }
                    for (int32_t wrong : {-1, int32_t(n_experts), INT32_MIN, INT32_MAX}) {
                        Ids bad = ids;
                        bad.at(tokens - 1, n_used - 1) = wrong;
                        OutputData out(tokens * n_used, n);
                        bool ok = multiply_by_expert(*kernels, {w.packed(), 0, nullptr, false}, x.rows(), x_rows,
                                                     bad.routing(), out.data(), n, space, 1);
                        CHECK(!ok && out.untouched(), "%s: expert %d was taken", kernels->name, int(wrong));
                    }
                }
            }
        }
    }
}

// Subnormal scales and activations survive a caller that flushes them to zero, and its mode is left as it was.
static void test_float_mode() {
    for (const Case & c : cases()) {
        const int64_t k = c.ks[0] < 128 ? c.ks[1] : c.ks[0], n = 16, rows = 20;
        MatrixData w(c, 1, n, k, int(WeightKind::subnormal));
        ActivationData x(rows, k, int(RowKind::subnormal));
        for (const Treatment & t : kTreatments) {
            const std::vector<float> signs = rotation_signs(k, 5);
            const Weight weight = weight_of(w.packed(), t, signs);
            for (const Kernels * kernels : all_kernels()) {
                for (int threads : {1, 2}) {
                    Workspace space;
                    OutputData expected(rows, n), out(rows, n);
                    multiply(*kernels, weight, x.rows(), rows, expected.data(), n, space, threads);
                    // In a thread of its own, so that its helpers start in its mode too.
                    bool kept = false;
                    std::thread flushing([&] {
                        const unsigned long mode = float_mode() | kFlushToZero;
                        set_float_mode(mode);
                        multiply(*kernels, weight, x.rows(), rows, out.data(), n, space, threads);
                        kept = float_mode() == mode;
                    });
                    flushing.join();
                    CHECK(out.same_as(expected), "%s, %s group %d, rotation %d, float %d, %d threads", kernels->name,
                          c.format, c.scale_group, t.rotation, int(t.float_products), threads);
                    CHECK(kept, "the caller's mode was changed");
                }
            }
        }
    }
}

static void test_shares_scale() {
    for (int scale_group : {0, 128, 32}) {
        const Case c{"q8_0", scale_group, {}};
        MatrixData w(c, 1, 3, 256, 0, true);
        std::vector<uint8_t> row(w.native().data, w.native().data + w.native().row_bytes);
        CHECK(shares_scale(w.layout(), row.data()), "scale group %d", scale_group);
        row[5 * 34] ^= 1;  // the sixth of eight blocks
        CHECK(shares_scale(w.layout(), row.data()) == (scale_group == 32), "scale group %d", scale_group);
    }
}

static void test_finite_scales() {
    for (const Case & c : cases()) {
        const int64_t k = 512;
        MatrixData w(c, 1, 1, k, 0, true);
        const size_t block = size_t(w.layout().format->block_bytes), bytes = w.native().row_bytes;
        std::vector<uint8_t> row(w.native().data, w.native().data + bytes);
        CHECK(finite_scales(w.layout(), row.data()), "%s", c.format);
        for (uint16_t d : {uint16_t(0x7c00), uint16_t(0xfc00), uint16_t(0x7e00), uint16_t(0x7bff)}) {
            for (size_t at : {size_t(0), bytes - block}) {
                std::vector<uint8_t> other = row;
                std::memcpy(&other[at], &d, sizeof d);
                const bool finite = d == 0x7bff || std::strcmp(c.format, "mxfp4") == 0;
                CHECK(finite_scales(w.layout(), other.data()) == finite, "%s, d = %04x", c.format, d);
            }
        }
    }
    // The largest exponent of mxfp4: what is read of it is finite.
    const Case c{"mxfp4", 32, {}};
    MatrixData w(c, 1, 1, 32, 0, true);
    std::vector<uint8_t> row(w.native().data, w.native().data + w.native().row_bytes);
    row[0] = 255;
    const MatrixData largest(w.layout(), 1, 1, row);
    uint16_t d;
    std::memcpy(&d, largest.packed().data + w.layout().d_offset, sizeof d);
    CHECK(finite_scales(w.layout(), row.data()) && (d & 0x7f80) != 0x7f80, "d = %04x", d);
}

static void test_layouts_refused() {
    Layout l;
    for (const Case & c : cases()) {
        const Format & f = *find_format(c.format);
        for (int64_t k : {int64_t(-32), int64_t(0), int64_t(1), int64_t(16), int64_t(31), int64_t(f.block_weights) + 16,
                          int64_t(f.block_weights) * 3 / 2}) {
            CHECK(!make_layout(f, k, 32, &l) || k % f.block_weights == 0, "%s takes k = %d", c.format, int(k));
        }
        if (f.code_bits != 8) CHECK(!make_layout(f, 768, 128, &l) && !make_layout(f, 768, 0, &l), "%s", c.format);
        CHECK(!make_layout(f, 768, 64, &l) && !make_layout(f, 768, -1, &l), "%s", c.format);
    }
    CHECK(!make_layout(*find_format("q8_0"), 96, 128, &l), "a range of 128 does not divide 96");
    CHECK(!find_format("q4_k") && !find_format(""), "an unknown format was found");
}

void test_multiply() {
    test_dense();
    test_prepared();
    test_row_alone();
    test_experts();
    test_float_mode();
    test_shares_scale();
    test_finite_scales();
    test_layouts_refused();
}

}  // namespace octet_test
