// Blocks of weights to fp16 in the order of dpas (see launch.h): octet_dequantize. The first half of the
// float chain; code times scale is exact in f32 and rounded once.
#include "float_formats.h"

#ifndef OCTET_FORMAT
#error "define OCTET_FORMAT"
#endif

using namespace octet_device;

namespace {

constexpr bool kMakesCodebook = OCTET_FORMAT == kIq4Nl || OCTET_FORMAT == kIq4Xs || OCTET_FORMAT == kMxfp4;

template <typename F>
ESIMD_INLINE void dequantize(const uint8_t * weights, Lanes rows, const Codebook & codebook, sycl::half * out,
                             int steps) {
    Blocks<F::kWords> blocks;
    for (int s = 0; s < steps; ++s) {
        if (s % F::kSteps == 0) read_block<F>(weights, rows + uint32_t(s / F::kSteps) * block_bytes<F>(0), blocks);
        Quads quads;
        simd<float, 16 * F::kScales> scale;
        F::template decode<false>(blocks, s % F::kSteps, codebook, quads, scale);
        auto bytes = quads.template bit_cast_view<int8_t>();
        // Quad i is pairs 2 i and 2 i + 1 of columns.
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const Floats its_scale = scale.template select<16, 1>(F::kScales == 2 ? 16 * (i / 4) : 0);
            simd<sycl::half, 64> part;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const Floats code = es::convert<float>(simd<int8_t, 16>(bytes.template select<16, 4>(64 * i + j)));
                part.template select<16, 2>(32 * (j / 2) + j % 2) = es::convert<sycl::half>(Floats(code * its_scale));
            }
            part.copy_to(out + int64_t(s) * 512 + 64 * i, es::overaligned_tag<64>{});
        }
    }
}

}  // namespace

OCTET_KERNEL(2)
octet_dequantize(const Job * jobs, const uint32_t * codebook, sycl::half * half, int32_t k, int32_t n) {
    const auto item = sycl::ext::oneapi::this_work_item::get_nd_item<2>();
    const int panel = int(item.get_global_id(1));
    const Job job = read_job(jobs, int(item.get_global_id(0)));
    if constexpr (kMakesCodebook) {
        using F = Format<kMakesCodebook ? OCTET_FORMAT : kIq4Nl>;
        es::slm_init<1024>();
        F::make_codebook<1>(0, F::values());
        es::barrier();
    }
    const Panel p = panel_of<OCTET_FORMAT>(job, panel, k);
    dequantize<Format<OCTET_FORMAT>>(p.base, p.rows, codebook_of(job, codebook),
                                     half + (int64_t(job.out_column) * n + panel * kPanelRows) * k, k / kStep);
}
