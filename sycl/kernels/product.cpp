// int8 tiles times blocks of weights (see launch.h): octet_product.
//
// A thread decodes 16 output rows x 32 columns into registers once and multiplies MT tiles with them. Of its
// registers of 64 bytes, MT x 8 are accumulators, 8 the operand, up to 27 the blocks it decodes from. A tile
// costs 16 cycles of dpas and 24 of float arithmetic (8 rows x convert, scale product, fma), so MT spreads the
// decoding until the float part dominates.
#include "formats.h"

#ifndef OCTET_FORMAT
#error "define OCTET_FORMAT, OCTET_MT and OCTET_WG"
#endif

using namespace octet_device;

namespace {

constexpr int kMt = OCTET_MT;
constexpr bool kWg = OCTET_WG;
using F = Format<OCTET_FORMAT>;
using Nl = Format<kIq4Nl>;  // whose codebook is made here
// Steps of 32 columns whose integers are summed before they are scaled; 0 = all.
constexpr int kRangeSteps = OCTET_FORMAT == kInt8Row ? 0 : OCTET_FORMAT == kInt8x128 ? 4 : 1;

constexpr int kTileBytes = kTileRows * kStep;
constexpr int kChunk = 4;                                   // steps between two barriers
constexpr int kChunkBytes = kMt * kChunk * kTileBytes;      // of tiles in local memory: [step][tile][256]
constexpr int kChunkScales = kMt * kChunk * kTileRows * 4;  // of scales: [step][tile][8]
// Local memory: the codebook, two buffers of tiles, two of their scales.
constexpr bool kMakesCodebook = OCTET_FORMAT == kIq4Nl;
constexpr int kCodebookWords = codebook_words(OCTET_FORMAT);
constexpr int kLocalTiles = 4 * (kMakesCodebook ? 256 : kCodebookWords);
constexpr int kLocalScales = kLocalTiles + 2 * kChunkBytes;
constexpr int kLocalBytes = kWg ? kLocalScales + 2 * kChunkScales : kMakesCodebook ? kLocalTiles : 0;
constexpr int kMySteps = kMt * kChunk / kGroupThreads;  // that a thread copies of each chunk: 1, 2 or 4

// The activations of a job.
struct Tiles {
    const int8_t * q;
    const float * d;
    int first, last;  // tiles
    int steps;        // of a row
    int ranges;       // of a row

    // Rows that a job lacks up to MT tiles are computed from its last tile and dropped.
    ESIMD_INLINE int tile(int m) const { return first + m < last ? first + m : last; }
    ESIMD_INLINE const int8_t * step(int m, int s) const { return q + (int64_t(tile(m)) * steps + s) * kTileBytes; }
    ESIMD_INLINE const float * scales(int m, int range) const {
        return d + (int64_t(tile(m)) * ranges + range) * kTileRows;
    }
};

using Operand = simd<int32_t, 64>;  // A: 8 rows x 32 columns
using Sums = simd<int32_t, 128>;    // C: 8 rows x 16 output rows
using Scales = simd<float, kTileRows>;

ESIMD_INLINE Sums dpas(Quads b, Operand a) {
    return es::xmx::dpas<8, 8, int32_t, int32_t, int8_t, int8_t>(Sums(0),
                                                                 simd<int8_t, 512>(b.template bit_cast_view<int8_t>()),
                                                                 simd<int8_t, 256>(a.template bit_cast_view<int8_t>()));
}
ESIMD_INLINE Sums dpas(Sums c, Quads b, Operand a) {
    return es::xmx::dpas<8, 8, int32_t, int32_t, int8_t, int8_t>(c,
                                                                 simd<int8_t, 512>(b.template bit_cast_view<int8_t>()),
                                                                 simd<int8_t, 256>(a.template bit_cast_view<int8_t>()));
}

// acc = fma(float(dot), weight scale * activation scale, acc) for the 8 rows of tile m.
ESIMD_INLINE void accumulate(simd<float, kMt * 128> & acc, int m, Sums sums, Floats weight,
                             simd<float, kMt * kTileRows> & rows) {
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
        const Floats dot = es::convert<float>(simd<int32_t, 16>(sums.template select<16, 1>(16 * r)));
        const Floats old = acc.template select<16, 1>(128 * m + 16 * r);
        acc.template select<16, 1>(128 * m + 16 * r) = fma<16>(dot, weight * float(rows[kTileRows * m + r]), old);
    }
}

