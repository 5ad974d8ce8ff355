// What the kernels share: reading blocks of weights, scales, and arithmetic without contraction.
//
// The compiler behind ESIMD fuses a product and a sum that follow each other into one rounding, whatever
// it is told. Where two roundings are meant, nothing here adds a product directly.
#pragma once

// Not all of sycl.hpp: these take half the time to compile, which is done on the user's machine.
#include <sycl/ext/intel/esimd.hpp>
#include <sycl/ext/intel/experimental/grf_size_properties.hpp>
#include <sycl/ext/oneapi/free_function_kernel_properties.hpp>
#include <sycl/ext/oneapi/free_function_queries.hpp>

#include "launch.h"

// Registers of a thread, 256 or 128; half as many threads share a vector engine with 256.
#ifndef OCTET_GRF
#define OCTET_GRF 256
#endif

namespace octet_device {

namespace es = sycl::ext::intel::esimd;
using es::simd;
using Lanes = simd<uint32_t, kPanelRows>;  // a word of each of 16 output rows
using Floats = simd<float, kPanelRows>;

#define OCTET_KERNEL(dimensions)                                                                  \
    extern "C" SYCL_EXTERNAL SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(                                   \
        (sycl::ext::oneapi::experimental::nd_range_kernel<dimensions>) )                          \
        SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::intel::experimental::grf_size<OCTET_GRF>) ) \
            SYCL_ESIMD_KERNEL void

// a * b + c, rounded once.
template <int N>
ESIMD_INLINE simd<float, N> fma(simd<float, N> a, simd<float, N> b, simd<float, N> c) {
    typename simd<float, N>::raw_vector_type x = a.data(), y = b.data(), z = c.data();
    return simd<float, N>(__builtin_elementwise_fma(x, y, z));
}

// fp16 bits as f32, subnormals too: these kernels run with denormals retained (the compiler's prologue sets
// so, and the offline table checks it).
template <int N>
ESIMD_INLINE simd<float, N> half_to_float(simd<uint16_t, N> bits) {
    simd<sycl::half, N> h = bits.template bit_cast_view<sycl::half>();
    return es::convert<float>(h);
}

ESIMD_INLINE Job read_job(const Job * jobs, int index) {
    simd<uint32_t, 8> w;
    w.copy_from(reinterpret_cast<const uint32_t *>(jobs + index));
    Job job;
    job.weights = uint64_t(uint32_t(w[0])) | uint64_t(uint32_t(w[1])) << 32;
    job.first_tile = int32_t(uint32_t(w[2]));
    job.tiles = int32_t(uint32_t(w[3]));
    job.out_column = int32_t(uint32_t(w[4]));
    return job;
}

// One block of each of 16 output rows: its fp16 d, and the words behind it.
template <int kWords>
struct Blocks {
    simd<uint32_t, kPanelRows * kWords> words;  // word j of row n at 16 j + n
    simd<uint16_t, kPanelRows> d;
};

// Reads the blocks (2 + 4 kWords bytes) at base + offset of each row. base is a multiple of 4, offsets are
// of 2, and loads have to be aligned. Where a block's words are misaligned, the kWords words that begin with
// d are loaded instead and the last two bytes apart; everything read lies in the block.
template <int kWords>
ESIMD_INLINE void read_blocks(const uint8_t * base, Lanes offset, Blocks<kWords> & b) {
    const es::simd_mask<kPanelRows> shifted = (offset & 2) == 0;  // the words are 2 mod 4
    const Lanes aligned = (offset + 2) & ~3u;
    constexpr int kFours = kWords / 4, kRest = kWords % 4;
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
        b.words.template select<64, 1>(64 * i) =
            es::gather<uint32_t, 64, 4>(reinterpret_cast<const uint32_t *>(base + 16 * i), aligned);
    }
    if constexpr (kRest > 0) {
        b.words.template select<16 * kRest, 1>(64 * kFours) =
            es::gather<uint32_t, 16 * kRest, kRest>(reinterpret_cast<const uint32_t *>(base + 16 * kFours), aligned);
    }
    Lanes last = offset;
    last.merge(offset + 4 * kWords, shifted);
    simd<uint16_t, kPanelRows> tail = es::gather<uint16_t, kPanelRows>(reinterpret_cast<const uint16_t *>(base), last);
    auto half = b.words.template bit_cast_view<uint16_t>();
    b.d = tail;
    b.d.merge(simd<uint16_t, kPanelRows>(half.template select<16, 2>(0)), shifted);
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
        half.template select<16, 2>(32 * j).merge(simd<uint16_t, kPanelRows>(half.template select<16, 2>(32 * j + 1)),
                                                  shifted);
        if (j + 1 < kWords) {
            half.template select<16, 2>(32 * j + 1)
                .merge(simd<uint16_t, kPanelRows>(half.template select<16, 2>(32 * j + 32)), shifted);
        } else {
            half.template select<16, 2>(32 * j + 1).merge(tail, shifted);
        }
    }
}

// Word i of each row; i may be known at run time only.
template <int kWords>
ESIMD_INLINE Lanes word(Blocks<kWords> & b, int i) {
    return b.words.template select<kPanelRows, 1>(kPanelRows * i);
}

// Writes 8 rows x 16 output rows of each tile of a job: position p to row slot[p] of `out` unless that is
// negative, or to row p if there are no slots.
template <int kMt>
ESIMD_INLINE void store_tiles(simd<float, kMt * 128> & acc, const Job & job, int panel, float * out,
                              const int32_t * slot, int ldc) {
    float * column = out + job.out_column + panel * kPanelRows;
#pragma unroll
    for (int m = 0; m < kMt; ++m) {
        if (m < job.tiles) {
            const int position = (job.first_tile + m) * kTileRows;
            simd<int32_t, kTileRows> to(position, 1);
            if (slot) to.copy_from(slot + position);
#pragma unroll
            for (int r = 0; r < kTileRows; ++r) {
                const int row = to[r];
                const Floats values = acc.template select<16, 1>(128 * m + 16 * r);
                if (row >= 0) values.copy_to(column + int64_t(row) * ldc);
            }
        }
    }
}

}  // namespace octet_device
