// octet_sum: a token's expert outputs, weighted and added in the order of its list. Every product and every
// sum is rounded (built with -ffp-contract=off). Plain SYCL: it runs on every device.
//
// Arguments: y rows `stride` floats apart, row token * used + i; weights [tokens][used]; out [tokens][n].
// Range: {tokens, n rounded up to a multiple of 16}, local {1, 16}.
#include <sycl/detail/core.hpp>
#include <sycl/ext/oneapi/free_function_queries.hpp>

extern "C" SYCL_EXTERNAL SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(
    (sycl::ext::oneapi::experimental::nd_range_kernel<2>) ) void octet_sum(const float * y, const float * weights,
                                                                           float * out, int32_t used, int32_t n,
                                                                           int32_t stride) {
    const auto item = sycl::ext::oneapi::this_work_item::get_nd_item<2>();
    const int64_t token = int64_t(item.get_global_id(0)), column = int64_t(item.get_global_id(1));
    if (column >= n) return;
    float sum = 0.0f;
    for (int32_t i = 0; i < used; ++i) {
        const float part = weights[token * used + i] * y[(token * used + i) * stride + column];
        sum = i ? sum + part : part;
    }
    out[token * n + column] = sum;
}
