// A weight matrix of every kind of row, in both layouts, in guarded memory.
#pragma once

#include <memory>

#include "data.h"
#include "memory.h"
#include "octet/products.h"
#include "octet/rotation.h"

namespace octet_test {

// Blocks of n_experts x n rows of `layout`; `start` shifts which row is of which kind; tame: random only.
inline std::vector<uint8_t> make_blocks(const Layout & layout, int64_t n_experts, int64_t n, int64_t start, bool tame) {
    Random random(uint64_t(1000 * layout.k + 10 * n + start));
    const size_t bytes = row_bytes(*layout.format, layout.k);
    std::vector<uint8_t> blocks(size_t(n_experts * n) * bytes);
    for (int64_t i = 0; i < n_experts * n; ++i) {
        WeightKind kind = tame ? WeightKind::random : kind_of<WeightKind>(i, start);
        fill_weights(layout, kind, random, blocks.data() + size_t(i) * bytes);
    }
    return blocks;
}

inline Layout layout_of(const Case & c, int64_t k) {
    Layout layout;
    if (!make_layout(*find_format(c.format), k, c.scale_group, &layout)) {
        std::printf("%s does not take k = %lld\n", c.format, static_cast<long long>(k));
        std::exit(2);
    }
    return layout;
}

class MatrixData {
  public:
    MatrixData(const Case & c, int64_t n_experts, int64_t n, int64_t k, int64_t start, bool tame = false)
        : MatrixData(layout_of(c, k), n_experts, n, make_blocks(layout_of(c, k), n_experts, n, start, tame)) {}

    MatrixData(const Layout & layout, int64_t n_experts, int64_t n, const std::vector<uint8_t> & blocks) {
        const size_t bytes = row_bytes(*layout.format, layout.k);
        native_ = {layout, n, n_experts, false, nullptr, bytes};
        blocks_ = std::make_unique<Guarded<uint8_t>>(blocks.size());
        std::memcpy(blocks_->data(), blocks.data(), blocks.size());
        native_.data = blocks_->data();

        packed_ = native_;
        packed_.packed = true;
        panels_ = std::make_unique<Guarded<uint8_t>>(packed_bytes(packed_));
        Guarded<uint8_t> scratch((pack_scratch_bytes(layout) + 63) / 64 * 64);
        for (int64_t e = 0; e < n_experts; ++e) {
            for (int64_t p = 0; p < panel_count(n); ++p) {
                const int rows = int(std::min<int64_t>(kPanelRows, n - p * kPanelRows));
                pack_panel(layout, blocks_->data() + size_t(e * n + p * kPanelRows) * bytes, bytes, rows,
                           panels_->data() + size_t(e * panel_count(n) + p) * layout.panel_bytes, scratch.data());
            }
        }
        packed_.data = panels_->data();
    }

    const Matrix & native() const { return native_; }
    const Matrix & packed() const { return packed_; }
    const Layout & layout() const { return native_.layout; }

  private:
    Matrix native_, packed_;
    std::unique_ptr<Guarded<uint8_t>> blocks_, panels_;
};

// rows x k activations `stride` floats apart, every kind in turn; what lies between the rows is no number.
class ActivationData {
  public:
    ActivationData(int64_t rows, int64_t k, int64_t start, int64_t stride = 0, bool tame = false)
        : stride_(stride ? stride : k), start_(start), tame_(tame), x_(size_t(rows ? (rows - 1) * stride_ + k : 0)) {
        Random random(uint64_t(77 * k + 7 * rows + start));
        for (size_t i = 0; i < x_.size(); ++i) x_[i] = NAN;
        for (int64_t i = 0; i < rows; ++i) fill_row(kind(i), k, random, x_.data() + i * stride_);
    }

    RowKind kind(int64_t row) const { return tame_ ? RowKind::normal : kind_of<RowKind>(row, start_); }
    RowsIn rows() const { return {reinterpret_cast<const char *>(x_.data()), stride_ * int64_t(sizeof(float))}; }
    const float * row(int64_t i) const { return x_.data() + i * stride_; }
    Guarded<float> & memory() { return x_; }

  private:
    int64_t stride_, start_;
    bool tame_;
    Guarded<float> x_;
};

// Output rows with canaries between them.
class OutputData {
  public:
    OutputData(int64_t rows, int64_t n, int64_t stride = 0)
        : rows_(rows), n_(n), stride_(stride ? stride : n), out_(size_t(rows ? (rows - 1) * stride_ + n : 0)) {
        for (size_t i = 0; i < out_.size(); ++i) std::memcpy(&out_[i], &kCanary, 4);
    }

    float * data() { return out_.data(); }
    const float * row(int64_t i) const { return out_.data() + i * stride_; }
    int64_t stride() const { return stride_; }

    bool canaries_intact() const {
        for (size_t i = 0; i < out_.size(); ++i) {
            if (int64_t(i) % stride_ >= n_ && std::memcmp(&out_[i], &kCanary, 4) != 0) return false;
        }
        return true;
    }
    bool untouched() const {
        for (size_t i = 0; i < out_.size(); ++i) {
            if (std::memcmp(&out_[i], &kCanary, 4) != 0) return false;
        }
        return true;
    }
    // Whether the rows are the same bits.
    bool same_as(const OutputData & other) const {
        for (int64_t i = 0; i < rows_; ++i) {
            if (first_difference(row(i), other.row(i), n_) >= 0) return false;
        }
        return true;
    }

  private:
    static constexpr uint32_t kCanary = 0xDEADBEEFu;
    int64_t rows_, n_, stride_;
    Guarded<float> out_;
};

// The memory of the tiles of some rows.
class TileData {
  public:
    explicit TileData(const Layout & l, int64_t rows = kTileRows)
        : q_(size_t(padded(rows) * l.k)),
          d_(size_t(padded(rows) * (l.k / activation_group(l)))),
          offset_(size_t(padded(rows) * (l.k / l.range))),
          tiles(tiles_of(l, q_.data(), d_.data(), offset_.data())) {}

    bool same_as(const TileData & other) const {
        return std::memcmp(q_.data(), other.q_.data(), q_.size()) == 0 &&
               std::memcmp(d_.data(), other.d_.data(), d_.size() * sizeof(float)) == 0 &&
               std::memcmp(offset_.data(), other.offset_.data(), offset_.size() * sizeof(int32_t)) == 0;
    }

  private:
    static int64_t padded(int64_t rows) { return (rows + kTileRows - 1) / kTileRows * kTileRows; }

    Guarded<int8_t> q_;
    Guarded<float> d_;
    Guarded<int32_t> offset_;

  public:
    Tiles tiles;
};

}  // namespace octet_test
