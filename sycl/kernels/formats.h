// Blocks of weights decoded into the B operand of a dpas: 8 quads (4 consecutive columns) of 16 output rows.
//
// A format says how many words follow d in a block (kWords), how many steps of 32 columns a block has
// (kSteps), and decodes step g of it into signed bytes and the f32 scale of each output row. The layouts of
// the blocks are those of tests/reference.py. Magnitudes come from a codebook in global or local memory.
#pragma once

#include "device.h"

namespace octet_device {

// B operand: quad i of output row n at 16 i + n, first column in the lowest byte.
using Quads = simd<uint32_t, 8 * kPanelRows>;

template <int kFormat>
struct Format;

// Where magnitudes are looked up: global memory, or local memory from 0 on. `zero` is 0, but the compiler
// must not know: offsets are masked with it, or it would see that they fit 16 bits and spend more on narrowing
// them than that saves.
struct Codebook {
    const uint32_t * words;
    uint32_t zero;
};

// Addresses have their top bit clear.
ESIMD_INLINE Codebook codebook_of(const Job & job, const uint32_t * words) {
    return {words, uint32_t(job.weights >> 32) & 0x80000000u};
}

// The words at a byte offset of the codebook, kValues of each row.
template <bool kLocal, int kValues>
ESIMD_INLINE simd<uint32_t, kPanelRows * kValues> look_up(const Codebook & codebook, Lanes offset) {
    if constexpr (kLocal) return es::slm_gather<uint32_t, kPanelRows * kValues, kValues>(offset);
    return es::gather<uint32_t, kPanelRows * kValues, kValues>(codebook.words, offset);
}

// Byte i of each word as an index of entries of 1 << kShift bytes.
template <int kShift>
ESIMD_INLINE Lanes entry_of(Lanes words, int i, const Codebook & codebook) {
    const Lanes moved = 8 * i >= kShift ? Lanes(words >> (8 * i - kShift)) : Lanes(words << (kShift - 8 * i));
    return moved & (255u << kShift | codebook.zero);
}

// Negates byte j of `magnitudes` (1 ... 127) where bit kBit + j of `signs` is set.
// Copies of the four bits at distance 7 put bit j at the bottom of byte j.
template <int kBit>
ESIMD_INLINE Lanes apply_signs(Lanes magnitudes, Lanes signs) {
    Lanes nibble = signs >> kBit & 15u;
    const simd<uint16_t, kPanelRows> bits = nibble.bit_cast_view<uint16_t>().template select<kPanelRows, 2>(0);
    const Lanes ones = (Lanes(bits) * 0x204081u) & 0x01010101u;
    // ~v + 1 in each byte: no carry, since ~v is at most 254.
    return (magnitudes ^ (ones * 255u)) + ones;
}

// d * mult * unit: exact.
ESIMD_INLINE Floats scale_of(simd<uint16_t, kPanelRows> d, Lanes four_bits, float unit) {
    return half_to_float(d) * (es::convert<float>(four_bits * 2 + 1) * unit);
}

// d @0, qs[64] @2, qh[8] @66, signs[32] @74, scales[4] @106.
template <>
struct Format<kIq3S> {
    static constexpr int kWords = 27, kSteps = 8, kScales = 1;

    template <bool kLocal, int kQuad>
    static ESIMD_INLINE void quad(Lanes low, Lanes high, Lanes signs, const Codebook & codebook, Quads & q) {
        const Lanes entry = entry_of<2>(low, kQuad % 4, codebook) | (high << (10 - kQuad) & (1024u | codebook.zero));
        q.select<16, 1>(16 * kQuad) = apply_signs<4 * kQuad>(look_up<kLocal, 1>(codebook, entry), signs);
    }

    template <bool kLocal>
    static ESIMD_INLINE void decode(Blocks<kWords> & b, int g, const Codebook & codebook, Quads & q,
                                    simd<float, 16> & scale) {
        const Lanes high = word(b, 16 + g / 4) >> (8 * (g % 4)), signs = word(b, 18 + g);
        const Lanes first = word(b, 2 * g), second = word(b, 2 * g + 1);
        quad<kLocal, 0>(first, high, signs, codebook, q);
        quad<kLocal, 1>(first, high, signs, codebook, q);
        quad<kLocal, 2>(first, high, signs, codebook, q);
        quad<kLocal, 3>(first, high, signs, codebook, q);
        quad<kLocal, 4>(second, high, signs, codebook, q);
        quad<kLocal, 5>(second, high, signs, codebook, q);
        quad<kLocal, 6>(second, high, signs, codebook, q);
        quad<kLocal, 7>(second, high, signs, codebook, q);
        scale = scale_of(b.d, word(b, 26) >> (4 * g) & 15, 1.0f);
    }
};

// d @0, qs[64] @2, u32[8] @66: four times seven signs, the scale on top.
template <>
struct Format<kIq3Xxs> {
    static constexpr int kWords = 24, kSteps = 8, kScales = 1;

