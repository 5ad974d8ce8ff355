// AMX int8 (tdpbssd), with AVX-512 for everything around it; AVX512-VNNI where rows are few.
//
// Tile: 16 activation rows x 16 weight rows. The panel's [quad][16 rows][4 columns] is the B operand as it
// lies, a tile of activations [16 rows][chunk] is A. tdpbssd takes 16 cycles for 16 rows whatever its
// depth, so products are 64 columns deep where int32 may be kept across them (one scale per row or per
// 128), 32 deep where the scale changes every 32, 16 deep for iq2_s.
//
// Bound, for scales per 32, of 16 x 16 x 32 products, as measured: loads and product 24 cycles, tile store 21,
// the epilogue, which turns 16 rows of int32 into scaled floats by 48 operations on two ports, 24. The product
// takes one of these ports away and the store both, so store and epilogue together take 72, in whatever order,
// and the product hides behind them; vpdpbusd would take 88. With whole rows there is no epilogue to speak of:
// up to four row tiles share each B tile, 5 loads for 4 products.
//
// Codes are decoded for a stretch of columns into the first-level cache, and used for all row tiles.
#include "../formats/blocks.h"
#include "avx512.h"
#include "dispatch.h"
#include "elementwise.h"
#include "tables.h"

namespace octet {
namespace {

// With fewer rows a product by vpdpbusd, which decodes into registers and leaves no row idle, is cheaper than tiles.
constexpr int kMinRows = 9;

// The configuration of the tile registers of this thread, for as long as it lives. Whoever else uses tiles
// in the process (ggml's own AMX code does, and configures each thread once) finds theirs again.
class TileConfig {
  public:
    // Columns per product, in bytes: A tiles are 16 rows x depth, B tiles depth / 4 rows x 64.
    explicit TileConfig(int depth) {
        __asm__ volatile("sttilecfg %0" : "=m"(saved_));
        alignas(64) Bytes64 config = {};
        config.byte[0] = 1;  // palette
        for (int t = 0; t < 8; ++t) {
            const bool b = t == 4 || t == 5, a = t >= 6;
            config.byte[48 + t] = uint8_t(b ? depth / 4 : 16);  // rows
            config.byte[16 + 2 * t] = uint8_t(a ? depth : 64);  // bytes of a row
        }
        // A full 64-byte operand: GCC 12's own intrinsic names 8 and loses the stores of the rest.
        __asm__ volatile("ldtilecfg %0" : : "m"(config));
    }
    ~TileConfig() {
        if (saved_.byte[0])
            __asm__ volatile("ldtilecfg %0" : : "m"(saved_));
        else
            __asm__ volatile("tilerelease");
    }
    TileConfig(const TileConfig &) = delete;
    TileConfig & operator=(const TileConfig &) = delete;

  private:
    struct Bytes64 {
        uint8_t byte[64];
    };
    alignas(64) Bytes64 saved_;
};

// Tile registers by number: 0-3 sums, 4-5 B, 6-7 A.

template <int kRows>
inline void add_scaled(const int32_t * sums, __m512 sw, const float * d, __m512 * acc) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
        __m512 s = _mm512_mul_ps(sw, _mm512_set1_ps(d[r]));
        acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums + 16 * r)), s, acc[r]);
    }
}

// Range `at` of the row tile at q into sums C, through A and B: literals, as the intrinsics want.
#define OCTET_TILE_DOT(C, A, B, q, at)                                                     \
    do {                                                                                   \
        _tile_zero(C);                                                                     \
        _tile_loadd(A, (q) + (at) / kParts * 32 * kTileRows + (at) % kParts * kRange, 32); \
        _tile_loadd(B, weight + (at) * kRange * kPanelRows, 64);                           \
        _tile_dpbssd(C, A, B);                                                             \
    } while (0)

