// The C interface refuses what the kernels could not compute, and says why.
#include "octet/c_api.h"

#include <string>
#include <thread>

#include "check.h"
#include "float_mode.h"
#include "matrix_data.h"
#include "tests.h"

namespace octet_test {

static void refused(int result, const char * word, const char * what) {
    const std::string error = octet_kernel_error();
    CHECK(result != 0 && error.find(word) != std::string::npos, "%s: %d, \"%s\"", what, result, error.c_str());
}
#define REFUSED(call, word) refused(call, word, #call)
#define TAKEN(call) CHECK((call) == 0 && !*octet_kernel_error(), "%s: %s", #call, octet_kernel_error())

static void test_names() {
    const char * names[8] = {};
    const int count = octet_kernel_isas(names, 8);
    CHECK(count == int(faster_kernels().size()) + 1 && std::strcmp(names[0], "scalar") == 0, "%d instruction sets",
          count);
    CHECK(octet_kernel_isas(nullptr, 0) == count, "count without names");
    int64_t weights = 0, bytes = 0;
    TAKEN(octet_kernel_format("iq3_s", &weights, &bytes));
    CHECK(weights == 256 && bytes == 110, "iq3_s");
    REFUSED(octet_kernel_format("q4_k", &weights, &bytes), "q4_k");
    REFUSED(octet_kernel_format(nullptr, &weights, &bytes), "NULL");
}

static void test_elementwise_arguments() {
    float x[64] = {}, d[2];
    int8_t q[64];
    uint8_t blocks[68];
    TAKEN(octet_kernel_rotate(nullptr, x, 1, 64, 32, 0));
    REFUSED(octet_kernel_rotate("sse9", x, 1, 64, 32, 0), "sse9");
    REFUSED(octet_kernel_rotate(nullptr, x, 1, 64, 16, 0), "block");
    REFUSED(octet_kernel_rotate(nullptr, x, 1, 64, 128, 0), "block");
    REFUSED(octet_kernel_rotate(nullptr, x, 1, 40, 32, 0), "k");
    REFUSED(octet_kernel_rotate(nullptr, x, -1, 64, 32, 0), "rows");
    REFUSED(octet_kernel_rotate(nullptr, x, 1, 64, 32, 65536), "seed");
    REFUSED(octet_kernel_rotate(nullptr, nullptr, 1, 64, 32, 0), "NULL");
    TAKEN(octet_kernel_quantize(nullptr, x, 1, 64, 0, q, d));
    REFUSED(octet_kernel_quantize(nullptr, x, 1, 64, 48, q, d), "group");
    REFUSED(octet_kernel_quantize(nullptr, x, 1, 64, 32, q, nullptr), "NULL");
    REFUSED(octet_kernel_quantize(nullptr, x, 1, 262144, 0, q, d), "group");
    TAKEN(octet_kernel_quantize_weights(x, 1, 64, 64, 1, 0, blocks));
    REFUSED(octet_kernel_quantize_weights(x, 1, 64, 0, 0, 128, blocks), "group");
    x[5] = INFINITY;
    REFUSED(octet_kernel_quantize_weights(x, 1, 64, 0, 0, 0, blocks), "finite");
    x[5] = 1e38f;
    REFUSED(octet_kernel_quantize_weights(x, 1, 64, 0, 0, 0, blocks), "fp16");
    REFUSED(octet_kernel_exp(nullptr, x, 1), "NULL");
    TAKEN(octet_kernel_glu(nullptr, "swiglu", x, x, x, 64));
    REFUSED(octet_kernel_glu(nullptr, "glu", x, x, x, 64), "glu");
    REFUSED(octet_kernel_glu(nullptr, nullptr, x, x, x, 64), "NULL");
    REFUSED(octet_kernel_weighted_sum(nullptr, x, nullptr, 0, d, 2), "count");
}

static void test_weights_and_products() {
    const Case c{"q8_0", 0, {}};
    MatrixData m(c, 2, 32, 64, 0, true);
    octet_kernel_weight_spec spec{};
    spec.format = "q8_0";
    spec.n_experts = 2;
    spec.n = 32;
    spec.k = 64;
    spec.packed = 1;
    spec.blocks = m.native().data;
    spec.bytes = 2 * 32 * 68;
    octet_kernel_weight * w = octet_kernel_weight_new(&spec);
    CHECK(w && octet_kernel_weight_bytes(w) == packed_bytes(m.packed()), "%s", octet_kernel_error());
    if (!w) return;

    auto wrong = [&](auto change, const char * word) {
        octet_kernel_weight_spec s = spec;
        change(s);
        refused(octet_kernel_weight_new(&s) ? 0 : -1, word, word);
    };
    wrong([](auto & s) { s.format = "q8_1"; }, "q8_1");
    wrong([](auto & s) { s.format = nullptr; }, "NULL");
    wrong([](auto & s) { s.blocks = nullptr; }, "NULL");
    wrong([](auto & s) { s.k = 65; }, "k");
    wrong([](auto & s) { s.n = 0; }, "n");
    wrong([](auto & s) { s.n_experts = -1; }, "n_experts");
    wrong([](auto & s) { s.bytes -= 1; }, "bytes");
    wrong([](auto & s) { s.scale_group = 128; }, "scale_group");
    wrong([](auto & s) { s.rotation = 128; }, "block");
    wrong([](auto & s) { s.rotation = 32, s.seed = -1; }, "seed");
    std::vector<uint8_t> torn(m.native().data, m.native().data + spec.bytes);
    torn[34] ^= 1;
    wrong([&](auto & s) { s.blocks = torn.data(); }, "scale");

    std::vector<float> x(3 * 64, 0.5f), out(3 * 32), dense(32 * 64);
    std::vector<int32_t> ids = {0, 1, 0};
    std::vector<int8_t> q(3 * 64);
    std::vector<float> d(3);
    TAKEN(octet_kernel_dequantize(w, 1, dense.data()));
    REFUSED(octet_kernel_dequantize(w, 2, dense.data()), "expert");
    TAKEN(octet_kernel_quantize("scalar", x.data(), 3, 64, 0, q.data(), d.data()));
    TAKEN(octet_kernel_product("scalar", w, 1, q.data(), d.data(), 3, out.data()));
    REFUSED(octet_kernel_product("scalar", w, -1, q.data(), d.data(), 3, out.data()), "expert");
    REFUSED(octet_kernel_product("scalar", nullptr, 0, q.data(), d.data(), 3, out.data()), "NULL");
    REFUSED(octet_kernel_product("scalar", w, 0, q.data(), d.data(), -3, out.data()), "rows");
    TAKEN(octet_kernel_product_float("scalar", w, 0, x.data(), 3, out.data()));
    TAKEN(octet_kernel_multiply(nullptr, w, x.data(), 3, out.data(), 2));
    REFUSED(octet_kernel_multiply(nullptr, w, x.data(), 3, out.data(), 0), "n_threads");
    REFUSED(octet_kernel_multiply(nullptr, w, x.data(), 3, nullptr, 1), "NULL");
    TAKEN(octet_kernel_multiply_by_expert(nullptr, w, x.data(), 1, ids.data(), 3, 1, out.data(), 1));
    REFUSED(octet_kernel_multiply_by_expert(nullptr, w, x.data(), 2, ids.data(), 3, 1, out.data(), 1), "x_rows");
    REFUSED(octet_kernel_multiply_by_expert(nullptr, w, x.data(), 1, nullptr, 3, 1, out.data(), 1), "NULL");
    ids[1] = 2;
    REFUSED(octet_kernel_multiply_by_expert(nullptr, w, x.data(), 1, ids.data(), 3, 1, out.data(), 1), "expert");
    ids[1] = 1;

    // gate and up: 32 x 64; down: 16 x 32.
    MatrixData down_data({"q8_0", 32, {}}, 2, 16, 32, 0, true);
    octet_kernel_weight_spec down_spec = spec;
    down_spec.n = 16;
    down_spec.k = 32;
    down_spec.scale_group = 32;
    down_spec.blocks = down_data.native().data;
    down_spec.bytes = 2 * 16 * 34;
    octet_kernel_weight * down = octet_kernel_weight_new(&down_spec);
    spec.packed = 0;
    spec.rotation = 32;
    octet_kernel_weight * rotated = octet_kernel_weight_new(&spec);
    CHECK(down && rotated && octet_kernel_weight_bytes(rotated) == 0, "%s", octet_kernel_error());
    octet_kernel_chain chain{w, w, down, "geglu", 3, 1, x.data(), ids.data(), nullptr, out.data()};
    REFUSED(octet_kernel_run_chain(nullptr, &chain, 1), "rows of gate");  // up == gate means merged
    chain.up = rotated;
    REFUSED(octet_kernel_run_chain(nullptr, &chain, 1), "different activations");
    octet_kernel_weight * up = octet_kernel_weight_new(&spec);
    chain.gate = rotated;
    chain.up = up;
    TAKEN(octet_kernel_run_chain(nullptr, &chain, 2));
    chain.n_used = 0;
    REFUSED(octet_kernel_run_chain(nullptr, &chain, 2), "n_used");
    chain.n_used = 1;
    chain.down = nullptr;
    REFUSED(octet_kernel_run_chain(nullptr, &chain, 2), "NULL");
    for (octet_kernel_weight * each : {w, down, rotated, up}) octet_kernel_weight_free(each);
    octet_kernel_weight_free(nullptr);
}

// The functions that call kernels directly put the mode right too.
static void test_mode() {
    bool ok = false;
    std::thread flushing([&] {
        set_float_mode(float_mode() | kFlushToZero);
        float x[32], d = 0.0f;
        int8_t q[32] = {};
        for (float & v : x) v = 1e-39f;
        ok = octet_kernel_quantize("scalar", x, 1, 32, 32, q, &d) == 0 && q[0] == 127;
    });
    flushing.join();
    CHECK(ok, "subnormal activations were flushed");
}

void test_c_api() {
    test_names();
    test_elementwise_arguments();
    test_weights_and_products();
    test_mode();
}

}  // namespace octet_test