    template <bool kLocal, int kEight>
    static ESIMD_INLINE void eight(Lanes low, Lanes aux, const Codebook & codebook, Quads & q) {
        // The eighth sign makes the number of minus signs even.
        const Lanes seven = aux >> (7 * kEight) & 127u;
        const Lanes signs = seven | (Lanes(es::cbit(seven)) << 7 & 128u);
        const Lanes first = look_up<kLocal, 1>(codebook, entry_of<2>(low, 2 * (kEight % 2), codebook));
        const Lanes second = look_up<kLocal, 1>(codebook, entry_of<2>(low, 2 * (kEight % 2) + 1, codebook));
        q.select<16, 1>(32 * kEight) = apply_signs<0>(first, signs);
        q.select<16, 1>(32 * kEight + 16) = apply_signs<4>(second, signs);
    }

    template <bool kLocal>
    static ESIMD_INLINE void decode(Blocks<kWords> & b, int g, const Codebook & codebook, Quads & q,
                                    simd<float, 16> & scale) {
        const Lanes aux = word(b, 16 + g);
        const Lanes first = word(b, 2 * g), second = word(b, 2 * g + 1);
        eight<kLocal, 0>(first, aux, codebook, q);
        eight<kLocal, 1>(first, aux, codebook, q);
        eight<kLocal, 2>(second, aux, codebook, q);
        eight<kLocal, 3>(second, aux, codebook, q);
        scale = scale_of(b.d, aux >> 28, 0.25f);
    }
};

// d @0, qs[32] @2, signs[32] @34, qh[8] @66, scales[8] @74: one of columns 0 ... 15, one of 16 ... 31.
template <>
struct Format<kIq2S> {
    static constexpr int kWords = 20, kSteps = 8, kScales = 2;

    template <bool kLocal, int kEight>
    static ESIMD_INLINE void eight(Lanes low, Lanes high, Lanes signs, const Codebook & codebook, Quads & q) {
        const Lanes offset =
            entry_of<3>(low, kEight, codebook) | (high << (11 - 2 * kEight) & (0x1800u | codebook.zero));
        simd<uint32_t, 32> entry = look_up<kLocal, 2>(codebook, offset);
        q.select<16, 1>(32 * kEight) = apply_signs<8 * kEight>(entry.select<16, 1>(0), signs);
        q.select<16, 1>(32 * kEight + 16) = apply_signs<8 * kEight + 4>(entry.select<16, 1>(16), signs);
    }

    template <bool kLocal>
    static ESIMD_INLINE void decode(Blocks<kWords> & b, int g, const Codebook & codebook, Quads & q,
                                    simd<float, 32> & scale) {
        const Lanes low = word(b, g), signs = word(b, 8 + g), high = word(b, 16 + g / 4) >> (8 * (g % 4));
        eight<kLocal, 0>(low, high, signs, codebook, q);
        eight<kLocal, 1>(low, high, signs, codebook, q);
        eight<kLocal, 2>(low, high, signs, codebook, q);
        eight<kLocal, 3>(low, high, signs, codebook, q);
        const Lanes scales = word(b, 18 + g / 4) >> (8 * (g % 4));
        scale.select<16, 1>(0) = scale_of(b.d, scales & 15, 0.125f);
        scale.select<16, 1>(16) = scale_of(b.d, scales >> 4 & 15, 0.125f);
    }
};

// d @0, qs[16] @2: the low nibbles are columns 0 ... 15, the high ones 16 ... 31, into a table of 16 values.
// The codebook is made by the kernel, in local memory in every variant: word c has the value of nibble c & 15
// in byte 0 and that of c >> 4 in byte 2.
template <>
struct Format<kIq4Nl> {
    static constexpr int kWords = 4, kSteps = 1, kScales = 1;

    static ESIMD_INLINE simd<uint32_t, 16> values() {
        return simd<uint32_t, 16>({129, 152, 173, 191, 207, 221, 234, 246, 1, 13, 25, 38, 53, 69, 89, 113});
    }