// All row tiles over an even number of ranges of decoded columns, whose scales are in sw, from group `first` on. In
// a pipeline that also crosses from one row tile to the next: while a range is multiplied, the sums of the one before
// are stored and those of the one before that scaled. `ahead` advances with every pair of ranges that `tiles` divides.
template <int kBits, int kRange>
void tile_ranges(const int8_t * weight, int ranges, const __m512 * sw, const Tiles & x, int64_t first, int tiles,
                 float * out, Ahead<kBits> & ahead) {
    constexpr int kParts = 32 / kRange;
    alignas(64) int32_t sums[2][2][256];  // of the pair of ranges that is stored, and of the pair that is scaled
    const int8_t * q = x.first.q + first * 32 * kTileRows;
    const float * d = x.first.d + first * kTileRows;
    int pair = 0, turn = 0;

    OCTET_TILE_DOT(0, 6, 4, q, 0);
    OCTET_TILE_DOT(1, 7, 5, q, 1);
    _tile_stored(0, sums[0][0], 64);
    for (int t = 0; t < tiles; ++t, d += x.d_size, out += kTileRows * kPanelRows) {
        __m512 acc[16];
#pragma GCC unroll 16
        for (int r = 0; r < 16; ++r) acc[r] = _mm512_loadu_ps(out + r * kPanelRows);
        auto scale = [&](int i, const int32_t * from) { add_scaled<16>(from, sw[i], d + i / kParts * kTileRows, acc); };
        for (int i = 0; i < ranges; i += 2, pair ^= 1) {
            if (++turn == tiles) {
                turn = 0;
                for (int part = 0; part < 2 / kParts; ++part) ahead.next_group();
            }
            int next = i + 2;
            if (next == ranges) {  // what follows the last tile is multiplied in vain
                next = 0;
                if (t + 1 < tiles) q += x.q_size;
            }
            OCTET_TILE_DOT(0, 6, 4, q, next);
            _tile_stored(1, sums[pair][1], 64);
            scale(i, sums[pair][0]);
            OCTET_TILE_DOT(1, 7, 5, q, next + 1);
            _tile_stored(0, sums[pair ^ 1][0], 64);
            scale(i + 1, sums[pair][1]);
        }
#pragma GCC unroll 16
        for (int r = 0; r < 16; ++r) _mm512_storeu_ps(out + r * kPanelRows, acc[r]);
    }
}
#undef OCTET_TILE_DOT

// Ranges of 16 or 32 columns.
template <int kBits, int kRange>
void product_short(const Panel & w, const Tiles & x, int tiles, float * out) {
    constexpr int kStretch = 16;  // groups decoded at a time: 8 KiB of int8
    constexpr int kParts = 32 / kRange;
    const Layout & l = *w.layout;
    const __m512i table = table512<false>(*l.format);
    const TileConfig config(kRange);
    Scales512 scales(w);
    Ahead<kBits> ahead(w);
    std::memset(out, 0, size_t(tiles) * kTileRows * kPanelRows * sizeof(float));
    for (int64_t first = 0; first < l.k / 32; first += kStretch) {
        const int groups = int(l.k / 32 - first < kStretch ? l.k / 32 - first : kStretch);
        const uint8_t * const codes = w.codes + first * 64 * kBits;
        alignas(64) int8_t decoded[kBits == 8 ? 64 : kStretch * 512];
        if constexpr (kBits != 8) {
            for (int g = 0; g < groups; ++g) {
                __m512i v[8];
                decode512<kBits, false>(codes + g * 64 * kBits, table, v);
#pragma GCC unroll 8
                for (int j = 0; j < 8; ++j) _mm512_store_si512(decoded + g * 512 + 64 * j, v[j]);
            }
        }
        const int8_t * const values = kBits == 8 ? reinterpret_cast<const int8_t *>(codes) : decoded;
        __m512 sw[kStretch * kParts];
        for (int i = 0; i < groups * kParts; ++i) sw[i] = scales.next();

        // The next stretch is asked for while this one is multiplied: a core has but 16 requests under way.
        const int even = groups * kParts / 2 * 2;
        if (even) tile_ranges<kBits, kRange>(values, even, sw, x, first, tiles, out, ahead);
        if (even == groups * kParts) continue;

        // The range that is left, where the number of groups is odd.
        for (int t = 0; t < tiles; ++t) {
            const Tile tile = x.at(t);
            float * to = out + t * kTileRows * kPanelRows;
            alignas(64) int32_t sums[256];
            _tile_zero(0);
            _tile_loadd(6, tile.q + (first + even) * 32 * kTileRows, 32);
            _tile_loadd(4, values + even * kRange * kPanelRows, 64);
            _tile_dpbssd(0, 6, 4);
            _tile_stored(0, sums, 64);
            for (int r = 0; r < kTileRows; ++r) {
                __m512 acc = _mm512_loadu_ps(to + r * kPanelRows);
                add_scaled<1>(sums + 16 * r, sw[even], tile.d + (first + even) * kTileRows + r, &acc);
                _mm512_storeu_ps(to + r * kPanelRows, acc);
            }
        }
    }
}

