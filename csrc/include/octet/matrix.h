// A weight matrix in panels of 16 output rows: the one layout that every kernel reads.
//
// Within a panel, weights are grouped by 32 columns, and each group is stored as
//     8 bits: [8 quads][16 rows][4 columns] int8                                  512 bytes
//     4 bits: byte [i][row][column] = quad i low nibble, quad i + 4 high nibble   256 bytes
//     2 bits: byte [i][row][column] = quads 4i .. 4i + 3, lowest bits first       128 bytes
//     3 bits: the two low bits as above, then byte [row][column] whose bit q is
//             the third bit of quad q                                              64 bytes more
// A quad is 4 consecutive columns. 16 rows x 4 columns fill one 512-bit register, are what
// a VNNI or dotprod instruction consumes, and are one row of an AMX tile.
// Behind the codes of all groups lie mult [K / range][16] and d [K / span][16], both 64-byte aligned.
// Rows beyond the last repeat the first with d = 0.
// Panels read from the file's blocks as they are needed hold int8 values, as with 8 bits.
//
// Inline functions here are static, and those of kernels.h are always inlined: the linker must not take
// for all callers the copy that an instruction set's file was compiled with.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octet/formats.h"

namespace octet {

constexpr int kPanelRows = 16;

// The largest K of a row-wide range: 127 * 128 * K must stay below 2^31, also for a code of -128.
constexpr int64_t kMaxRange = 131072;

// The largest K: the last row of a panel, 15 rows of blocks away from the first, is in reach of a 32-bit offset.
constexpr int64_t kMaxColumns = int64_t(1) << 24;

struct Layout {
    const Format * format;
    int64_t k;
    int64_t range;  // columns of one integer dot product
    int64_t span;   // columns that share a d
    size_t mult_offset, d_offset;
    size_t panel_bytes;
};

// scale_group widens the range of q8_0 blocks that share their d: 0 = whole row, 128, or 32 (the
// format's own). For the other formats it must be 32. Returns false if K does not suit.
bool make_layout(const Format & format, int64_t k, int scale_group, Layout * layout);

static inline int64_t panel_count(int64_t n) { return (n + kPanelRows - 1) / kPanelRows; }

// Columns that share one activation scale with this weight: its range, but never below 32.
static inline int64_t activation_group(const Layout & l) { return l.range < 32 ? 32 : l.range; }

// Consecutive columns of one activation row (see Tile): what one AMX product takes, 64 if int32 can be
// kept across them.
static inline int64_t activation_chunk(const Layout & l) { return l.range > 32 && l.range % 64 == 0 ? 64 : 32; }

// A panel whose codes, or values, take a byte each: codes [K / 4 quads][16 rows][4 columns], mult
// [K / range][16] if the format has it, d [K / span][16].
struct Unpacked {
    uint8_t * codes;
    int8_t * mult;
    uint16_t * d;
};

// Bytes of such a panel, all in one.
size_t unpacked_bytes(const Layout & layout);

// Where its parts lie in memory of that size, 64-aligned.
Unpacked unpacked_in(const Layout & layout, uint8_t * memory);

// Reads up to 16 rows of file blocks, row_bytes apart, as int8 values.
using ReadBlocks = void (*)(const Layout & layout, const uint8_t * rows, size_t row_bytes, int n_rows,
                            const Unpacked & out);

// Scratch for pack_panel.
size_t pack_scratch_bytes(const Layout & layout);

// Packs up to 16 rows of file blocks, row_bytes apart, into one panel (panel_bytes, 64-aligned).
void pack_panel(const Layout & layout, const uint8_t * rows, size_t row_bytes, int n_rows, uint8_t * panel,
                uint8_t * scratch);

// True if no d of a row of file blocks is infinite or NaN.
bool finite_scales(const Layout & layout, const uint8_t * row);

// True if all blocks of every scale range of a q8_0 row carry the same d.
bool shares_scale(const Layout & layout, const uint8_t * row);

// A matrix, or one matrix per expert: packed panels, or the file's blocks in place.
struct Matrix {
    Layout layout;
    int64_t n;          // output rows of one expert
    int64_t n_experts;  // 1 for a dense weight
    bool packed;
    const uint8_t * data;  // panels of expert 0, then of expert 1, ...; or blocks, row after row
    size_t row_bytes;      // of the file's blocks
};

static inline size_t packed_bytes(const Matrix & m) {
    return size_t(m.n_experts) * size_t(panel_count(m.n)) * m.layout.panel_bytes;
}

// What a kernel sees of a panel.
struct Panel {
    const uint8_t * codes;
    const int8_t * mult;  // nullptr if the format has none
    const uint16_t * d;
    const Layout * layout;
    int bits;  // of a code: the format's, or 8 if these are values read from the file's blocks
};

// Panel p of an expert. If the matrix is not packed, `read` reads it into `buffer` (unpacked_bytes, 64-aligned),
// which must outlive the panel.
Panel matrix_panel(const Matrix & m, int64_t expert, int64_t p, ReadBlocks read, uint8_t * buffer);

}  // namespace octet
