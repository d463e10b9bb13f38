#pragma once

#include "absl/status/status.h"
#include "common/base/status.h"
#include "kernels/api/check_shapes.h"
#include "kernels/cpu/check_contents.h"

namespace baton {

// INVALID_ARGUMENT with the field, its value and what is allowed.
template <typename Args>
absl::Status CheckArgs(const Args& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return CheckContents(args);
}

}  // namespace baton
