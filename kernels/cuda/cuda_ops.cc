#include "kernels/cuda/cuda_ops.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/api/check_shapes.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cache.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/norms.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/sample.h"

namespace baton::cuda {
namespace {

absl::Status RequirePacked(const PackedMatrix& matrix, absl::string_view field) {
  if (matrix.format() == WeightFormat::kCuda) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": must be weights that this device has packed"));
}

ConstFloats FloatsOf(const PackedMatrix& matrix) { return {matrix.data(), matrix.dtype()}; }

}  // namespace

absl::Status CudaOps::Embedding(const baton::EmbeddingArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  if (absl::Status status = RequirePacked(*args.table, "table"); !status.ok()) return status;
  return ToStatus(cuda::Embedding({.table = FloatsOf(*args.table),
                                   .table_stride = RowStride(*args.table),
                                   .tokens = args.tokens,
                                   .num_tokens = args.num_tokens,
                                   .dim = args.table->k(),
                                   .out = args.out,
                                   .out_stride = args.out_stride},
                                  stream_),
                  "Embedding");
}

absl::Status CudaOps::RmsNorm(const RmsNormArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::RmsNorm(args, stream_), "RmsNorm");
}

absl::Status CudaOps::Gemm(const baton::GemmArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  if (absl::Status status = RequirePacked(*args.weights, "weights"); !status.ok()) return status;
  return ToStatus(cuda::Gemm({.a = args.a,
                              .a_stride = args.a_stride,
                              .weights = FloatsOf(*args.weights),
                              .weights_stride = RowStride(*args.weights),
                              .m = args.m,
                              .n = args.weights->n(),
                              .k = args.weights->k(),
                              .bias = args.bias,
                              .out = args.out,
                              .out_stride = args.out_stride},
                             stream_),
                  "Gemm");
}

absl::Status CudaOps::RotaryTable(const RotaryTableArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::RotaryTable(args, stream_), "RotaryTable");
}

absl::Status CudaOps::Rope(const RopeArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::Rope(args, stream_), "Rope");
}

absl::Status CudaOps::ReshapeAndCache(const ReshapeAndCacheArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::ReshapeAndCache(args, stream_), "ReshapeAndCache");
}

absl::Status CudaOps::VarlenAttention(const VarlenAttentionArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  const bool fits = ScratchBytes(args) <= scratch_.size_bytes();
  auto* scratch = fits ? reinterpret_cast<float*>(scratch_.data()) : nullptr;
  return ToStatus(cuda::VarlenAttention(args, scratch, stream_), "VarlenAttention");
}

absl::Status CudaOps::ActivationAndMul(const ActivationAndMulArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::ActivationAndMul(args, stream_), "ActivationAndMul");
}

absl::Status CudaOps::SelectRows(const SelectRowsArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::SelectRows(args, stream_), "SelectRows");
}

absl::Status CudaOps::Sample(const SampleArgs& args) {
  return ToStatus(cuda::Sample(args, stream_), "Sample");
}

absl::Status CudaOps::Score(const ScoreArgs& args) {
  return ToStatus(cuda::Score(args, stream_), "Score");
}

}  // namespace baton::cuda
