#include "kernels/cpu/gemm.h"

#include "kernels/cpu/lane_convert.h"
#include "kernels/cpu/vec.h"

namespace baton::BATON_KERNEL_SET {
namespace {

// Rows and panels that one pass over k holds in registers.
template <int kRows, int kPanels, DType kType>
void Tile(const GemmBlock& b, int64_t row, int64_t panel) {
  const float* a[kRows];
  const std::byte* w[kPanels];
  Vec sum[kRows][kPanels];
  const int64_t panel_bytes = b.panel_stride * SizeOf(kType);
  for (int r = 0; r < kRows; ++r) a[r] = b.a + (row + r) * b.a_stride;
  for (int p = 0; p < kPanels; ++p) w[p] = b.panels + (panel + p) * panel_bytes;
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) {
      const int64_t column = (panel + p) * kLanes;
      const float* out = b.out + (row + r) * b.out_stride + column;
      const int64_t left = b.n - column;
      if (!b.accumulate) {
        sum[r][p] = Zero();
      } else {
        sum[r][p] = left >= kLanes ? Load(out) : LoadFirst(out, left);
      }
    }
  }
  for (int64_t k = 0; k < b.k; ++k) {
    Vec weight[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) weight[p] = LoadLanes<kType>(w[p], k * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec x = Broadcast(a[r][k]);
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) sum[r][p] = Fma(x, weight[p], sum[r][p]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) {
      const int64_t column = (panel + p) * kLanes;
      float* out = b.out + (row + r) * b.out_stride + column;
      const int64_t left = b.n - column;
      Vec v = sum[r][p];
      if (b.bias != nullptr) {
        v = v + (left >= kLanes ? Load(b.bias + column) : LoadFirst(b.bias + column, left));
      }
      if (left >= kLanes) {
        Store(out, v);
      } else {
        StoreFirst(out, v, left);
      }
    }
  }
}

// Rows [row, row + kRows) with all panels, as many panels at a time as registers allow.
template <int kRows, DType kType>
void RowTile(const GemmBlock& b, int64_t row) {
  constexpr int kPanels = kRows == 1 ? 4 : kRows <= 3 ? 2 : 1;
  int64_t panel = 0;
  for (; panel + kPanels <= b.num_panels; panel += kPanels)
    Tile<kRows, kPanels, kType>(b, row, panel);
  for (; panel < b.num_panels; ++panel) Tile<kRows, 1, kType>(b, row, panel);
}

template <DType kType>
void Rows(const GemmBlock& b) {
  constexpr int kFull = 6;
  const int64_t full = b.m / kFull * kFull;
  // A panel stays in the cache for all rows.
  for (int64_t panel = 0; full > 0 && panel < b.num_panels; ++panel) {
    for (int64_t row = 0; row < full; row += kFull) Tile<kFull, 1, kType>(b, row, panel);
  }
  switch (b.m - full) {
    case 1:
      return RowTile<1, kType>(b, full);
    case 2:
      return RowTile<2, kType>(b, full);
    case 3:
      return RowTile<3, kType>(b, full);
    case 4:
      return RowTile<4, kType>(b, full);
    case 5:
      return RowTile<5, kType>(b, full);
    default:
      return;
  }
}

}  // namespace

void Gemm(const GemmBlock& block) {
  switch (block.dtype) {
    case DType::kF32:
      return Rows<DType::kF32>(block);
    case DType::kF16:
      return Rows<DType::kF16>(block);
    case DType::kBF16:
      return Rows<DType::kBF16>(block);
  }
}

}  // namespace baton::BATON_KERNEL_SET
