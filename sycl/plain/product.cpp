// octet_product of launch.h in plain SYCL: the same jobs and tiles, one weight after another.
#include <sycl/builtins.hpp>
#include <sycl/detail/core.hpp>
#include <sycl/ext/oneapi/free_function_queries.hpp>

#include "decode.h"

extern "C" SYCL_EXTERNAL SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(
    (sycl::ext::oneapi::experimental::nd_range_kernel<2>) ) void octet_product(const octet_device::Job * jobs,
                                                                               const int8_t * q, const float * d,
                                                                               const uint32_t * codebook, float * out,
                                                                               const int32_t * slot, int32_t k,
                                                                               int32_t n, int32_t ldc) {
    using namespace octet_device;
    const auto item = sycl::ext::oneapi::this_work_item::get_nd_item<2>();
    const Job job = jobs[item.get_global_id(0)];
    const int panel = int(item.get_global_id(1));
    if (panel * kPanelRows >= n) return;
    constexpr int kRows = OCTET_MT * kTileRows;
    const int rows = job.tiles * kTileRows;
    const int range = OCTET_FORMAT == kInt8Row ? k : OCTET_FORMAT == kInt8x128 ? 128 : OCTET_FORMAT == kIq2S ? 16 : 32;
    const int group = range < 32 ? 32 : range;

    for (int o = panel * kPanelRows; o < panel * kPanelRows + kPanelRows; ++o) {
        const auto * row = reinterpret_cast<const uint8_t *>(job.weights) + int64_t(o) * row_bytes(OCTET_FORMAT, k);
        float acc[kRows] = {};
        int32_t dot[kRows] = {};
        for (int c = 0; c < k; c += 32) {
            const Weights w = decode(OCTET_FORMAT, row, c / 32, codebook);
            for (int half = 0; half < 2; ++half) {
                const bool ends = (c + 16 * half + 16) % range == 0;
                for (int r = 0; r < rows; ++r) {
                    const int64_t tile = job.first_tile + r / kTileRows;
                    const int8_t * a = q + tile * kTileRows * k + c * kTileRows + r % kTileRows * 32 + 16 * half;
                    for (int j = 0; j < 16; ++j) dot[r] += int(a[j]) * int(w.value[16 * half + j]);
                    if (!ends) continue;
                    const float scale = d[(tile * (k / group) + c / group) * kTileRows + r % kTileRows];
                    acc[r] = sycl::fma(float(dot[r]), w.scale[half] * scale, acc[r]);
                    dot[r] = 0;
                }
            }
        }
        for (int r = 0; r < rows; ++r) {
            const int64_t position = int64_t(job.first_tile) * kTileRows + r;
            const int64_t to = slot ? slot[position] : position;
            if (to >= 0) out[to * ldc + job.out_column + o] = acc[r];
        }
    }
}
