// Reading panels with AVX2, for the files that build on it.
//
// A register holds the 4 columns of a quad for 8 weight rows, half a panel.
#pragma once

#include <immintrin.h>

#include "decode.h"

namespace octet {
namespace {

inline __m256i load256(const void * p) { return _mm256_loadu_si256(static_cast<const __m256i *>(p)); }
inline void store256(void * p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i *>(p), v); }

// The format's table in both 128-bit lanes; kExcess as for weights256.
template <bool kExcess>
inline __m256i table256(const Format & f) {
    __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i *>(f.table));
    if (kExcess) t = _mm_xor_si128(t, _mm_set1_epi8(char(0x80)));
    return _mm256_broadcastsi128_si256(t);
}

// Quad `quad` of the group at `codes` for weight rows 8 half .. 8 half + 7: [8 rows][4 columns] int8, or with
// kExcess uint8 that are 128 larger.
template <int kBits, bool kExcess>
inline __m256i weights256(const uint8_t * codes, int quad, int half, __m256i table) {
    const uint8_t * p = codes + 32 * half;
    if constexpr (kBits == 8) {
        const __m256i v = load256(p + 64 * quad);
        return kExcess ? _mm256_xor_si256(v, _mm256_set1_epi8(char(0x80))) : v;
    } else if constexpr (kBits == 4) {
        const __m256i c = load256(p + 64 * (quad % 4));
        return _mm256_shuffle_epi8(table,
                                   _mm256_and_si256(quad < 4 ? c : _mm256_srli_epi16(c, 4), _mm256_set1_epi8(15)));
    } else {
        const __m256i c = load256(p + 64 * (quad / 4));
        __m256i index = _mm256_and_si256(quad % 4 ? _mm256_srli_epi16(c, 2 * (quad % 4)) : c, _mm256_set1_epi8(3));
        if constexpr (kBits == 3) {
            const __m256i bit = _mm256_set1_epi8(char(1 << quad));
            const __m256i third = _mm256_cmpeq_epi8(_mm256_and_si256(load256(p + 128), bit), bit);
            index = _mm256_or_si256(index, _mm256_and_si256(third, _mm256_set1_epi8(4)));
        }
        return _mm256_shuffle_epi8(table, index);
    }
}

// Walks the weight scales of a panel, range after range.
class Scales256 {
  public:
    explicit Scales256(const Panel & w)
        : d_(w.d),
          mult_(w.mult),
          unit_(_mm256_set1_ps(w.layout->format->unit)),
          bf16_(w.layout->format->d_type == ScaleType::bf16),
          per_span_(int(w.layout->span / w.layout->range)),
          left_(per_span_) {}

    // Of both halves of the panel.
    void next(__m256 s[2]) {
        for (int half = 0; half < 2; ++half) {
            const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i *>(d_ + 8 * half));
            s[half] =
                bf16_ ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16)) : _mm256_cvtph_ps(bits);
            if (mult_) {
                __m256i m = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(mult_ + 8 * half)));
                s[half] = _mm256_mul_ps(s[half], _mm256_mul_ps(_mm256_cvtepi32_ps(m), unit_));
            }
        }
        if (mult_) mult_ += kPanelRows;
        if (--left_ == 0) {
            left_ = per_span_;
            d_ += kPanelRows;
        }
    }

  private:
    const uint16_t * d_;
    const int8_t * mult_;
    __m256 unit_;
    bool bf16_;
    int per_span_, left_;
};

}  // namespace
}  // namespace octet