// kTiles x kPanels tiles over one range of int8, sums [kTiles][kPanels][256] in tile registers throughout.
template <int kChunk, int kPanels, int kTiles>
inline void multiply_range(const int8_t * const * a, const int8_t * const * b, int64_t columns, int32_t * sums) {
    constexpr bool k1 = kPanels > 1, k2 = kTiles > 1, k3 = k1 && k2;
    _tile_zero(0);
    if (k1) _tile_zero(1);
    if (k2) _tile_zero(2);
    if (k3) _tile_zero(3);
    for (int64_t at = 0; at < columns * kTileRows; at += kChunk * kTileRows) {
        _tile_loadd(6, a[0] + at, kChunk);
        _tile_loadd(4, b[0] + at, 64);
        _tile_dpbssd(0, 6, 4);
        if constexpr (k1) {
            _tile_loadd(5, b[1] + at, 64);
            _tile_dpbssd(1, 6, 5);
        }
        if constexpr (k2) {
            _tile_loadd(7, a[1] + at, kChunk);
            _tile_dpbssd(2, 7, 4);
        }
        if constexpr (k3) _tile_dpbssd(3, 7, 5);
    }
    _tile_stored(0, sums, 64);
    if (k1) _tile_stored(1, sums + 256, 64);
    if (k2) _tile_stored(2, sums + kPanels * 256, 64);
    if (k3) _tile_stored(3, sums + 768, 64);
}

// int8 with ranges of 128 columns or whole rows: kTiles row tiles, out[p] those of panel p.
template <int kChunk, int kPanels, int kTiles>
void product_long_tiles(const Panel * w, const Tiles & x, float * const * out) {
    const Layout & l = *w->layout;
    Scales512 scales[2] = {Scales512(w[0]), Scales512(w[kPanels - 1])};
    alignas(64) int32_t sums[kTiles][kPanels][256];
    for (int p = 0; p < kPanels; ++p) std::memset(out[p], 0, kTiles * kTileRows * kPanelRows * sizeof(float));
    for (int64_t column = 0; column < l.k; column += l.range) {
        const int8_t *a[kTiles], *b[kPanels];
        for (int t = 0; t < kTiles; ++t) a[t] = x.at(t).q + column * kTileRows;
        for (int p = 0; p < kPanels; ++p) b[p] = reinterpret_cast<const int8_t *>(w[p].codes) + column * kPanelRows;
        multiply_range<kChunk, kPanels, kTiles>(a, b, l.range, sums[0][0]);
        for (int p = 0; p < kPanels; ++p) {
            const __m512 sw = scales[p].next();
            for (int t = 0; t < kTiles; ++t) {
                const float * d = x.at(t).d + column / l.range * kTileRows;
                float * to = out[p] + t * kTileRows * kPanelRows;
                for (int r = 0; r < kTileRows; ++r, to += kPanelRows) {
                    __m512 acc = _mm512_loadu_ps(to);
                    add_scaled<1>(sums[t][p] + 16 * r, sw, d + r, &acc);
                    _mm512_storeu_ps(to, acc);
                }
            }
        }
    }
}

// Two row tiles and two panels at a time: as many loads as products.
template <int kChunk, int kPanels>
void product_long(const Panel * w, const Tiles & x, int tiles, float * out) {
    const TileConfig config(kChunk);
    for (int t = 0; t < tiles; t += 2) {
        float * const first = out + t * kTileRows * kPanelRows;
        float * const to[2] = {first, first + tiles * kTileRows * kPanelRows};
        if (t + 1 < tiles)
            product_long_tiles<kChunk, kPanels, 2>(w, x.from(t), to);
        else
            product_long_tiles<kChunk, kPanels, 1>(w, x.from(t), to);
    }
}

template <int kPanels>
void product_long(const Panel * w, const Tiles & x, int tiles, float * out) {
    activation_chunk(*w->layout) == 64 ? product_long<64, kPanels>(w, x, tiles, out)
                                       : product_long<32, kPanels>(w, x, tiles, out);
}

// Rows of the last tile beyond `rows` are computed from whatever the tile holds.
void product(const Panel * w, int count, const Tiles & x, int rows, float * out) {
    if (rows < kMinRows) return kAvx512VnniKernels.product(w, count, x, rows, out);
    const int tiles = padded_rows(rows) / kTileRows;
    for (int p = 0; p < count;) {
        float * const to = out + p * padded_rows(rows) * kPanelRows;
        if (is_short(w[p])) {
            for_short(w[p], [&](auto bits, auto range) {
                product_short<decltype(bits)::value, decltype(range)::value>(w[p], x, tiles, to);
            });
            ++p;
        } else if (p + 1 < count) {
            product_long<2>(w + p, x, tiles, to);
            p += 2;
        } else {
            product_long<1>(w + p, x, tiles, to);
            ++p;
        }
    }
}

}  // namespace

const Kernels kAmxKernels = {"amx", read_blocks<true>, rotate, quantize, product, product_float, glu, weighted_sum};

}  // namespace octet
