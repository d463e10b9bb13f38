#include "kernels/cpu/pack_weights.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/lane_convert.h"

namespace baton {
namespace {

constexpr int64_t kRows = Panels::kRows;

template <DType kType>
void Widen(const std::byte* from, int64_t k, std::byte* to, int64_t stride) {
  for (int64_t i = 0; i < k; ++i) {
    const float x = LoadOne<kType>(from, i);
    std::memcpy(to + i * stride, &x, sizeof(x));
  }
}

// One row of mixed types.
void PackWidened(const WeightRows& part, int64_t row, int64_t to_row, const Panels& to) {
  std::byte* out = to.data() + to.IndexOf(to_row, 0) * 4;
  const std::byte* from = part.Row(row, to.k());
  switch (part.dtype) {
    case DType::kF32:
      return Widen<DType::kF32>(from, to.k(), out, kRows * 4);
    case DType::kF16:
      return Widen<DType::kF16>(from, to.k(), out, kRows * 4);
    case DType::kBF16:
      return Widen<DType::kBF16>(from, to.k(), out, kRows * 4);
    case DType::kFp8E4M3:
    case DType::kFp8E5M2:
      return;  // Refused by CheckArgs.
  }
}

// A unit is what stays together: a float, a half or a pair of bf16. Goes through the rows by small
// pieces, so that each line of the panel is written while it is in the cache.
template <int kUnit>
void PackUnits(const WeightRows& part, int64_t begin, int64_t end, int64_t first_row,
               const Panels& to) {
  constexpr int64_t kPiece = 64 / kUnit;
  const int64_t row_bytes = to.k() * SizeOf(to.dtype());
  const int64_t units = row_bytes / kUnit;
  const int64_t left = row_bytes - units * kUnit;  // Half a pair.
  for (int64_t row = begin; row < end;) {
    // Rows of one panel.
    const int64_t to_row = first_row + row;
    const int64_t rows = std::min(end - row, kRows - to_row % kRows);
    std::byte* out = to.data() + to_row / kRows * to.panel_bytes() + to_row % kRows * kUnit;
    for (int64_t unit = 0; unit < units; unit += kPiece) {
      const int64_t count = std::min(kPiece, units - unit);
      for (int64_t r = 0; r < rows; ++r) {
        const std::byte* piece = part.Row(row + r, to.k()) + unit * kUnit;
        std::byte* at = out + (unit * kRows + r) * kUnit;
        for (int64_t i = 0; i < count; ++i) {
          std::memcpy(at + i * kRows * kUnit, piece + i * kUnit, kUnit);
        }
      }
    }
    for (int64_t r = 0; left > 0 && r < rows; ++r) {
      std::byte* at = out + (units * kRows + r) * kUnit;
      std::memset(at, 0, kUnit);
      std::memcpy(at, part.Row(row + r, to.k()) + units * kUnit, left);
    }
    row += rows;
  }
}

template <DType kType>
void Unpack(const Panels& from, int64_t row, float* out) {
  constexpr int64_t kTogether = kType == DType::kBF16 ? 2 : 1;
  const int64_t first = from.IndexOf(row, 0);
  for (int64_t k = 0; k < from.k(); ++k) {
    const int64_t at = k / kTogether * kRows * kTogether + k % kTogether;
    out[k] = LoadOne<kType>(from.data(), first + at);
  }
}

}  // namespace

void PackRows(const WeightRows& part, int64_t begin, int64_t end, int64_t first_row,
              const Panels& to) {
  if (part.dtype != to.dtype()) {
    for (int64_t r = begin; r < end; ++r) PackWidened(part, r, first_row + r, to);
  } else if (to.dtype() == DType::kF16) {
    PackUnits<2>(part, begin, end, first_row, to);
  } else {
    PackUnits<4>(part, begin, end, first_row, to);
  }
}

void PackZeroRows(int64_t first_row, const Panels& to) {
  const int64_t size = SizeOf(to.dtype());
  for (int64_t row = first_row; row < to.num_panels() * kRows; ++row) {
    for (int64_t k = 0; k < to.padded_k(); ++k) {
      std::memset(to.data() + to.IndexOf(row, k) * size, 0, size);
    }
  }
}

void UnpackRow(const Panels& from, int64_t row, float* out) {
  switch (from.dtype()) {
    case DType::kF32:
      return Unpack<DType::kF32>(from, row, out);
    case DType::kF16:
      return Unpack<DType::kF16>(from, row, out);
    case DType::kBF16:
      return Unpack<DType::kBF16>(from, row, out);
    case DType::kFp8E4M3:
    case DType::kFp8E5M2:
      return;
  }
}

}  // namespace baton
