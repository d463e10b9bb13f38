#pragma once

#include <cstdint>
#include <string_view>

namespace baton {

enum class DType : uint8_t { kF32, kF16, kBF16 };

constexpr int SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

constexpr std::string_view ToString(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
  }
  return "?";
}

}  // namespace baton
