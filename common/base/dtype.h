#pragma once

#include <cstdint>
#include <string_view>

namespace baton {

// The 8-bit types hold K and V only: e4m3 has no infinity and NaN only as 0x7f and 0xff; e5m2 is
// the upper half of f16 (Micikevicius et al. 2022, arXiv 2209.05433).
enum class DType : uint8_t { kF32, kF16, kBF16, kFp8E4M3, kFp8E5M2 };

constexpr bool IsFp8(DType dtype) {
  return dtype == DType::kFp8E4M3 || dtype == DType::kFp8E5M2;
}

constexpr int SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : IsFp8(dtype) ? 1 : 2; }

constexpr std::string_view ToString(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kFp8E4M3:
      return "fp8_e4m3";
    case DType::kFp8E5M2:
      return "fp8_e5m2";
  }
  return "?";
}

}  // namespace baton
