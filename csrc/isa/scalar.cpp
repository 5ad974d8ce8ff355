// The definition: plain C++, no instruction set assumed. Every other file must match its bits.
#include "elementwise.h"
#include "tables.h"

namespace octet {
namespace {

void product(const Panel & w, const Rows & x, int m, float * tile) {
    std::memset(tile, 0, size_t(m) * kPanelRows * sizeof(float));
    const int64_t group = w.range < 32 ? 32 : w.range;
    int32_t dot[kTileRows][kPanelRows] = {};
    for (int64_t g = 0; g < w.k / 32; ++g) {
        int8_t weight[512];
        decode_group(w, g, weight);
        for (int j = 0; j < 32; ++j) {
            int64_t column = 32 * g + j;
            for (int r = 0; r < m; ++r) {
                for (int o = 0; o < kPanelRows; ++o) {
                    dot[r][o] += x.q[r][column] * weight[64 * (j / 4) + 4 * o + j % 4];
                }
            }
            if ((column + 1) % w.range != 0) continue;
            for (int o = 0; o < kPanelRows; ++o) {
                float scale = weight_scale(w, column, o);
                for (int r = 0; r < m; ++r) {
                    float * acc = tile + r * kPanelRows + o;
                    *acc = __builtin_fmaf(float(dot[r][o]), scale * x.d[r][column / group], *acc);
                    dot[r][o] = 0;
                }
            }
        }
    }
}

}  // namespace

const Kernels kScalarKernels = {"scalar", rotate, quantize, product, product_float, glu, weighted_sum};

}  // namespace octet
