// Float rows to tiles (see launch.h): octet_rows. Gathers a row, applies the GLU and the rotation, and
// rounds to the q8_1 grid or to fp16. The bits are those of csrc/isa/elementwise.h.
//
// A thread holds OCTET_CHUNK columns of one row in registers, so that a block of the rotation never leaves
// them. A row-wide scale needs all chunks first; the thread then goes through the row twice rather than
// keep it.
#include "device.h"

#if !defined(OCTET_GLU) || !defined(OCTET_CHUNK) || !defined(OCTET_HALF)
#error "define OCTET_GLU, OCTET_CHUNK and OCTET_HALF"
#endif

using namespace octet_device;

namespace {

constexpr int kChunk = OCTET_CHUNK;
constexpr int kGroups = kChunk / kStep;  // of 32 columns
using Chunk = simd<float, kChunk>;

// 1 + e^x, x clamped to [-87, 88]: Taylor's series to degree 7 after n ln 2 is split off. The last product,
// with a power of two, is exact, so that one rounding does for it and the sum.
ESIMD_INLINE Chunk one_plus_exp(Chunk x) {
    x.merge(Chunk(88.0f), x > 88.0f);
    x.merge(Chunk(-87.0f), x < -87.0f);
    const Chunk n = es::rnde<float>(Chunk(x * 1.44269504088896341f));
    Chunk r = fma<kChunk>(n, Chunk(-0.693145751953125f), x);
    r = fma<kChunk>(n, Chunk(-1.42860682030941723e-6f), r);
    Chunk p = 1.0f / 5040.0f;
    p = fma<kChunk>(p, r, Chunk(1.0f / 720.0f));
    p = fma<kChunk>(p, r, Chunk(1.0f / 120.0f));
    p = fma<kChunk>(p, r, Chunk(1.0f / 24.0f));
    p = fma<kChunk>(p, r, Chunk(1.0f / 6.0f));
    p = fma<kChunk>(p, r, Chunk(0.5f));
    p = fma<kChunk>(p, r, Chunk(1.0f));
    p = fma<kChunk>(p, r, Chunk(1.0f));
    simd<int32_t, kChunk> exponent = (es::convert<int32_t>(n) + 127) << 23;
    return fma<kChunk>(p, Chunk(exponent.template bit_cast_view<float>()), Chunk(1.0f));
}

ESIMD_INLINE Chunk sigmoid_times(Chunk x, Chunk z) { return es::div_ieee(x, one_plus_exp(-z)); }

ESIMD_INLINE Chunk glu(Chunk g, Chunk u) {
    if constexpr (OCTET_GLU == 1) return sigmoid_times(g, g) * u;
    if constexpr (OCTET_GLU == 2) {
        // The maximum changes nothing, as 1 + 1e-30 is 1, but keeps the product apart from the sum.
        const Chunk cubic = es::max<float>(Chunk(0.044715f * Chunk(g * g)), Chunk(1e-30f));
        return sigmoid_times(g, 1.5957691216057308f * (g * (1.0f + cubic))) * u;
    }
    g.merge(Chunk(0.0f), g < 0.0f);
    return g * u;
}

// Stride kStride of the Walsh-Hadamard transform: v[j] becomes partner + v[j], or partner - v[j] where bit
// kStride of j is set.
template <int kStride>
ESIMD_INLINE void butterfly(Chunk & v) {
    constexpr int kPairs = kChunk / (2 * kStride);
    if constexpr (kStride >= 16) {
        auto m = v.template bit_cast_view<float, kPairs, 2 * kStride>();
        const simd<float, kChunk / 2> a = m.template select<kPairs, 1, kStride, 1>(0, 0);
        const simd<float, kChunk / 2> b = m.template select<kPairs, 1, kStride, 1>(0, kStride);
        m.template select<kPairs, 1, kStride, 1>(0, 0) = a + b;
        m.template select<kPairs, 1, kStride, 1>(0, kStride) = a - b;
    } else {
        // Partners are in the same register. Floats cannot be moved between lanes at will, integers can.
        Floats sign;
#pragma unroll
        for (int j = 0; j < 16; ++j) sign[j] = j & kStride ? -1.0f : 1.0f;
        simd<uint32_t, kChunk> own = v.template bit_cast_view<uint32_t>(), other;
        if constexpr (kStride <= 2) {
            // Shorter regions are split; these are strided.
#pragma unroll
            for (int j = 0; j < 2 * kStride; ++j) {
                other.template select<kPairs, 2 * kStride>(j) = own.template select<kPairs, 2 * kStride>(j ^ kStride);
            }
        } else {
            auto from = own.template bit_cast_view<uint32_t, kPairs, 2 * kStride>();
            auto to = other.template bit_cast_view<uint32_t, kPairs, 2 * kStride>();
            to.template select<kPairs, 1, kStride, 1>(0, 0) = from.template select<kPairs, 1, kStride, 1>(0, kStride);
            to.template select<kPairs, 1, kStride, 1>(0, kStride) = from.template select<kPairs, 1, kStride, 1>(0, 0);
        }
        Chunk partner = other.template bit_cast_view<float>();
#pragma unroll
        for (int i = 0; i < kChunk; i += 16) {
            const Floats mine = v.template select<16, 1>(i), its = partner.template select<16, 1>(i);
            v.template select<16, 1>(i) = fma<16>(mine, sign, its);
        }
    }
}

ESIMD_INLINE void rotate(Chunk & v, const float * signs, int rotation) {
    Chunk s;
    s.copy_from(signs);
    v *= s;
    butterfly<1>(v);
    butterfly<2>(v);
    butterfly<4>(v);
    butterfly<8>(v);
    butterfly<16>(v);
    if constexpr (kChunk >= 64) {
        if (rotation >= 64) butterfly<32>(v);
    }
    if constexpr (kChunk >= 128) {
        if (rotation >= 128) butterfly<64>(v);
    }
    // 1 / sqrt(block) rounded to f32.
    v *= rotation == 128 ? 0.08838834764831845f : rotation == 64 ? 0.125f : 0.17677669529663687f;
}

// Columns first ... first + kChunk of a row, as the product wants them before they are rounded.
struct Row {
    const float * x;
    const float * signs;
    int k, rotation;

