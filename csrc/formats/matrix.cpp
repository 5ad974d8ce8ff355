// Packing: rows of file blocks into panels, lossless.
#include "octet/matrix.h"

#include <cstring>

#include "blocks.h"

namespace octet {

static size_t align64(size_t n) { return (n + 63) / 64 * 64; }

bool make_layout(const Format & format, int64_t k, int scale_group, Layout * layout) {
    if (k <= 0 || k > kMaxColumns || k % 32 != 0 || k % format.block_weights != 0) return false;
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

size_t unpacked_bytes(const Layout & l) { return size_t(l.k) * kPanelRows + (l.panel_bytes - l.mult_offset); }

Unpacked unpacked_in(const Layout & l, uint8_t * memory) {
    uint8_t * scales = memory + size_t(l.k) * kPanelRows;
    return {memory, reinterpret_cast<int8_t *>(scales),
            reinterpret_cast<uint16_t *>(scales + (l.d_offset - l.mult_offset))};
}

size_t pack_scratch_bytes(const Layout & l) { return size_t(l.k) * kPanelRows; }

// The codes of a group, 8 quads of 64 bytes, in kBits each.
template <int kBits>
static void put_codes(const uint8_t * quad, int64_t groups, uint8_t * out) {
    for (int64_t g = 0; g < groups; ++g, quad += 512, out += 64 * kBits) {
        for (int i = 0; i < 64; ++i) {
            if constexpr (kBits == 4) {
                for (int j = 0; j < 4; ++j) out[64 * j + i] = uint8_t(quad[64 * j + i] | quad[64 * (j + 4) + i] << 4);
            } else {
                unsigned low[2] = {0, 0}, third = 0;
                for (int j = 0; j < 8; ++j) {
                    low[j / 4] |= (quad[64 * j + i] & 3u) << (2 * (j % 4));
                    third |= (quad[64 * j + i] >> 2 & 1u) << j;
                }
                out[i] = uint8_t(low[0]);
                out[64 + i] = uint8_t(low[1]);
                if constexpr (kBits == 3) out[128 + i] = uint8_t(third);
            }
        }
    }
}

void pack_panel(const Layout & l, const uint8_t * rows, size_t row_bytes, int n_rows, uint8_t * panel,
                uint8_t * scratch) {
    const int bits = l.format->code_bits;
    const Unpacked out = {bits == 8 ? panel : scratch, reinterpret_cast<int8_t *>(panel + l.mult_offset),
                          reinterpret_cast<uint16_t *>(panel + l.d_offset)};
    read_blocks<false>(l, rows, row_bytes, n_rows, out);
    switch (bits) {
        case 4: return put_codes<4>(scratch, l.k / 32, panel);
        case 3: return put_codes<3>(scratch, l.k / 32, panel);
        case 2: return put_codes<2>(scratch, l.k / 32, panel);
    }
}

bool finite_scales(const Layout & l, const uint8_t * row) {
    // bf16 are made of exponents, and the largest is still finite. All other blocks begin with an fp16.
    if (l.format->d_type == ScaleType::bf16) return true;
    for (int64_t column = 0; column < l.k; column += l.format->block_weights, row += l.format->block_bytes) {
        uint16_t d;
        std::memcpy(&d, row, sizeof d);
        if ((d & 0x7c00) == 0x7c00) return false;
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

Panel matrix_panel(const Matrix & m, int64_t expert, int64_t p, ReadBlocks read, uint8_t * buffer) {
    const Layout & l = m.layout;
    const bool has_mult = l.format->has_mult;
    if (m.packed) {
        const uint8_t * panel = m.data + size_t(expert * panel_count(m.n) + p) * l.panel_bytes;
        return {panel, has_mult ? reinterpret_cast<const int8_t *>(panel + l.mult_offset) : nullptr,
                reinterpret_cast<const uint16_t *>(panel + l.d_offset), &l, l.format->code_bits};
    }
    const int64_t first = p * kPanelRows;
    const int rows = int(m.n - first < kPanelRows ? m.n - first : kPanelRows);
    const Unpacked out = unpacked_in(l, buffer);
    read(l, m.data + size_t(expert * m.n + first) * m.row_bytes, m.row_bytes, rows, out);
    return {out.codes, has_mult ? out.mult : nullptr, out.d, &l, 8};
}

}  // namespace octet
