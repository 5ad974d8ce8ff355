// What the host has to know of the device code: kernels, their arguments, memory layouts, ranges.
//
// The sources of this folder are compiled at run time, one program per variant: source text, every header
// of the folder as an include file of its own name, and the options listed with each kernel. A program
// holds one kernel, whose name is the name of its file with octet_ in front. All of them are ESIMD kernels
// with 256 registers, or 128 with -DOCTET_GRF=128. Pointers are USM (device, shared or host) and 64-byte
// aligned unless said otherwise; sizes are int32. Dimension 0 of a range is the slow one.
//
// Shapes. A *tile* is 8 rows of activations, what one dpas multiplies. Rows are sorted by expert and each
// expert starts a new tile; the rows that its last tile lacks are padding (zeros). Position p = 8 tile + row.
// A *panel* is 16 output rows of a weight matrix. The *range* of a weight is the number of columns that
// share its scale (32 for codebook formats), and the same columns share an activation scale.
//
// One group of up to kMaxExperts experts takes four launches, on an in-order queue:
//     octet_rows       x, gathered by expert          -> q, d        (rotated, quantized)
//     octet_product    q, d, gate and up of experts   -> gu
//     octet_rows       act(g) * u of gu               -> q2, d2      (OCTET_GLU set)
//     octet_product    q2, d2, down of experts        -> out
// The float chain takes the same four with OCTET_HALF rows and octet_product_half, and before each product
// octet_dequantize for the weights it reads.
#pragma once

#ifndef __SYCL_DEVICE_ONLY__
#include <cstdint>
#endif

