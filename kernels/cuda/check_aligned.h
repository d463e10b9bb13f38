#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "kernels/api/require.h"

namespace baton::cuda {

// What the engine's attention asks of queries on top of CheckShapes.
inline absl::Status CheckAligned(ConstFloats q, int64_t q_stride) {
  RETURN_IF_ERROR(Require(q_stride % 8 == 0, "q_stride", q_stride, "a multiple of 8 on a GPU"));
  const uint64_t behind = reinterpret_cast<uintptr_t>(q.data) % 16;
  return Require(behind == 0, "q", static_cast<int64_t>(behind),
                 "0 bytes behind a multiple of 16 on a GPU");
}

}  // namespace baton::cuda
