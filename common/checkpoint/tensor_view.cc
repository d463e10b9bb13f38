#include "common/checkpoint/tensor_view.h"

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

}  // namespace

void ConvertToF32(const TensorView& tensor, int64_t first, std::span<float> out) {
  const auto count = static_cast<int64_t>(out.size());
  BATON_CHECK(first >= 0 && count <= tensor.NumElements() && first <= tensor.NumElements() - count);
  if (out.empty()) return;
  const std::byte* from = tensor.bytes.data() + first * SizeOf(tensor.dtype);
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

}  // namespace baton