// Where a thread finds its tiles: global memory, or the work-group's copy. The copy holds two chunks; while
// one is multiplied, the next is on its way through registers.
struct Source {
    Tiles t;
    int me;      // of the 8 threads
    int buffer;  // that is read
    simd<int32_t, kMySteps * 64> next_q;
    simd<float, kMySteps * kTileRows> next_d;

    // This thread's share of the chunk that begins with step s: kMySteps steps of tile me * kMySteps / 4.
    ESIMD_INLINE void fetch(int s) {
        const int m = me * kMySteps / kChunk, first = s + me * kMySteps % kChunk;
#pragma unroll
        for (int i = 0; i < kMySteps; ++i) {
            if (first + i < t.steps) {
                Operand a;
                a.copy_from(reinterpret_cast<const int32_t *>(t.step(m, first + i)));
                next_q.template select<64, 1>(64 * i) = a;
                if constexpr (kRangeSteps == 1) {
                    Scales d;
                    d.copy_from(t.scales(m, first + i));
                    next_d.template select<kTileRows, 1>(kTileRows * i) = d;
                }
            }
        }
    }

    // The share that was fetched becomes visible to the group, which reads it from now on.
    ESIMD_INLINE void turn(int into) {
#pragma unroll
        for (int i = 0; i < kMySteps; ++i) {
            // My steps are behind one another in memory, but in local memory a step of all tiles is.
            const int at = (me * kMySteps % kChunk + i) * kMt + me * kMySteps / kChunk;
            es::slm_block_store<int32_t, 64>(kLocalTiles + into * kChunkBytes + at * kTileBytes,
                                             simd<int32_t, 64>(next_q.template select<64, 1>(64 * i)));
            if constexpr (kRangeSteps == 1) {
                es::slm_block_store<float, kTileRows>(
                    kLocalScales + into * kChunkScales + at * kTileRows * 4,
                    simd<float, kTileRows>(next_d.template select<kTileRows, 1>(kTileRows * i)));
            }
        }
        es::barrier();
        buffer = into;
    }

    // Called with every step in turn.
    ESIMD_INLINE void advance(int s) {
        if constexpr (kWg) {
            if (s % kChunk == 0) {
                turn(s / kChunk % 2);
                if (s + kChunk < t.steps) fetch(s + kChunk);
            }
        }
    }

    ESIMD_INLINE Operand operand(int m, int s) const {
        if constexpr (kWg) {
            return es::slm_block_load<int32_t, 64>(kLocalTiles + buffer * kChunkBytes +
                                                   (s % kChunk * kMt + m) * kTileBytes);
        }
        Operand a;
        a.copy_from(reinterpret_cast<const int32_t *>(t.step(m, s)));
        return a;
    }

    // Of all tiles, 8 each.
    ESIMD_INLINE simd<float, kMt * kTileRows> scales(int range) const {
        if constexpr (kWg && kRangeSteps == 1) {
            return es::slm_block_load<float, kMt * kTileRows>(kLocalScales + buffer * kChunkScales +
                                                              range % kChunk * kMt * kTileRows * 4);
        }
        simd<float, kMt * kTileRows> all;
#pragma unroll
        for (int m = 0; m < kMt; ++m) {
            Scales d;
            d.copy_from(t.scales(m, range));
            all.template select<kTileRows, 1>(kTileRows * m) = d;
        }
        return all;
    }
};

