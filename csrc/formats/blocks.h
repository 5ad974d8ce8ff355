// Reading the file's blocks: one small class per format, each of which decodes the same block of 16 weight rows
// at once, a 32-bit word of every row in the lanes of a vector, straight into the order of a panel.
//
// Included into files with different instruction-set flags, hence the unnamed namespace; what differs between
// them is how words are gathered and bytes looked up. The grids of the IQ formats come from gguf-py at build time
// (grids.py) as indices of magnitudes, one per byte, to which the sign is added as another bit.
#pragma once

#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "grids.inc"
#include "octet/matrix.h"

namespace octet {
namespace {

// One word of each of the 16 rows; or, as bytes, a quad: 4 columns of each.
typedef uint32_t Words __attribute__((vector_size(64)));
static_assert(sizeof(Words) == 4 * kPanelRows, "a lane for every row of a panel");

// The words at base + offset[row] bytes. (AVX2's gather takes four times as long as 16 loads.)
inline Words gather(const void * base, const Words & offset) {
    Words w;
#if defined(__AVX512F__)
    const __m512i v = _mm512_i32gather_epi32(reinterpret_cast<const __m512i &>(offset), base, 1);
    std::memcpy(&w, &v, sizeof w);
#else
    for (int row = 0; row < kPanelRows; ++row) {
        uint32_t word;
        std::memcpy(&word, static_cast<const uint8_t *>(base) + offset[row], sizeof word);
        w[row] = word;
    }
#endif
    return w;
}

// table[code] for each byte of codes, all below 16.
inline Words look_up(const int8_t * table, const Words & codes) {
    Words w;
#if defined(__AVX512BW__)
    const __m512i t = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table)));
    const __m512i v = _mm512_shuffle_epi8(t, reinterpret_cast<const __m512i &>(codes));
    std::memcpy(&w, &v, sizeof w);
#elif defined(__AVX2__)
    const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table)));
    __m256i v[2];
    std::memcpy(v, &codes, sizeof v);
    for (__m256i & half : v) half = _mm256_shuffle_epi8(t, half);
    std::memcpy(&w, v, sizeof w);
#elif defined(__ARM_NEON)
    const int8x16_t t = vld1q_s8(table);
    uint8x16_t v[4];
    std::memcpy(v, &codes, sizeof v);
    for (uint8x16_t & part : v) part = vreinterpretq_u8_s8(vqtbl1q_s8(t, part));
    std::memcpy(&w, v, sizeof w);
#else
    uint8_t bytes[sizeof w];
    std::memcpy(bytes, &codes, sizeof bytes);
    for (uint8_t & b : bytes) b = uint8_t(table[b]);
    std::memcpy(&w, bytes, sizeof w);
#endif
    return w;
}

// Where the rows' present block begins.
class BlockRows {
  public:
    // Rows beyond n_rows stand for the first.
    BlockRows(const uint8_t * rows, size_t row_bytes, int n_rows) : at_(rows) {
        for (int row = 0; row < kPanelRows; ++row) offset_[row] = row < n_rows ? uint32_t(size_t(row) * row_bytes) : 0;
    }

    // Bytes byte .. byte + 3 of the block of every row, which must lie inside it.
    Words word(int byte) const { return gather(at_ + byte, offset_); }

    void next(int block_bytes) { at_ += block_bytes; }

  private:
    const uint8_t * at_;
    Words offset_;
};

inline void put_mult(const Words & w, int8_t * mult) {
    typedef int8_t Byte16 __attribute__((vector_size(16)));
    const Byte16 bytes = __builtin_convertvector(w, Byte16);
    std::memcpy(mult, &bytes, sizeof bytes);
}

// Scales of the IQ2 and IQ3 formats: nibble `n` of the words.
inline void put_odd_scale(const Words & w, int n, int8_t * mult) { put_mult((w >> (4 * n) & 15) * 2 + 1, mult); }

// Bit j of the lowest four becomes bit kBit of byte j: the bits, 7 apart, cannot meet in the product.
template <int kBit>
inline Words signs_of_quad(const Words & signs) {
    return ((signs & 15) * 0x00204081 & 0x01010101) << kBit;
}

// Eight signs are kept in seven bits: the eighth makes the number of minus signs even.
inline Words eight_signs(const Words & bits) {
    const Words seven = bits & 127;
    Words parity = seven ^ seven >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return seven | (parity & 1) << 7;
}

// Eight weights out of a grid of 64-bit entries, and their signs: quads q and q + 1.
template <typename Put>
inline void put_eight(const uint64_t * grid, const Words & entry, const Words & signs, int q, Put put) {
    put(q, gather(grid, entry * 8) | signs_of_quad<2>(signs));
    put(q + 1, gather(reinterpret_cast<const uint8_t *>(grid) + 4, entry * 8) | signs_of_quad<2>(signs >> 4));
}

// 32 weights in 16 bytes: low nibbles are columns 0 .. 15, high nibbles 16 .. 31.
template <typename Put>
inline void put_nibbles(const BlockRows & b, int byte, int q, Put put) {
    for (int i = 0; i < 4; ++i) {
        const Words w = b.word(byte + 4 * i);
        put(q + i, w & 0x0f0f0f0f);
        put(q + i + 4, w >> 4 & 0x0f0f0f0f);
    }
}

