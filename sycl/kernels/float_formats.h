// The formats that the float chain alone takes, decoded as those of formats.h are.
#pragma once

#include "formats.h"

namespace octet_device {

// 32 weights of which eight have an entry of two codebook words, one after another, and eight signs, the eighth
// of which makes the number of minus signs even.
template <bool kLocal, int kEight>
ESIMD_INLINE void put_eight(Lanes offset, Lanes seven, const Codebook & codebook, Quads & q) {
    const Lanes signs = seven | (Lanes(es::cbit(seven)) << 7 & 128u);
    simd<uint32_t, 32> entry = look_up<kLocal, 2>(codebook, offset);
    q.select<16, 1>(32 * kEight) = apply_signs<0>(entry.select<16, 1>(0), signs);
    q.select<16, 1>(32 * kEight + 16) = apply_signs<4>(entry.select<16, 1>(16), signs);
}

// d @0; per 32 weights four index bytes, then four times seven signs and the scale on top.
template <>
struct Format<kIq2Xxs> {
    static constexpr int kWords = 16, kSteps = 8, kScales = 1;

    template <bool kLocal>
    static ESIMD_INLINE void decode(Blocks<kWords> & b, int g, const Codebook & codebook, Quads & q,
                                    simd<float, 16> & scale) {
        const Lanes index = word(b, 2 * g), aux = word(b, 2 * g + 1);
        put_eight<kLocal, 0>(entry_of<3>(index, 0, codebook), aux & 127u, codebook, q);
        put_eight<kLocal, 1>(entry_of<3>(index, 1, codebook), aux >> 7 & 127u, codebook, q);
        put_eight<kLocal, 2>(entry_of<3>(index, 2, codebook), aux >> 14 & 127u, codebook, q);
        put_eight<kLocal, 3>(entry_of<3>(index, 3, codebook), aux >> 21 & 127u, codebook, q);
        scale = scale_of(b.d, aux >> 28, 0.125f);
    }
};

// d @0, u16[32] @2: nine bits of index, seven of sign; scales[8] @66: one of columns 0 ... 15, one of 16 ... 31.
template <>
struct Format<kIq2Xs> {
    static constexpr int kWords = 18, kSteps = 8, kScales = 2;

    template <bool kLocal, int kTwo>
    static ESIMD_INLINE void two(Lanes w, const Codebook & codebook, Quads & q) {
        const uint32_t index = 511u << 3 | codebook.zero;
        put_eight<kLocal, 2 * kTwo>(w << 3 & index, w >> 9 & 127u, codebook, q);
        put_eight<kLocal, 2 * kTwo + 1>(w >> 13 & index, w >> 25, codebook, q);
    }

    template <bool kLocal>
    static ESIMD_INLINE void decode(Blocks<kWords> & b, int g, const Codebook & codebook, Quads & q,
                                    simd<float, 32> & scale) {
        two<kLocal, 0>(word(b, 2 * g), codebook, q);
        two<kLocal, 1>(word(b, 2 * g + 1), codebook, q);
        const Lanes scales = word(b, 16 + g / 4) >> (8 * (g % 4));
        scale.select<16, 1>(0) = scale_of(b.d, scales & 15, 0.125f);
        scale.select<16, 1>(16) = scale_of(b.d, scales >> 4 & 15, 0.125f);
    }
};

// d @0, u16 @2 and [4] @4: the two high and four low bits of eight scales, which are 32 too large; then as
// IQ4_NL, 16 bytes per 32 weights. Blocks of 136 bytes begin at multiples of 8; word 0 holds d.
template <>
struct Format<kIq4Xs> : Format<kIq4Nl> {
    static constexpr int kBytes = 136, kWords = 34, kSteps = 8, kScales = 1;

    static ESIMD_INLINE void read(const uint8_t * base, Lanes offset, Blocks<kWords> & b) {
#pragma unroll
        for (int i = 0; i < kWords; i += 2) {
            b.words.select<32, 1>(16 * i) =
                es::gather<uint32_t, 32, 2>(reinterpret_cast<const uint32_t *>(base + 4 * i), offset);
        }
        b.d = b.words.bit_cast_view<uint16_t>().select<16, 2>(0);
    }

