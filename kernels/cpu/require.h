#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/dtype.h"
#include "kernels/api/operands.h"

namespace baton {

// The name of an argument in one or two pieces, put together only for an error: a step checks many
// arguments and allocates nothing.
struct FieldName {
  FieldName(const char* first) : prefix(first) {}         // NOLINT: a plain name is a name.
  FieldName(const std::string& first) : prefix(first) {}  // NOLINT
  FieldName(absl::string_view first, absl::string_view last = "") : prefix(first), suffix(last) {}

  absl::string_view prefix, suffix;
};

// The one form of an argument's error: "field = value: must be ...".
inline absl::Status Require(bool ok, FieldName field, int64_t value, const absl::AlphaNum& allowed,
                            const absl::AlphaNum& more = "") {
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field.prefix, field.suffix, " = ", value, ": must be ") +
      absl::StrCat(allowed, more));
}

inline absl::Status RequirePointer(const void* p, FieldName field) {
  if (p != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field.prefix, field.suffix, " = null: must point to data"));
}

inline absl::Status RequireAtLeast(int64_t value, int64_t least, FieldName field) {
  return Require(value >= least, field, value, "at least ", least);
}

inline absl::Status RequireIn(int64_t value, int64_t least, int64_t greatest, FieldName field) {
  if (value >= least && value <= greatest) return absl::OkStatus();
  return Require(false, field, value, absl::StrCat("in [", least, ", ", greatest, "]"));
}

// Any multiple of it by a number of tokens or sequences that memory holds fits in 64 bits.
inline constexpr int64_t kMaxStride = int64_t{1} << 42;

inline absl::Status RequireStride(int64_t value, int64_t least, FieldName field) {
  if (value < least) return RequireAtLeast(value, least, field);
  return Require(value <= kMaxStride, field, value, "at most ", kMaxStride);
}

// 0 stands for dense rows of `least` elements.
inline absl::Status RequireStrideOrDense(int64_t value, int64_t least, FieldName field) {
  if (value == 0) return absl::OkStatus();
  return RequireStride(value, least, field);
}

inline absl::Status RequireFloat(bool ok, FieldName field, float value,
                                 const absl::AlphaNum& allowed) {
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field.prefix, field.suffix, " = ", value, ": must be ", allowed));
}

inline absl::Status RequireFiniteAtLeast0(float value, FieldName field) {
  return RequireFloat(std::isfinite(value) && value >= 0, field, value, "finite and at least 0");
}

// The CPU computes in f32. Also of operands that are not read.
inline absl::Status RequireF32(ConstFloats operand, FieldName field) {
  if (operand.dtype == DType::kF32) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field.prefix, field.suffix, ".dtype = ",
                                                 std::string(ToString(operand.dtype)),
                                                 ": must be f32"));
}

// A type to compute in: of an output, or of weights. The 8-bit types hold K and V only.
inline absl::Status RequireComputeType(DType dtype, FieldName field) {
  return Require(dtype <= DType::kBF16, field, static_cast<int>(dtype), "f32, f16 or bf16");
}

}  // namespace baton