// ---- The formats. read() gives put(quad, codes) for every quad of the block, and stores mult if the format has
// one; d() has the scale in its low 16 bits.

struct HalfFirst {
    static Words d(const BlockRows & b) { return b.word(0); }
};

// d, 32 int8.
struct Q8_0 : HalfFirst {
    template <typename Put>
    static void read(const BlockRows & b, Put put, int8_t *) {
        for (int i = 0; i < 8; ++i) put(i, b.word(2 + 4 * i));
    }
};

// d, nibbles: iq4_nl and q4_0.
struct Nibbles : HalfFirst {
    template <typename Put>
    static void read(const BlockRows & b, Put put, int8_t *) {
        put_nibbles(b, 2, 0, put);
    }
};

// An exponent e, nibbles. The scale is 2^(e - 127), half of it since the table holds doubled values: 2^(e - 128),
// as bf16 a power of two, subnormal below 2^-126.
struct Mxfp4 {
    static Words d(const BlockRows & b) {
        const Words e = b.word(0) & 255;
        Words d;
        for (int row = 0; row < kPanelRows; ++row) d[row] = e[row] >= 2 ? (e[row] - 1) << 7 : 0x20u << e[row];
        return d;
    }
    template <typename Put>
    static void read(const BlockRows & b, Put put, int8_t *) {
        put_nibbles(b, 1, 0, put);
    }
};

// d @0, u16 @2 and [4] @4: the two high and four low bits of eight scales, which are 32 too large; nibbles @8.
struct Iq4Xs : HalfFirst {
    template <typename Put>
    static void read(const BlockRows & b, Put put, int8_t * mult) {
        const Words high = b.word(0) >> 16, low = b.word(4);
        for (int g = 0; g < 8; ++g) {
            put_mult((low >> (4 * g) & 15) + (high >> (2 * g) & 3) * 16 - 32, mult + g * kPanelRows);
            put_nibbles(b, 8 + 16 * g, 8 * g, put);
        }
    }
};

// d @0, qs[64] @2, qh[8] @66, signs[32] @74, scales[4] @106.
struct Iq3S : HalfFirst {
    template <typename Put>
    static void read(const BlockRows & b, Put put, int8_t * mult) {
        const Words scales = b.word(106), high[2] = {b.word(66), b.word(70)};
        for (int g = 0; g < 8; ++g) {
            put_odd_scale(scales, g, mult + g * kPanelRows);
            const Words signs = b.word(74 + 4 * g), ninth_bits = high[g / 4] >> (8 * (g % 4));
            for (int i = 0; i < 8; i += 4) {
                const Words low = b.word(2 + 8 * g + i);
                for (int j = 0; j < 4; ++j) {
                    const Words entry = (low >> (8 * j) & 255) | (ninth_bits >> (i + j) & 1) << 8;
                    put(8 * g + i + j, gather(kGridIq3S, entry * 4) | signs_of_quad<3>(signs >> (4 * (i + j))));
                }
            }
        }
    }
};

// d @0, qs[64] @2, u32[8] @66: four 7-bit signs and the scale on top.
struct Iq3Xxs : HalfFirst {
    template <typename Put>
    static void read(const BlockRows & b, Put put, int8_t * mult) {
        for (int g = 0; g < 8; ++g) {
            const Words aux = b.word(66 + 4 * g), low[2] = {b.word(2 + 8 * g), b.word(6 + 8 * g)};
            put_odd_scale(aux, 7, mult + g * kPanelRows);
            for (int l = 0; l < 4; ++l) {
                const Words signs = eight_signs(aux >> (7 * l));
                for (int j = 0; j < 2; ++j) {
                    const Words entry = low[l / 2] >> (8 * (2 * (l % 2) + j)) & 255;
                    put(8 * g + 2 * l + j, gather(kGridIq3Xxs, entry * 4) | signs_of_quad<3>(signs >> (4 * j)));
                }
            }
        }
    }
};

// d @0, qs[32] @2, signs[32] @34, qh[8] @66, scales[8] @74; a scale per 16.
struct Iq2S : HalfFirst {
    template <typename Put>
    static void read(const BlockRows & b, Put put, int8_t * mult) {
        const Words high[2] = {b.word(66), b.word(70)}, scales[2] = {b.word(74), b.word(78)};
        for (int g = 0; g < 8; ++g) {
            const Words low = b.word(2 + 4 * g), signs = b.word(34 + 4 * g), bits = high[g / 4] >> (8 * (g % 4));
            for (int h = 0; h < 2; ++h) put_odd_scale(scales[g / 4], 2 * (g % 4) + h, mult + (2 * g + h) * kPanelRows);
            for (int l = 0; l < 4; ++l) {
                const Words entry = (low >> (8 * l) & 255) | (bits >> (2 * l) & 3) << 8;
                put_eight(kGridIq2S, entry, signs >> (8 * l), 8 * g + 2 * l, put);
            }
        }
    }
};