    ESIMD_INLINE Chunk chunk(int first) const {
        Chunk v;
        v.copy_from(x + first);
        if constexpr (OCTET_GLU != 0) {
            Chunk u;
            u.copy_from(x + k + first);
            v = glu(v, u);
        }
        if (rotation) rotate(v, signs + first, rotation);
        return v;
    }
};

// Magnitudes order as their bits do; infinities and NaNs come last.
template <int kCount>
ESIMD_INLINE uint32_t largest_bits(simd<float, kCount> v) {
    const simd<uint32_t, kCount> bits = v.template bit_cast_view<uint32_t>();
    return es::hmax<uint32_t>(simd<uint32_t, kCount>(bits & 0x7fffffffu));
}

ESIMD_INLINE float scale_of(uint32_t largest) {
    if (largest >= 0x7f800000u) return __builtin_nanf("");
    simd<uint32_t, 16> bits = largest;
    const Floats quotient = es::div_ieee(Floats(bits.template bit_cast_view<float>()), Floats(127.0f));
    return quotient[0];
}

// x / scale rounded half away from zero. A subnormal scale is rounded coarsely enough for the quotient to
// pass 127.
ESIMD_INLINE simd<int8_t, kStep> on_grid(simd<float, kStep> x, float scale) {
    if (!(scale > 0.0f)) return simd<int8_t, kStep>(0);
    simd<float, kStep> y = es::div_ieee(x, simd<float, kStep>(scale));
    y.merge(simd<float, kStep>(127.0f), y > 127.0f);
    y.merge(simd<float, kStep>(-127.0f), y < -127.0f);
    simd<int32_t, kStep> whole = es::convert<int32_t>(y);  // towards zero
    const simd<float, kStep> rest = y - es::convert<float>(whole);
    whole.merge(whole + 1, rest >= 0.5f);
    whole.merge(whole - 1, rest <= -0.5f);
    return es::convert<int8_t>(whole);
}

}  // namespace

OCTET_KERNEL(2)
octet_rows(const float * x, const int32_t * source, const float * signs, void * q, float * d, int32_t k, int32_t stride,
           int32_t group, int32_t rotation) {
    const auto item = sycl::ext::oneapi::this_work_item::get_nd_item<2>();
    const int position = int(item.get_global_id(0)), tile = position / kTileRows, r = position % kTileRows;
    const int from = source[position];
    const bool whole_row = group == k;
    const int groups = whole_row ? 1 : int(group == kStep ? uint32_t(k) / kStep : uint32_t(k) / kChunk);
    const int first = whole_row ? 0 : int(item.get_global_id(1)) * kChunk;
    const int last = whole_row ? k : first + kChunk;
    const Row row{x + int64_t(from) * stride, signs, k, rotation};

    if constexpr (OCTET_HALF) {
        // 8 x 16 columns are 256 bytes; this row's part of them is 32.
        for (int c = first; c < last; c += kChunk) {
            simd<sycl::half, kChunk> h = sycl::half(0.0f);
            if (from >= 0) h = es::convert<sycl::half>(row.chunk(c));
            sycl::half * to = static_cast<sycl::half *>(q) + (int64_t(tile) * k + c) * kTileRows + r * 16;
#pragma unroll
            for (int i = 0; i < kChunk / 16; ++i) {
                simd<sycl::half, 16> part = h.template select<16, 1>(16 * i);
                part.copy_to(to + 128 * i, es::overaligned_tag<32>{});
            }
        }
        return;
    }

    int8_t * to = static_cast<int8_t *>(q) + int64_t(tile) * k * kTileRows + r * kStep;
    float * scales = d + int64_t(tile) * groups * kTileRows + r;
    float scale = 0.0f;
    if (whole_row || group > kStep) {
        uint32_t largest = 0;
        if (from >= 0) {
            for (int c = first; c < last; c += kChunk) {
                const uint32_t here = largest_bits<kChunk>(row.chunk(c));
                largest = here > largest ? here : largest;
            }
        }
        scale = scale_of(largest);
        scales[first / kChunk * kTileRows] = scale;
    }
    for (int c = first; c < last; c += kChunk) {
        Chunk v = 0.0f;
        if (from >= 0) v = row.chunk(c);
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
            const simd<float, kStep> part = v.template select<kStep, 1>(kStep * i);
            if (!whole_row && group == kStep) {
                scale = scale_of(largest_bits<kStep>(part));
                scales[(c / kStep + i) * kTileRows] = scale;
            }
            on_grid(part, scale).copy_to(to + int64_t(c / kStep + i) * kTileRows * kStep, es::overaligned_tag<32>{});
        }
    }
}
