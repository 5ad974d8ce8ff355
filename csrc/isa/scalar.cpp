// The definition: plain C++, no instruction set assumed. Every other file must match its bits.
#include "../formats/blocks.h"
#include "elementwise.h"
#include "tables.h"

namespace octet {
namespace {

void product(const Panel & w, const Tile & x, int m, float * out) {
    std::memset(out, 0, size_t(m) * kPanelRows * sizeof(float));
    const Layout & l = *w.layout;
    const int64_t group = activation_group(l), chunk = activation_chunk(l);
    int32_t dot[kTileRows][kPanelRows] = {};
    for (int64_t g = 0; g < l.k / 32; ++g) {
        int8_t weight[512];
        decode_group(w, g, weight);
        for (int j = 0; j < 32; ++j) {
            const int64_t column = 32 * g + j;
            for (int r = 0; r < m; ++r) {
                const int8_t q = *tile_columns(x, chunk, r, column);
                for (int o = 0; o < kPanelRows; ++o) dot[r][o] += q * weight[64 * (j / 4) + 4 * o + j % 4];
            }
            if ((column + 1) % l.range != 0) continue;
            for (int o = 0; o < kPanelRows; ++o) {
                const float scale = weight_scale(w, column, o);
                for (int r = 0; r < m; ++r) {
                    float & acc = out[r * kPanelRows + o];
                    acc = __builtin_fmaf(float(dot[r][o]), scale * x.d[column / group * kTileRows + r], acc);
                    dot[r][o] = 0;
                }
            }
        }
    }
}

}  // namespace

const Kernels kScalarKernels = {"scalar",           read_blocks<true>, rotate, quantize,
                                for_tiles<product>, product_float,     glu,    weighted_sum};

}  // namespace octet