// d @0, u16[32] @2: nine bits of index, seven of sign; scales[8] @66, a scale per 16.
struct Iq2Xs : HalfFirst {
    template <typename Put>
    static void read(const BlockRows & b, Put put, int8_t * mult) {
        const Words scales[2] = {b.word(66), b.word(70)};
        for (int i = 0; i < 16; ++i) put_odd_scale(scales[i / 8], i % 8, mult + i * kPanelRows);
        for (int i = 0; i < 32; i += 2) {
            const Words two = b.word(2 + 2 * i);
            put_eight(kGridIq2Xs, two & 511, eight_signs(two >> 9), 2 * i, put);
            put_eight(kGridIq2Xs, two >> 16 & 511, eight_signs(two >> 25), 2 * i + 2, put);
        }
    }
};

// d @0; per 32 weights four index bytes, then u32: four 7-bit signs and the scale on top.
struct Iq2Xxs : HalfFirst {
    template <typename Put>
    static void read(const BlockRows & b, Put put, int8_t * mult) {
        for (int g = 0; g < 8; ++g) {
            const Words index = b.word(2 + 8 * g), aux = b.word(6 + 8 * g);
            put_odd_scale(aux, 7, mult + g * kPanelRows);
            for (int l = 0; l < 4; ++l) {
                put_eight(kGridIq2Xxs, index >> (8 * l) & 255, eight_signs(aux >> (7 * l)), 8 * g + 2 * l, put);
            }
        }
    }
};

// d, 16 bytes of four 2-bit codes, lowest bits first.
struct Q2_0 : HalfFirst {
    template <typename Put>
    static void read(const BlockRows & b, Put put, int8_t *) {
        for (int i = 0; i < 16; ++i) {
            const Words byte = b.word(2 + i / 4 * 4) >> (8 * (i % 4)) & 255;
            const Words nibbles = (byte | byte << 12) & 0x000f000f;
            put(i, (nibbles | nibbles << 6) & 0x03030303);
        }
    }
};

template <typename Block, bool kValues>
void read(const Layout & l, const uint8_t * rows, size_t row_bytes, int n_rows, const Unpacked & out) {
    const Format & f = *l.format;
    BlockRows b(rows, row_bytes, n_rows);
    // The next panel's rows follow these without a gap: as much of them as is read here is asked for.
    const uint8_t * ahead = rows + kPanelRows * row_bytes;
    for (int64_t column = 0; column < l.k; column += f.block_weights, b.next(f.block_bytes)) {
        for (const uint8_t * end = ahead + kPanelRows * f.block_bytes; ahead < end; ahead += 64) {
            __builtin_prefetch(ahead, 0, 2);
        }
        typedef uint16_t Half16 __attribute__((vector_size(32)));
        const Half16 d = __builtin_convertvector(Block::d(b), Half16);
        std::memcpy(out.d + column / l.span * kPanelRows, &d, sizeof d);
        uint8_t * codes = out.codes + column * kPanelRows;
        auto put = [&](int quad, const Words & w) {
            const Words bytes = kValues ? look_up(f.table, w) : w;
            std::memcpy(codes + 64 * quad, &bytes, sizeof bytes);
        };
        Block::read(b, put, out.mult + column / l.range * kPanelRows);
    }
    for (int64_t s = 0; n_rows < kPanelRows && s < l.k / l.span; ++s) {
        std::memset(out.d + s * kPanelRows + n_rows, 0, size_t(kPanelRows - n_rows) * sizeof(uint16_t));
    }
}

// Up to 16 rows of blocks, row_bytes apart: their codes, or with kValues the int8 they stand for.
template <bool kValues>
void read_blocks(const Layout & l, const uint8_t * rows, size_t row_bytes, int n_rows, const Unpacked & out) {
    switch (l.format->blocks) {
        case Blocks::q8_0: return read<Q8_0, false>(l, rows, row_bytes, n_rows, out);
        case Blocks::nibbles: return read<Nibbles, kValues>(l, rows, row_bytes, n_rows, out);
        case Blocks::mxfp4: return read<Mxfp4, kValues>(l, rows, row_bytes, n_rows, out);
        case Blocks::iq4_xs: return read<Iq4Xs, kValues>(l, rows, row_bytes, n_rows, out);
        case Blocks::iq3_s: return read<Iq3S, kValues>(l, rows, row_bytes, n_rows, out);
        case Blocks::iq3_xxs: return read<Iq3Xxs, kValues>(l, rows, row_bytes, n_rows, out);
        case Blocks::iq2_s: return read<Iq2S, kValues>(l, rows, row_bytes, n_rows, out);
        case Blocks::iq2_xs: return read<Iq2Xs, kValues>(l, rows, row_bytes, n_rows, out);
        case Blocks::iq2_xxs: return read<Iq2Xxs, kValues>(l, rows, row_bytes, n_rows, out);
        case Blocks::q2_0: return read<Q2_0, kValues>(l, rows, row_bytes, n_rows, out);
    }
}

}  // namespace
}  // namespace octet
