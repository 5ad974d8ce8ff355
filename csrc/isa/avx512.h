// Reading panels with AVX-512, for the files that build on it.
//
// vpdpbusd multiplies unsigned by signed, so for it weights are decoded with an excess of 128.
#pragma once

#include <immintrin.h>

#include "decode.h"

namespace octet {
namespace {

inline __m512i load512(const void * p) { return _mm512_loadu_si512(p); }

// The format's table in every 128-bit lane; kExcess as for decode512.
template <bool kExcess>
inline __m512i table512(const Format & f) {
    __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i *>(f.table));
    if (kExcess) t = _mm_xor_si128(t, _mm_set1_epi8(char(0x80)));
    return _mm512_broadcast_i32x4(t);
}

// A group of 32 columns: register j holds quad j, [16 rows][4 columns].
template <int kBits, bool kExcess>
inline void decode512(const uint8_t * codes, __m512i table, __m512i w[8]) {
    const __m512i low4 = _mm512_set1_epi8(15), low2 = _mm512_set1_epi8(3);
    if constexpr (kBits == 8) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) {
            w[j] = load512(codes + 64 * j);
            if (kExcess) w[j] = _mm512_xor_si512(w[j], _mm512_set1_epi8(char(0x80)));
        }
    } else if constexpr (kBits == 4) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            __m512i v = load512(codes + 64 * j);
            w[j] = _mm512_shuffle_epi8(table, _mm512_and_si512(v, low4));
            w[j + 4] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(v, 4), low4));
        }
    } else {
        __m512i third = kBits == 3 ? load512(codes + 128) : _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) {
            __m512i v = load512(codes + 64 * (j / 4));
            __m512i index = _mm512_and_si512(j % 4 ? _mm512_srli_epi16(v, 2 * (j % 4)) : v, low2);
            if constexpr (kBits == 3) {
                __mmask64 set = _mm512_test_epi8_mask(third, _mm512_set1_epi8(char(1 << j)));
                index = _mm512_mask_add_epi8(index, set, index, _mm512_set1_epi8(4));
            }
            w[j] = _mm512_shuffle_epi8(table, index);
        }
    }
}

// Brings what is needed soon into the first-level cache. Codes are one stream, which the hardware would follow
// too, but a panel ends it every few KiB; its scales lie behind the codes, and those of the next panel behind
// that one's, where no hardware prefetch looks: they are fetched a line for every two groups.
template <int kBits>
class Ahead {
  public:
    explicit Ahead(const Panel & w)
        : codes_(w.codes + kDistance),
          scales_(w.codes + w.layout->panel_bytes + w.layout->mult_offset),
          end_(w.bits == w.layout->format->code_bits ? w.codes + 2 * w.layout->panel_bytes : nullptr) {}

    void next_group() {
        for (int line = 0; line < kBits; ++line, codes_ += 64) fetch(codes_);
        if (odd_ && scales_ < end_) {
            fetch(scales_);
            scales_ += 64;
        }
        odd_ = !odd_;
    }

  private:
    static constexpr int kDistance = 4096;  // about 1 us of one core's share of the memory's 27 GB/s

    static void fetch(const uint8_t * p) { _mm_prefetch(reinterpret_cast<const char *>(p), _MM_HINT_T0); }

    const uint8_t *codes_, *scales_, *end_;
    bool odd_ = true;
};

// Walks the weight scales of a panel, range after range.
class Scales512 {
  public:
    explicit Scales512(const Panel & w)
        : d_(w.d),
          mult_(w.mult),
          unit_(_mm512_set1_ps(w.layout->format->unit)),
          bf16_(w.layout->format->d_type == ScaleType::bf16),
          per_span_(int(w.layout->span / w.layout->range)),
          left_(per_span_) {}

    __m512 next() {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(d_));
        __m512 s =
            bf16_ ? _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)) : _mm512_cvtph_ps(bits);
        if (--left_ == 0) {
            left_ = per_span_;
            d_ += kPanelRows;
        }
        if (mult_) {
            __m512i m = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(mult_)));
            s = _mm512_mul_ps(s, _mm512_mul_ps(_mm512_cvtepi32_ps(m), unit_));
            mult_ += kPanelRows;
        }
        return s;
    }

  private:
    const uint16_t * d_;
    const int8_t * mult_;
    __m512 unit_;
    bool bf16_;
    int per_span_, left_;
};

}  // namespace
}  // namespace octet