    template <bool kLocal>
    static ESIMD_INLINE void decode(Blocks<kWords> & b, int g, const Codebook & codebook, Quads & q,
                                    simd<float, 16> & scale) {
        two_quads<0>(word(b, 4 * g + 2), codebook, q);
        two_quads<1>(word(b, 4 * g + 3), codebook, q);
        two_quads<2>(word(b, 4 * g + 4), codebook, q);
        two_quads<3>(word(b, 4 * g + 5), codebook, q);
        const Lanes bits = (word(b, 1) >> (4 * g) & 15u) | (word(b, 0) >> (16 + 2 * g) << 4 & 48u);
        const simd<int32_t, 16> mult = simd<int32_t, 16>(bits) - 32;
        scale = half_to_float(b.d) * es::convert<float>(mult);
    }
};

// d @0, qs[16] @2: nibbles minus 8, those of columns 0 ... 15 low, those of 16 ... 31 high.
template <>
struct Format<kQ40> {
    static constexpr int kWords = 4, kSteps = 1, kScales = 1;

    // Bit 3, turned over, is the sign of a nibble minus 8: it is copied to the four above it.
    static ESIMD_INLINE Lanes minus_8(Lanes nibbles) {
        const Lanes x = (nibbles & 0x0f0f0f0fu) ^ 0x08080808u;
        return x | Lanes((x & 0x08080808u) * 30u);
    }

    template <bool kLocal>
    static ESIMD_INLINE void decode(Blocks<kWords> & b, int, const Codebook &, Quads & q, simd<float, 16> & scale) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const Lanes w = word(b, i);
            q.select<16, 1>(16 * i) = minus_8(w);
            q.select<16, 1>(16 * i + 64) = minus_8(w >> 4);
        }
        scale = half_to_float(b.d);
    }
};

// An exponent e @0, nibbles @1 as in IQ4_NL, into doubled values: the scale is 2^(e - 128). Blocks of 17 bytes
// begin anywhere; 16 rows of them end at a multiple of 16, so words around a block lie in the matrix.
template <>
struct Format<kMxfp4> : Format<kIq4Nl> {
    static constexpr int kBytes = 17;

    static ESIMD_INLINE simd<uint32_t, 16> values() {
        return simd<uint32_t, 16>({0, 1, 2, 3, 4, 6, 8, 12, 0, 255, 254, 253, 252, 250, 248, 244});
    }

    static ESIMD_INLINE void read(const uint8_t * base, Lanes offset, Blocks<kWords> & b) {
        const Lanes first = offset & ~3u, bits = (offset & 3) * 8;
        simd<uint32_t, 80> five;
        five.select<64, 1>(0) = es::gather<uint32_t, 64, 4>(reinterpret_cast<const uint32_t *>(base), first);
        five.select<16, 1>(64) = es::gather<uint32_t, 16>(reinterpret_cast<const uint32_t *>(base + 16), first);
        const Lanes e = Lanes(five.select<16, 1>(0)) >> bits & 255u;
        b.d = es::convert<uint16_t>(e);
        // Bytes 1 ... 16 of the block: from 1, 2, 3 bytes into a word, or from the next word on.
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const Lanes low = five.select<16, 1>(16 * i), high = five.select<16, 1>(16 * i + 16);
            Lanes w = high;
            w.merge(low >> (bits + 8) | high << (24 - bits), bits != 24);
            b.words.select<16, 1>(16 * i) = w;
        }
    }

    template <bool kLocal>
    static ESIMD_INLINE void decode(Blocks<kWords> & b, int g, const Codebook & codebook, Quads & q,
                                    simd<float, 16> & scale) {
        Format<kIq4Nl>::decode<kLocal>(b, g, codebook, q, scale);
        // As bits of f32; below 2^-126 they are fractions: 2^-127 and 2^-128.
        const Lanes e = es::convert<uint32_t>(b.d);
        Lanes bits = (e - 1) << 23;
        bits.merge(Lanes(0x00200000u) << e, e < 2);
        scale = bits.bit_cast_view<float>();
    }
};

}  // namespace octet_device
