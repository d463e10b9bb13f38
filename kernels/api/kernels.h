#pragma once

#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/model_args.h"
#include "kernels/api/model_ops.h"
#include "kernels/api/operator_library.h"
#include "kernels/api/packed_matrix.h"
#include "kernels/api/row_math.h"

namespace baton {

// The operators of a device. INVALID_ARGUMENT names the field, its value and what is allowed, and
// then nothing was written. One caller at a time; a call returns when its results are in memory and
// visible to every thread that the caller synchronises with.
class Kernels : public ModelOps, public OperatorLibrary {
 public:
  // What was chosen, for logs, e.g. "x86_64_v3".
  virtual std::string_view name() const = 0;

  // Whether products of bf16 weights are faster with activations in bf16 than in f32.
  virtual bool has_bf16_dot() const = 0;

  // Part of the numerics id: devices of one numerics() give the same bits when what enters a
  // product with weights is rounded to `compute`, f32 or bf16.
  virtual std::string_view numerics(DType compute) const = 0;

  // RESOURCE_EXHAUSTED when the memory cannot be had.
  virtual absl::StatusOr<PackedMatrix> PackWeights(const PackWeightsArgs& args) = 0;

  // For the work beside the operators: rows of logits that become tokens.
  virtual const RowMath& row_math() const = 0;
  virtual int num_threads() const = 0;
  // body(task in [0, num_tasks), thread in [0, num_threads())) for each task; returns when all have
  // ended. Calls no operator.
  virtual void ParallelFor(int64_t num_tasks,
                           absl::FunctionRef<void(int64_t task, int thread)> body) = 0;
};

}  // namespace baton
