#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "common/base/thread_pool.h"
#include "kernels/api/packed_matrix.h"

namespace baton::cuda {

// Rows of a file's matrix as weights.h has them.
struct WeightRowsArgs {
  const WeightRows& part;
  int64_t first = 0;  // Rows [first, first + count) of the part,
  int64_t count = 0;
  int64_t k = 0;                  // of so many numbers each,
  DType dtype = DType::kBF16;     // in that type, to the nearest, ties to even: bf16 or f16.
  ThreadPool* threads = nullptr;  // They share the rows; null: the caller alone.
};

// Writes them to `to`, [count, RowStride(k)], with zeros behind each row. DATA_LOSS: the part
// cannot be read (TouchPages); what has been written then is not told.
absl::Status CopyWeightRows(const WeightRowsArgs& args, std::byte* to);

}  // namespace baton::cuda
