// octet_dequantize of launch.h in plain SYCL.
#include <sycl/detail/core.hpp>
#include <sycl/ext/oneapi/free_function_queries.hpp>
#include <sycl/half_type.hpp>

#include "decode.h"

extern "C" SYCL_EXTERNAL SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(
    (sycl::ext::oneapi::experimental::nd_range_kernel<2>) ) void octet_dequantize(const octet_device::Job * jobs,
                                                                                  const uint32_t * codebook,
                                                                                  sycl::half * half, int32_t k,
                                                                                  int32_t n) {
    using namespace octet_device;
    const auto item = sycl::ext::oneapi::this_work_item::get_nd_item<2>();
    const Job job = jobs[item.get_global_id(0)];
    const int64_t panel = int64_t(item.get_global_id(1));
    sycl::half * to = half + (int64_t(job.out_column) * (n / kPanelRows) + panel) * kPanelRows * k;
    for (int o = 0; o < kPanelRows; ++o) {
        const auto * row =
            reinterpret_cast<const uint8_t *>(job.weights) + (panel * kPanelRows + o) * row_bytes(OCTET_FORMAT, k);
        for (int c = 0; c < k; c += 32) {
            const Weights w = decode(OCTET_FORMAT, row, c / 32, codebook);
            for (int j = 0; j < 32; ++j) {
                to[(c + j) / 2 * 2 * kPanelRows + 2 * o + j % 2] = sycl::half(float(w.value[j]) * w.scale[j / 16]);
            }
        }
    }
}