    // Of 16 signed bytes. Thread `me` of `threads` (8 or 1) makes its part; a barrier has to follow.
    template <int kThreads>
    static ESIMD_INLINE void make_codebook(int me, simd<uint32_t, 16> value) {
        constexpr int kShare = 16 / kThreads;
#pragma unroll
        for (int i = 0; i < kShare; ++i) {
            const int high = me * kShare + i;
            es::slm_block_store<uint32_t, 16>(64 * high, simd<uint32_t, 16>(value | uint32_t(value[high]) << 16));
        }
    }

    template <int kWord>
    static ESIMD_INLINE void two_quads(Lanes codes, const Codebook & codebook, Quads & q) {
        const Lanes c0 = look_up<true, 1>(codebook, entry_of<2>(codes, 0, codebook));
        const Lanes c1 = look_up<true, 1>(codebook, entry_of<2>(codes, 1, codebook));
        const Lanes c2 = look_up<true, 1>(codebook, entry_of<2>(codes, 2, codebook));
        const Lanes c3 = look_up<true, 1>(codebook, entry_of<2>(codes, 3, codebook));
        const Lanes first = c0 | c1 << 8, second = c2 | c3 << 8;
        q.select<16, 1>(16 * kWord) = (first & 0xffffu) | second << 16;
        q.select<16, 1>(16 * kWord + 64) = first >> 16 | (second & 0xffff0000u);
    }

    template <bool kLocal>
    static ESIMD_INLINE void decode(Blocks<kWords> & b, int, const Codebook & codebook, Quads & q,
                                    simd<float, 16> & scale) {
        two_quads<0>(word(b, 0), codebook, q);
        two_quads<1>(word(b, 1), codebook, q);
        two_quads<2>(word(b, 2), codebook, q);
        two_quads<3>(word(b, 3), codebook, q);
        scale = half_to_float(b.d);
    }
};

// d @0, qs[16] @2: a byte is four columns of two bits, minus 1.
template <>
struct Format<kQ20> {
    static constexpr int kWords = 4, kSteps = 2, kScales = 1;
    template <bool kLocal>
    static ESIMD_INLINE void decode(Blocks<kWords> & b, int g, const Codebook & codebook, Quads & q,
                                    simd<float, 16> & scale) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            // Bits 76543210 to 7654....3210, then each pair to a byte of its own.
            Lanes byte = entry_of<0>(word(b, 2 * g + i / 4), i % 4, codebook);
            const simd<uint16_t, 16> narrow = byte.bit_cast_view<uint16_t>().select<16, 2>(0);
            const Lanes nibbles = (Lanes(narrow) * 0x1001u) & 0x000f000fu;
            const Lanes pairs = (nibbles * 0x41u) & 0x03030303u;
            // Each byte minus 1, without borrowing from its neighbour.
            q.select<16, 1>(16 * i) = (pairs + 0x7f7f7f7fu) ^ 0x80808080u;
        }
        scale = half_to_float(b.d);
    }
};

// d @0, 32 bytes @2.
template <>
struct Format<kInt8> {
    static constexpr int kWords = 8, kSteps = 1, kScales = 1;
    template <bool kLocal>
    static ESIMD_INLINE void decode(Blocks<kWords> & b, int, const Codebook &, Quads & q, simd<float, 16> & scale) {
        q = b.words;
        scale = half_to_float(b.d);
    }
};
template <>
struct Format<kInt8x128> : Format<kInt8> {};
template <>
struct Format<kInt8Row> : Format<kInt8> {};

// Bytes of a block: kBytes if the format says so, else d and the words behind it.
template <typename F>
constexpr auto block_bytes(int) -> decltype(F::kBytes) {
    return F::kBytes;
}
template <typename F>
constexpr int block_bytes(long) {
    return 2 + 4 * F::kWords;
}

// The block at base + offset of each row.
template <typename F>
ESIMD_INLINE void read_block(const uint8_t * base, Lanes offset, Blocks<F::kWords> & b) {
    if constexpr (block_bytes<F>(0) == 2 + 4 * F::kWords)
        read_blocks(base, offset, b);
    else
        F::read(base, offset, b);
}

// Where the 16 output rows of a panel begin: a multiple of 4, and offsets from there.
struct Panel {
    const uint8_t * base;
    Lanes rows;
};

template <int kFormat>
ESIMD_INLINE Panel panel_of(const Job & job, int panel, int k) {
    using F = Format<kFormat>;
    const uint32_t row_bytes = uint32_t(k / kStep / F::kSteps) * block_bytes<F>(0);
    const int64_t start = int64_t(panel) * kPanelRows * row_bytes;  // a multiple of 16
    return {reinterpret_cast<const uint8_t *>(job.weights) + start, Lanes(0, row_bytes)};
}

}  // namespace octet_device