namespace octet_device {

constexpr int kTileRows = 8;      // rows of a tile
constexpr int kPanelRows = 16;    // output rows of a thread
constexpr int kStep = 32;         // columns of one int8 dpas; 16 for fp16
constexpr int kGroupThreads = 8;  // threads of a work-group of the WG variants
constexpr int kMaxExperts = 16;   // of a group of launches

// Formats, as the value of -DOCTET_FORMAT=. A weight row is its file blocks, one after another.
//     number            file type  K is a multiple of   range
constexpr int kIq3S = 0;      // IQ3_S     256                  32
constexpr int kIq3Xxs = 1;    // IQ3_XXS   256                  32
constexpr int kIq2S = 2;      // IQ2_S     256                  32 (two weight scales of 16 columns)
constexpr int kIq4Nl = 3;     // IQ4_NL    32                   32
constexpr int kQ20 = 4;       // Q2_0      64                   32
constexpr int kInt8 = 5;      // Q8_0      32                   32
constexpr int kInt8x128 = 6;  // Q8_0    128                  128: all blocks of a range have the same d
constexpr int kInt8Row = 7;   // Q8_0    32                   K, at most 131072
// Formats that the float chain alone takes, through octet_dequantize; their rows are quantized to no grid.
constexpr int kIq2Xs = 8;   // IQ2_XS    256
constexpr int kIq2Xxs = 9;  // IQ2_XXS   256
constexpr int kIq4Xs = 10;  // IQ4_XS    256
constexpr int kQ40 = 11;    // Q4_0      32
constexpr int kMxfp4 = 12;  // MXFP4     32
constexpr int kFormats = 13;

// A unit of work of octet_product and octet_product_half: up to MT tiles of one expert times one of its
// matrices. An expert with more than MT tiles has several jobs per matrix; one without rows has none.
// Up's jobs are those of gate with other weights and out_column = n.
struct Job {
    uint64_t weights;     // address of the matrix's first byte: [n] rows of blocks; a multiple of 4
    int32_t first_tile;   // of the activations
    int32_t tiles;        // 1 ... MT
    int32_t out_column;   // where output row 0 of the matrix goes
    int32_t reserved[3];  // 0
};
static_assert(sizeof(Job) == 32, "an array of them is read by 32-byte loads");

// ---- octet_rows: rows.cpp ----------------------------------------------------------------------------
//
// Float rows to tiles. Options:
//     -DOCTET_GLU=0|1|2|3   the row itself, or swiglu, geglu, reglu of its two halves
//     -DOCTET_CHUNK=32|64|128  columns a thread holds at a time: the largest of them that divides k
//     -DOCTET_HALF=0|1      q8_1 grid, or fp16
// Arguments, in order:
//     const float * x        rows, `stride` floats apart, 4-byte aligned; with GLU, gate at column 0, up at k
//     const int32_t * source [positions] row of x of each position, negative: padding
//     const float * signs    [k] +1 or -1 of the rotation; unused if rotation is 0
//     void * q               OCTET_HALF 0: int8 [tiles][k / 32][8 rows][32 columns]
//                            OCTET_HALF 1: fp16 [tiles][k / 16][8 rows][16 columns]
//     float * d              [tiles][k / group][8 rows] scales; unused with OCTET_HALF 1
//     int32_t k              columns of a row; a multiple of 32
//     int32_t stride         floats from one row of x to the next
//     int32_t group          32, 128 or k: the range of the weight that will read the tiles
//     int32_t rotation       0, 32, 64, 128: block of the Walsh-Hadamard transform; divides OCTET_CHUNK
// Range: {positions, parts}, local {1, 1}; positions are 8 x tiles; parts = 1 if group is k, else
// k / OCTET_CHUNK.
//
// ---- octet_product: product.cpp ----------------------------------------------------------------------
//
// int8 tiles times blocks of weights, decoded in registers. Options:
//     -DOCTET_FORMAT=0 ... 7
//     -DOCTET_MT=2|4|8      tiles a thread multiplies with each decoded panel
//     -DOCTET_WG=0|1        1: 8 threads share tiles and codebook in local memory
// Arguments, in order:
//     const Job * jobs
//     const int8_t * q       the tiles
//     const float * d        their scales
//     const uint32_t * codebook  of the format (codebook_words of them; codebooks.py), or any address for others
//     float * out            rows `ldc` floats apart, ldc a multiple of 16
//     const int32_t * slot   [positions] output row of each position, negative: not written; null: position p
//                            is written to row p, padding too
//     int32_t k, n           columns and output rows of the matrix; n a multiple of 16
//     int32_t ldc
// Range: {jobs, n / 16 rounded up to a multiple of 8 with WG}, local {1, WG ? 8 : 1}.
// out[slot][out_column + o] = the product of the position's row and weight row o.
//
// ---- octet_dequantize: dequantize.cpp ----------------------------------------------------------------
//
// Blocks to fp16 in the order of dpas. Options: -DOCTET_FORMAT=0 ... 5 (5 serves every Q8_0), 8 ... 12. Arguments:
//     const Job * jobs       only weights, out_column (index of the matrix in half) are read
//     const uint32_t * codebook
//     sycl::half * half      [matrices][n / 16][k / 16][8 pairs of columns][16 output rows][2]
//     int32_t k, n
// Range: {jobs, n / 16}, local {1, 1}.
//
// ---- octet_product_half: product_half.cpp ------------------------------------------------------------
//
// fp16 tiles times dequantized panels, summed in f32. Option: -DOCTET_MT=2|4|8. Arguments:
//     const Job * jobs       weights = address of the matrix in `half`, 64-byte aligned
//     const sycl::half * q
//     float * out
//     const int32_t * slot
//     int32_t k, n, ldc
// Range: {jobs, n / 16}, local {1, 1}.

// Tiles per thread for a group of experts: the smallest variant that takes a mean expert in one job.
constexpr int tiles_per_thread(int64_t tiles, int64_t experts) {
    return tiles <= 2 * experts ? 2 : tiles <= 4 * experts ? 4 : 8;
}

// uint32 words of a format's codebook; 0 for formats without one.
constexpr int codebook_words(int format) {
    switch (format) {
        case kIq3S: return 512;
        case kIq3Xxs: return 256;
        case kIq2S: return 2048;
        case kIq2Xs: return 1024;
        case kIq2Xxs: return 512;
        default: return 0;
    }
}

// Whether octet_product has the format.
constexpr bool has_int8_products(int format) { return format >= 0 && format <= kInt8Row; }

}  // namespace octet_device
