#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/dtype.h"
#include "common/base/status.h"
#include "kernels/api/operands.h"
#include "kernels/api/packed_matrix.h"

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

// Blocks [first, first + count) lie in [0, num_blocks); without overflow.
inline absl::Status CheckRange(int64_t first, int64_t count, int64_t num_blocks, FieldName field) {
  return Require(first >= 0 && first <= num_blocks - count, field, first,
                 absl::StrCat("in [0, ", num_blocks - count, "]"));
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

// What a balanced tree adds.
inline absl::Status RequireTree(int64_t count, FieldName field) {
  return Require(count == 1 || count == 2 || count == 4 || count == 8, field, count,
                 "1, 2, 4 or 8");
}

// Segments of so many rows lie one behind the other.
inline absl::Status RequireSegmentStride(int64_t value, int64_t num_rows, int64_t row_stride) {
  if (value / row_stride < num_rows) {
    return Require(false, "segment_stride", value,
                   absl::StrCat("at least ", num_rows, " rows of ", row_stride));
  }
  return Require(value <= kMaxStride, "segment_stride", value, "at most ", kMaxStride);
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

// A type to compute in: of an output, or of weights. The 8-bit types hold K and V only.
inline absl::Status RequireComputeType(DType dtype, FieldName field) {
  return Require(dtype <= DType::kBF16, field, static_cast<int>(dtype), "f32, f16 or bf16");
}

// Numbers that an operator reads, of any type to compute in, or null.
inline absl::Status RequireOperand(ConstFloats operand, FieldName field) {
  if (operand.dtype <= DType::kBF16) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field.prefix, field.suffix, ".dtype = ",
                                                 std::string(ToString(operand.dtype)),
                                                 ": must be f32, f16 or bf16"));
}

// What is rounded to a type lies in that type, or as floats that have such values.
inline absl::Status RequireRounded(ConstFloats out, DType round_to) {
  RETURN_IF_ERROR(RequireComputeType(round_to, "round_to"));
  if (out.dtype == DType::kF32 || out.dtype == round_to) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("out.dtype = ", std::string(ToString(out.dtype)),
                                                 ": must be f32 or round_to, ",
                                                 std::string(ToString(round_to))));
}

// Weights in an order that only the device knows which has packed them.
inline absl::Status RequirePacked(const PackedMatrix& matrix, WeightFormat format,
                                  FieldName field) {
  if (matrix.format() == format) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field.prefix, field.suffix, ": must be weights that this device has packed"));
}

}  // namespace baton
