#include "common/checkpoint/tensor_view.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/check.h"

namespace baton {
namespace {

float F16ToF32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t fraction = half & 0x3ffu;
  if (exponent == 0) {
    // Zero and subnormals: fraction * 2^-24, exactly.
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t wide_exponent = exponent == 0x1f ? 0xffu : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide_exponent << 23) | (fraction << 13));
}

float BF16ToF32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

template <typename Convert>
void ConvertHalves(const std::byte* from, std::span<float> out, Convert convert) {
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + i * sizeof bits, sizeof bits);
    out[i] = convert(bits);
  }
}

void ConvertDense(const TensorView& tensor, std::span<float> out) {
  const std::byte* const from = tensor.bytes.data();
  switch (tensor.dtype) {
    case DType::kF32:
      std::memcpy(out.data(), from, out.size_bytes());
      return;
    case DType::kF16:
      ConvertHalves(from, out, F16ToF32);
      return;
    case DType::kBF16:
      ConvertHalves(from, out, BF16ToF32);
      return;
    case DType::kFp8E4M3:
    case DType::kFp8E5M2:
      return;  // No tensor of a model file has these types.
  }
}

}  // namespace

int64_t TensorView::NumElements() const {
  if (!present()) return 0;
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

int64_t TensorView::row_bytes() const {
  return shape[0] == 0 ? 0 : NumElements() / shape[0] * SizeOf(dtype);
}

std::vector<TensorView> DenseRuns(const TensorView& tensor, int64_t first, int64_t count) {
  BATON_CHECK(first >= 0 && count >= 0 && first <= tensor.shape[0] - count);
  const int64_t group = tensor.group == 0 ? tensor.shape[0] : tensor.group;
  std::vector<TensorView> runs;
  for (const int64_t end = first + count; first < end; first += count) {
    count = std::min(end - first, group - first % group);
    const int64_t at = first / group * tensor.group_stride + first % group;
    TensorView& run = runs.emplace_back(TensorView{.dtype = tensor.dtype, .shape = tensor.shape});
    run.shape[0] = count;
    run.bytes = tensor.bytes.subspan(at * tensor.row_bytes(), count * tensor.row_bytes());
  }
  return runs;
}

TensorView RowsOf(const TensorView& tensor, int64_t first, int64_t count) {
  if (!tensor.present()) return {};
  BATON_CHECK(tensor.group == 0);
  return DenseRuns(tensor, first, count).front();
}

TensorView EveryGroup(const TensorView& tensor, int64_t group, int64_t part, int64_t parts) {
  if (!tensor.present()) return {};
  BATON_CHECK(tensor.group == 0 && tensor.shape[0] % (group * parts) == 0);
  TensorView out{.dtype = tensor.dtype,
                 .shape = tensor.shape,
                 .bytes = tensor.bytes.subspan(part * group * tensor.row_bytes()),
                 .group = group,
                 .group_stride = group * parts};
  out.shape[0] /= parts;
  out.bytes = out.bytes.first(tensor.bytes.size() - (parts - 1) * group * tensor.row_bytes());
  return out;
}


void ConvertToF32(const TensorView& tensor, int64_t first, std::span<float> out) {
  const auto count = static_cast<int64_t>(out.size());
  BATON_CHECK(first >= 0 && count <= tensor.NumElements() && first <= tensor.NumElements() - count);
  if (out.empty()) return;
  if (tensor.group > 0) {
    BATON_CHECK(tensor.shape.size() == 1);
    for (const TensorView& run : DenseRuns(tensor, first, count)) {
      ConvertDense(run, out.first(run.shape[0]));
      out = out.subspan(run.shape[0]);
    }
    return;
  }
  TensorView dense = tensor;
  dense.bytes = tensor.bytes.subspan(first * SizeOf(tensor.dtype));
  ConvertDense(dense, out);
}

}  // namespace baton
