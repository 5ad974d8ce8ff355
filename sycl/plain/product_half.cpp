// octet_product_half of launch.h in plain SYCL.
#include <sycl/builtins.hpp>
#include <sycl/detail/core.hpp>
#include <sycl/ext/oneapi/free_function_queries.hpp>
#include <sycl/half_type.hpp>

#include "launch.h"

extern "C" SYCL_EXTERNAL SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(
    (sycl::ext::oneapi::experimental::nd_range_kernel<2>) ) void octet_product_half(const octet_device::Job * jobs,
                                                                                    const sycl::half * q, float * out,
                                                                                    const int32_t * slot, int32_t k,
                                                                                    int32_t n, int32_t ldc) {
    using namespace octet_device;
    const auto item = sycl::ext::oneapi::this_work_item::get_nd_item<2>();
    const Job job = jobs[item.get_global_id(0)];
    const int64_t panel = int64_t(item.get_global_id(1));
    if (panel * kPanelRows >= n) return;
    const auto * w = reinterpret_cast<const sycl::half *>(job.weights) + panel * kPanelRows * k;
    for (int r = 0; r < job.tiles * kTileRows; ++r) {
        const int64_t position = int64_t(job.first_tile) * kTileRows + r;
        const int64_t to = slot ? slot[position] : position;
        const sycl::half * a = q + position / kTileRows * kTileRows * k + position % kTileRows * 16;
        float acc[kPanelRows] = {};
        for (int c = 0; c < k; ++c) {
            const float x = float(a[c / 16 * 16 * kTileRows + c % 16]);
            for (int o = 0; o < kPanelRows; ++o) {
                acc[o] = sycl::fma(x, float(w[c / 2 * 2 * kPanelRows + 2 * o + c % 2]), acc[o]);
            }
        }
        if (to < 0) continue;
        for (int o = 0; o < kPanelRows; ++o) out[to * ldc + job.out_column + panel * kPanelRows + o] = acc[o];
    }
}
