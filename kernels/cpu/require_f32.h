#pragma once

#include <string>

#include "absl/status/status.h"
#include "kernels/api/operands.h"
#include "kernels/api/require.h"

namespace baton {

// The CPU computes in f32. Also of operands that are not read.
inline absl::Status RequireF32(ConstFloats operand, FieldName field) {
  if (operand.dtype == DType::kF32) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field.prefix, field.suffix, ".dtype = ",
                                                 std::string(ToString(operand.dtype)),
                                                 ": must be f32"));
}

}  // namespace baton
