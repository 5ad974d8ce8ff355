// Packing: rows of file blocks into panels, lossless.
#include "octet/matrix.h"

#include <cstring>

namespace octet {

static size_t align64(size_t n) { return (n + 63) / 64 * 64; }

bool make_layout(const Format & format, int64_t k, int scale_group, Layout * layout) {
    if (k <= 0 || k % 32 != 0 || k % format.block_weights != 0) return false;
    Layout l{};
    l.format = &format;
    l.k = k;
    l.range = format.range;
    l.span = format.span;
    if (scale_group != 32) {
        if (format.code_bits != 8 || (scale_group != 0 && scale_group != 128)) return false;
        l.range = l.span = scale_group == 0 ? k : scale_group;
        if (k % l.range != 0 || l.range > kMaxRange) return false;
    }
    size_t codes = size_t(k / 32) * size_t(format.code_bits) * 64;
    size_t mult = format.has_mult ? size_t(k / l.range) * kPanelRows : 0;
    l.mult_offset = align64(codes);
    l.d_offset = l.mult_offset + align64(mult);
    l.panel_bytes = l.d_offset + align64(size_t(k / l.span) * kPanelRows * sizeof(uint16_t));
    *layout = l;
    return true;
}

size_t pack_scratch_bytes(const Layout & l) {
    // d of every file block, before ranges are widened; mult at most one per 16 columns.
    return align64(size_t(l.k)) + align64(size_t(l.k / 32) * 2) + align64(size_t(l.k / 16));
}

// Interleaves the codes of one row into group after group of the panel, the four columns of a quad at a
// time: their codes are the bytes of a word.
template <int kBits>
static void put_codes(const uint8_t * codes, int64_t k, int row, uint8_t * panel) {
    panel += 4 * row;
    for (int64_t g = 0; g < k / 32; ++g, codes += 32, panel += 64 * kBits) {
        uint32_t quad[8];
        std::memcpy(quad, codes, sizeof quad);
        if constexpr (kBits == 8) {
            for (int i = 0; i < 8; ++i) std::memcpy(panel + 64 * i, quad + i, 4);
        } else if constexpr (kBits == 4) {
            for (int i = 0; i < 4; ++i) {
                const uint32_t both = quad[i] | quad[i + 4] << 4;
                std::memcpy(panel + 64 * i, &both, 4);
            }
        } else {
            uint32_t low[2] = {0, 0}, third = 0;
            for (int i = 0; i < 8; ++i) {
                low[i / 4] |= (quad[i] & 0x03030303u) << (2 * (i % 4));
                third |= (quad[i] >> 2 & 0x01010101u) << i;
            }
            std::memcpy(panel, low, 4);
            std::memcpy(panel + 64, low + 1, 4);
            if constexpr (kBits == 3) std::memcpy(panel + 128, &third, 4);
        }
    }
}

static void put_codes(int bits, const uint8_t * codes, int64_t k, int row, uint8_t * panel) {
    switch (bits) {
        case 8: return put_codes<8>(codes, k, row, panel);
        case 4: return put_codes<4>(codes, k, row, panel);
        case 3: return put_codes<3>(codes, k, row, panel);
        case 2: return put_codes<2>(codes, k, row, panel);
    }
}

void pack_panel(const Layout & l, const uint8_t * rows, size_t row_bytes, int n_rows, uint8_t * panel,
                uint8_t * scratch) {
    uint8_t * codes = scratch;
    auto * d = reinterpret_cast<uint16_t *>(scratch + align64(size_t(l.k)));
    auto * mult = reinterpret_cast<int8_t *>(scratch + align64(size_t(l.k)) + align64(size_t(l.k / 32) * 2));
    auto * panel_d = reinterpret_cast<uint16_t *>(panel + l.d_offset);

    if (n_rows < kPanelRows) std::memset(panel, 0, l.panel_bytes);
    for (int row = 0; row < n_rows; ++row) {
        l.format->unpack(rows + size_t(row) * row_bytes, l.k, codes, d, mult);
        put_codes(l.format->code_bits, codes, l.k, row, panel);
        int64_t blocks_per_span = l.span / l.format->span;
        for (int64_t s = 0; s < l.k / l.span; ++s) panel_d[s * kPanelRows + row] = d[s * blocks_per_span];
        if (l.format->has_mult) {
            for (int64_t r = 0; r < l.k / l.range; ++r)
                panel[l.mult_offset + size_t(r * kPanelRows + row)] = uint8_t(mult[r]);
        }
    }
}

bool finite_scales(const Layout & l, const uint8_t * panel) {
    const uint16_t exponent = l.format->d_type == ScaleType::bf16 ? 0x7f80 : 0x7c00;
    const auto * d = reinterpret_cast<const uint16_t *>(panel + l.d_offset);
    for (int64_t i = 0; i < l.k / l.span * kPanelRows; ++i) {
        if ((d[i] & exponent) == exponent) return false;
    }
    return true;
}

bool shares_scale(const Layout & l, const uint8_t * row) {
    if (l.format->code_bits != 8) return true;
    int64_t blocks_per_span = l.span / l.format->span;
    for (int64_t b = 0; b < l.k / 32; ++b) {
        const uint8_t * first = row + size_t(b / blocks_per_span * blocks_per_span) * 34;
        if (std::memcmp(row + size_t(b) * 34, first, 2) != 0) return false;
    }
    return true;
}

Panel matrix_panel(const Matrix & m, int64_t expert, int64_t p, uint8_t * buffer) {
    const Layout & l = m.layout;
    const uint8_t * panel = buffer;
    if (m.packed) {
        panel = m.data + size_t(expert * panel_count(m.n) + p) * l.panel_bytes;
    } else {
        int64_t first = p * kPanelRows;
        int rows = int(m.n - first < kPanelRows ? m.n - first : kPanelRows);
        pack_panel(l, m.data + size_t(expert * m.n + first) * m.row_bytes, m.row_bytes, rows, buffer,
                   buffer + l.panel_bytes);
    }
    return {panel, l.format->has_mult ? reinterpret_cast<const int8_t *>(panel + l.mult_offset) : nullptr,
            reinterpret_cast<const uint16_t *>(panel + l.d_offset), &l};
}

}  // namespace octet