// acc of all steps. Threads that have no panel (mine is false) only help to copy.
template <typename F>
ESIMD_INLINE void multiply(Source & x, const uint8_t * weights, Lanes rows, const Codebook & codebook, bool mine,
                           simd<float, kMt * 128> & acc) {
    constexpr int kBlockBytes = 2 + 4 * F::kWords;
    const int steps = x.t.steps;
    Blocks<F::kWords> blocks;

    if constexpr (kRangeSteps == 1) {
        for (int s = 0; s < steps; ++s) {
            x.advance(s);
            if (!mine) continue;
            if (s % F::kSteps == 0) read_blocks(weights, rows + uint32_t(s / F::kSteps) * kBlockBytes, blocks);
            Quads b;
            simd<float, 16 * F::kScales> scale;
            F::template decode<kWg>(blocks, s % F::kSteps, codebook, b, scale);
            simd<float, kMt * kTileRows> sa = x.scales(s);
            if constexpr (F::kScales == 1) {
#pragma unroll
                for (int m = 0; m < kMt; ++m) {
                    accumulate(acc, m, dpas(b, x.operand(m, s)), scale, sa);
                }
            } else {
                Quads first = b, second = b;
                first.template select<64, 1>(64) = 0;
                second.template select<64, 1>(0) = 0;
#pragma unroll
                for (int m = 0; m < kMt; ++m) {
                    const Operand a = x.operand(m, s);
                    accumulate(acc, m, dpas(first, a), scale.template select<16, 1>(0), sa);
                    accumulate(acc, m, dpas(second, a), scale.template select<16, 1>(16), sa);
                }
            }
        }
    } else if constexpr (kRangeSteps == 4) {
        for (int s = 0; s < steps; s += 4) {
            x.advance(s);
            if (!mine) continue;
            simd<uint32_t, 4 * 128> b;
            Floats scale;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                read_blocks(weights, rows + uint32_t(s + i) * kBlockBytes, blocks);
                b.template select<128, 1>(128 * i) = blocks.words;
                if (i == 0) scale = half_to_float(blocks.d);
            }
            simd<float, kMt * kTileRows> sa = x.scales(s / 4);
#pragma unroll
            for (int m = 0; m < kMt; ++m) {
                Sums sums = 0;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    sums = dpas(sums, Quads(b.template select<128, 1>(128 * i)), x.operand(m, s + i));
                }
                accumulate(acc, m, sums, scale, sa);
            }
        }
    } else {
        simd<int32_t, kMt * 128> sums = 0;
        Floats scale = 0.0f;
        for (int s = 0; s < steps; ++s) {
            x.advance(s);
            if (!mine) continue;
            read_blocks(weights, rows + uint32_t(s) * kBlockBytes, blocks);
            if (s == 0) scale = half_to_float(blocks.d);
#pragma unroll
            for (int m = 0; m < kMt; ++m) {
                const Sums old = sums.template select<128, 1>(128 * m);
                sums.template select<128, 1>(128 * m) = dpas(old, blocks.words, x.operand(m, s));
            }
        }
        if (mine) {
            simd<float, kMt * kTileRows> sa = x.scales(0);
#pragma unroll
            for (int m = 0; m < kMt; ++m) {
                accumulate(acc, m, Sums(sums.template select<128, 1>(128 * m)), scale, sa);
            }
        }
    }
}

}  // namespace

OCTET_KERNEL(2)
octet_product(const Job * jobs, const int8_t * q, const float * d, const uint32_t * codebook, float * out,
              const int32_t * slot, int32_t k, int32_t n, int32_t ldc) {
    if constexpr (kLocalBytes > 0) es::slm_init<kLocalBytes>();
    const auto item = sycl::ext::oneapi::this_work_item::get_nd_item<2>();
    const int panel = int(item.get_global_id(1));
    const Job job = read_job(jobs, int(item.get_global_id(0)));
    const int steps = k / kStep;

    Source x;
    x.t.q = q;
    x.t.d = d;
    x.t.first = job.first_tile;
    x.t.last = job.first_tile + job.tiles - 1;
    x.t.steps = steps;
    x.t.ranges = kRangeSteps == 0 ? 1 : steps / kRangeSteps;
    x.buffer = 0;
    x.me = 0;
    if constexpr (kWg) {
        x.me = int(item.get_local_id(1));
        if constexpr (kCodebookWords > 0) {
            constexpr int kShare = kCodebookWords / kGroupThreads;
#pragma unroll
            for (int i = 0; i < kShare; i += 32) {
                simd<uint32_t, 32> part;
                part.copy_from(codebook + x.me * kShare + i);
                es::slm_block_store<uint32_t, 32>((x.me * kShare + i) * 4, part);
            }
        }
        if constexpr (kMakesCodebook) Nl::make_codebook<kGroupThreads>(x.me, Nl::values());
        x.next_q = 0;
        x.next_d = 0.0f;
        x.fetch(0);
    } else if constexpr (kMakesCodebook) {
        Nl::make_codebook<1>(0, Nl::values());
        es::barrier();
    }

    const bool mine = !kWg || panel * kPanelRows < n;
    const Panel p = panel_of<OCTET_FORMAT>(job, panel, k);
    simd<float, kMt * 128> acc = 0.0f;
    multiply<F>(x, p.base, p.rows, codebook_of(job, codebook), mine, acc);
    if (mine) store_tiles<kMt>(acc, job, panel, out, slot, ldc);
}
