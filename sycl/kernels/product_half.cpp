// fp16 tiles times dequantized panels (see launch.h): octet_product_half. The second half of the float
// chain: a thread multiplies MT tiles with 16 output rows, 16 columns at a time, and sums in f32.
#include "device.h"

#ifndef OCTET_MT
#error "define OCTET_MT"
#endif

using namespace octet_device;

namespace {

constexpr int kMt = OCTET_MT;
constexpr int kColumns = 16;  // of one dpas

}  // namespace

OCTET_KERNEL(2)
octet_product_half(const Job * jobs, const sycl::half * q, float * out, const int32_t * slot, int32_t k, int32_t n,
                   int32_t ldc) {
    const auto item = sycl::ext::oneapi::this_work_item::get_nd_item<2>();
    const int panel = int(item.get_global_id(1));
    const Job job = read_job(jobs, int(item.get_global_id(0)));
    const sycl::half * weights = reinterpret_cast<const sycl::half *>(job.weights) + int64_t(panel) * kPanelRows * k;
    simd<float, kMt * 128> acc = 0.0f;
    for (int c = 0; c < k; c += kColumns) {
        simd<sycl::half, 256> b;
        b.copy_from(weights + int64_t(c) * kPanelRows, es::overaligned_tag<64>{});
#pragma unroll
        for (int m = 0; m < kMt; ++m) {
            const int tile = job.first_tile + (m < job.tiles ? m : job.tiles - 1);
            simd<sycl::half, 128> a;
            a.copy_from(q + (int64_t(tile) * k + c) * kTileRows, es::overaligned_tag<64>{});
            const simd<float, 128> old = acc.template select<128, 1>(128 * m);
            acc.template select<128, 1>(128 * m) = es::xmx::dpas<8, 8, float, float, sycl::half, sycl::half>(old, b, a);
        }
    }
    store_tiles<kMt>(acc, job, panel, out, slot, ldc);
}
