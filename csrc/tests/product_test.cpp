// The product of tiles and a panel: every instruction set gives the scalar's bits, for every format
// and every number of rows, and stays inside its memory.
#include "check.h"
#include "matrix_data.h"
#include "octet/c_api.h"
#include "tests.h"

namespace octet_test {

static const std::vector<int64_t> & row_counts() {
    static const std::vector<int64_t> full = {1, 7, 8, 9, 15, 16, 17, 31, 33, 65}, few = {1, 9, 16, 33, 65};
    return quick() ? few : full;
}

// out[r][o] of panel p and the tile from row `first` on, with a guard page behind the last tile.
struct Product {
    int m;
    Guarded<float> out;
    explicit Product(int m, int panels = 1) : m(m), out(size_t(panels * padded_rows(m) * kPanelRows)) {}
};

static void multiply_one(const Kernels * kernels, const Panel & panel, const TileData & tile, Product & product) {
    kernels->product(&panel, 1, tile.tiles, product.m, product.out.data());
}

static void test_integer(const Case & c, int64_t k, int64_t n, int64_t rows, int64_t start) {
    MatrixData w(c, 1, n, k, start);
    ActivationData x(rows, k, start);
    for (int64_t first = 0; first < rows; first += kMaxRows) {
        const int m = int(std::min<int64_t>(kMaxRows, rows - first));
        TileData tile(w.layout(), m);  // rows that do not exist keep the filler: they must not matter
        for (int r = 0; r < m; ++r)
            scalar().quantize(x.row(first + r), w.layout(), tile.tiles.at(r / kTileRows), r % kTileRows);
        for (int64_t p = 0; p < panel_count(n); ++p) {
            const Panel panel = matrix_panel(w.packed(), 0, p, nullptr, nullptr);
            Product expected(m);
            multiply_one(&scalar(), panel, tile, expected);
            for (int r = 0; r < m; ++r) {
                const float * out = expected.out.data() + r * kPanelRows;
                bool finite = true, none = true, zero = true;
                for (int o = 0; o < std::min<int64_t>(kPanelRows, n - p * kPanelRows); ++o) {
                    finite &= std::isfinite(out[o]) != 0;
                    none &= !std::isfinite(out[o]);
                    zero &= out[o] == 0.0f;
                }
                const RowKind kind = x.kind(first + r);
                CHECK(is_finite(kind) ? finite : none, "%s group %d k %d: kind %d gave %g", c.format, c.scale_group,
                      int(k), int(kind), double(out[0]));
                CHECK(kind != RowKind::zeros || zero, "%s group %d k %d: zeros gave %g", c.format, c.scale_group,
                      int(k), double(out[0]));
            }
            for (const Kernels * fast : faster_kernels()) {
                Product got(m);
                multiply_one(fast, panel, tile, got);
                const int64_t at = first_difference(expected.out.data(), got.out.data(), m * kPanelRows);
                CHECK(at < 0, "%s, %s group %d, k %d, n %d, rows %d: panel %d, row %d, output %d: %.9g, not %.9g",
                      fast->name, c.format, c.scale_group, int(k), int(n), int(rows), int(p),
                      int(first + at / kPanelRows), int(at % kPanelRows), double(got.out[size_t(at)]),
                      double(expected.out[size_t(at)]));
            }
            if (p == 0) continue;
            // Three panels in one call: a pair and one that is left.
            const Panel panels[] = {panel, matrix_panel(w.packed(), 0, p - 1, nullptr, nullptr), panel};
            Product before(m);
            multiply_one(&scalar(), panels[1], tile, before);
            for (const Kernels * fast : faster_kernels()) {
                Product got(m, 3);
                fast->product(panels, 3, tile.tiles, m, got.out.data());
                for (int i = 0; i < 3; ++i) {
                    const Product & one = i == 1 ? before : expected;
                    CHECK(first_difference(one.out.data(), got.out.data() + i * padded_rows(m) * kPanelRows,
                                           m * kPanelRows) < 0,
                          "%s, %s group %d, k %d, n %d, rows %d: panel %d of three", fast->name, c.format,
                          c.scale_group, int(k), int(n), int(rows), i);
                }
            }
        }
    }
}

static void test_float(const Case & c, int64_t k, int64_t n, int64_t rows, int64_t start) {
    MatrixData w(c, 1, n, k, start);
    ActivationData x(rows, k, start);
    for (int64_t first = 0; first < rows; first += kTileRows) {
        const int m = int(std::min<int64_t>(kTileRows, rows - first));
        const float * row[kTileRows] = {};
        for (int r = 0; r < m; ++r) row[r] = x.row(first + r);
        for (int64_t p = 0; p < panel_count(n); ++p) {
            const Panel panel = matrix_panel(w.packed(), 0, p, nullptr, nullptr);
            Product expected(m);
            scalar().product_float(panel, row, m, expected.out.data());
            for (const Kernels * fast : faster_kernels()) {
                Product got(m);
                fast->product_float(panel, row, m, got.out.data());
                CHECK(first_difference(expected.out.data(), got.out.data(), m * kPanelRows) < 0,
                      "%s, float, %s group %d, k %d, n %d, rows %d", fast->name, c.format, c.scale_group, int(k),
                      int(n), int(rows));
            }
        }
    }
}

static float value_of(uint16_t bits, ScaleType type) {
    float value;
    if (type == ScaleType::bf16) {
        const uint32_t wide = uint32_t(bits) << 16;
        std::memcpy(&value, &wide, 4);
        return value;
    }
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    value = exponent ? std::ldexp(float(1024 + fraction), exponent - 25) : std::ldexp(float(fraction), -24);
    return bits & 0x8000 ? -value : value;
}

// What was packed is what reading the file's blocks gives, weight by weight.
static void test_packing(const Case & c, int64_t k) {
    const int64_t n = 21;
    MatrixData w(c, 1, n, k, 3);
    const Layout & l = w.layout();
    const Format & f = *l.format;
    octet_kernel_weight_spec spec{};
    spec.format = c.format;
    spec.n_experts = 1;
    spec.n = n;
    spec.k = k;
    spec.scale_group = c.scale_group;
    spec.packed = 1;
    spec.blocks = w.native().data;
    spec.bytes = size_t(n) * w.native().row_bytes;
    octet_kernel_weight * weight = octet_kernel_weight_new(&spec);
    std::vector<float> got(size_t(n * k));
    CHECK(weight && octet_kernel_dequantize(weight, 0, got.data()) == 0, "%s: %s", c.format, octet_kernel_error());
    octet_kernel_weight_free(weight);

    // The file's blocks, read as they are by each instruction set.
    std::vector<const Kernels *> all = faster_kernels();
    all.push_back(&scalar());
    for (const Kernels * kernels : all) {
        Guarded<uint8_t> room(unpacked_bytes(l));
        for (int64_t p = 0; p < panel_count(n); ++p) {
            const Panel panel = matrix_panel(w.native(), 0, p, kernels->read_blocks, room.data());
            int64_t wrong = -1;
            for (int64_t o = 0; o < std::min<int64_t>(kPanelRows, n - p * kPanelRows); ++o) {
                for (int64_t j = 0; j < k; ++j) {
                    float value = float(int8_t(panel.codes[j / 4 * 64 + o * 4 + j % 4]));
                    value *= value_of(panel.d[j / l.span * kPanelRows + o], f.d_type);
                    if (f.has_mult) value *= float(panel.mult[j / l.range * kPanelRows + o]) * f.unit;
                    if (got[size_t((p * kPanelRows + o) * k + j)] != value) wrong = o * k + j;
                }
            }
            CHECK(wrong < 0, "%s, %s group %d, k %d: weight %d of panel %d", kernels->name, c.format, c.scale_group,
                  int(k), int(wrong), int(p));
        }
    }
}

// The largest sums that int32 has to hold: a whole row of -128 or 127 times 127.
static void test_largest_range() {
    const int64_t k = kMaxRange;
    const Case c{"q8_0", 0, {}};
    Layout layout;
    CHECK(!make_layout(*find_format("q8_0"), kMaxRange + 32, 0, &layout), "k beyond the largest range is taken");
    make_layout(*find_format("q8_0"), k, 0, &layout);
    const size_t bytes = row_bytes(*layout.format, k);
    const int8_t codes[] = {-128, 127, -127, 1};
    std::vector<uint8_t> rows(4 * bytes);
    for (int o = 0; o < 4; ++o) {
        std::memset(rows.data() + size_t(o) * bytes, codes[o], bytes);
        const uint16_t one = 0x3c00;
        for (int64_t b = 0; b < k / 32; ++b) std::memcpy(rows.data() + size_t(o) * bytes + size_t(b) * 34, &one, 2);
    }
    Guarded<uint8_t> panel(layout.panel_bytes), scratch((pack_scratch_bytes(layout) + 63) / 64 * 64);
    pack_panel(layout, rows.data(), bytes, 4, panel.data(), scratch.data());
    Matrix matrix{layout, 4, 1, true, panel.data(), bytes};
    Guarded<float> plus{size_t(k)}, minus{size_t(k)};
    for (int64_t j = 0; j < k; ++j) {
        plus[size_t(j)] = 127.0f;
        minus[size_t(j)] = -127.0f;
    }
    TileData tile(layout);
    scalar().quantize(plus.data(), layout, tile.tiles.first, 0);
    scalar().quantize(minus.data(), layout, tile.tiles.first, 1);
    std::vector<const Kernels *> all = faster_kernels();
    all.push_back(&scalar());
    for (const Kernels * kernels : all) {
        Product got(2);
        multiply_one(kernels, matrix_panel(matrix, 0, 0, nullptr, nullptr), tile, got);
        for (int o = 0; o < 4; ++o) {
            const float expected = float(int64_t(codes[o]) * 127 * k);
            CHECK(got.out[size_t(o)] == expected && got.out[size_t(kPanelRows + o)] == -expected,
                  "%s, code %d: %.9g, %.9g", kernels->name, codes[o], double(got.out[size_t(o)]),
                  double(got.out[size_t(kPanelRows + o)]));
        }
    }
}

#if defined(__x86_64__)
// Another user of the tile registers finds its configuration again.
static void test_tile_configuration() {
    if (!kernels_of(Isa::amx)) return;
    struct Bytes64 {
        uint8_t byte[64];
    };
    alignas(64) Bytes64 theirs = {}, after = {};
    theirs.byte[0] = 1;
    for (int t = 0; t < 8; ++t) {
        theirs.byte[16 + 2 * t] = uint8_t(4 * (t + 1));
        theirs.byte[48 + t] = uint8_t(2 * t + 1);
    }
    for (const Case & c : cases()) {
        MatrixData w(c, 1, 16, c.ks.back(), 0, true);
        TileData tile(w.layout());
        ActivationData x(16, c.ks.back(), 0, 0, true);
        for (int r = 0; r < 16; ++r) scalar().quantize(x.row(r), w.layout(), tile.tiles.first, r);
        Product got(16);
        __asm__ volatile("ldtilecfg %0" : : "m"(theirs));
        multiply_one(kernels_of(Isa::amx), matrix_panel(w.packed(), 0, 0, nullptr, nullptr), tile, got);
        __asm__ volatile("sttilecfg %0" : "=m"(after));
        __asm__ volatile("tilerelease");
        CHECK(std::memcmp(&theirs, &after, 64) == 0, "%s: the tile configuration was changed", c.format);

        multiply_one(kernels_of(Isa::amx), matrix_panel(w.packed(), 0, 0, nullptr, nullptr), tile, got);
        __asm__ volatile("sttilecfg %0" : "=m"(after));
        CHECK(after.byte[0] == 0, "%s: the tiles were left in use", c.format);
    }
}
#endif

void test_product() {
    int64_t start = 0;
    for (const Case & c : cases()) {
        for (int64_t k : c.ks) test_packing(c, k);
        for (size_t i = 0; i < c.ks.size(); ++i) {
            if (quick() && i != 0 && i + 1 != c.ks.size()) continue;
            for (int64_t n : row_counts()) {
                for (int64_t rows : row_counts()) test_integer(c, c.ks[i], n, rows, start++);
            }
            // How a kernel divides a tile depends on the number of rows: every one of them.
            for (int64_t rows = 1; i == 0 && rows <= kTileRows; ++rows) test_integer(c, c.ks[i], 17, rows, start++);
            // Every number of tiles in one call, with and without a rest; and more rows than one call takes.
            for (int64_t rows : {47, 64, 74, 81, 100, 112, 128, 150}) test_integer(c, c.ks[i], 17, rows, start++);
            for (int64_t rows : {1, 8, 17}) test_float(c, c.ks[i], rows == 8 ? 17 : 9, rows, start++);
        }
    }
    test_largest_range();
#if defined(__x86_64__)
    test_tile_configuration();
#endif
}

}  // namespace octet_test
