#include "kernels/cuda/cuda_ops.h"

#include <algorithm>

#include "common/base/status.h"
#include "kernels/api/check_shapes.h"
#include "kernels/api/require.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cache.h"
#include "kernels/cuda/check_aligned.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/expert_gemm.h"
#include "kernels/cuda/gated_gemm.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/generic_attention.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/norms.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/sample.h"

namespace baton::cuda {
namespace {

// Both may be null where there are no keys.
absl::Status CheckDense(const DenseKeys& dense) {
  if (dense.k.data == nullptr && dense.v.data == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(dense.k.data, "dense.k"));
  RETURN_IF_ERROR(RequirePointer(dense.v.data, "dense.v"));
  const int64_t heads = dense.num_heads;
  RETURN_IF_ERROR(RequireStride(dense.k_stride, heads * dense.k_dim, "dense.k_stride"));
  return RequireStride(dense.v_stride, heads * dense.v_dim, "dense.v_stride");
}

// What a CPU would look up in arrays that are the device's here.
absl::Status CheckTold(const VarlenAttentionArgs& args) {
  if (args.num_seqs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 1, "num_tokens"));
  if (args.dense.cu_seqlens_k != nullptr) return CheckDense(args.dense);
  RETURN_IF_ERROR(RequireAtLeast(args.max_seqlen_q, 1, "max_seqlen_q"));
  RETURN_IF_ERROR(RequireAtLeast(args.max_seqlen_k, 1, "max_seqlen_k"));
  return RequirePointer(args.block_table, "block_table");
}

// What a CPU asks only where expert_offsets say that there are rows.
absl::Status CheckOperands(const ExpertGemmArgs& args) {
  if (args.num_experts == 0) return absl::OkStatus();
  for (int64_t e = 0; e < args.num_experts; ++e) {
    RETURN_IF_ERROR(RequirePacked(args.weights[e], WeightFormat::kCuda, "weights"));
  }
  const int64_t rows_each = args.row_order == nullptr ? 1 : args.top_k;
  RETURN_IF_ERROR(RequireIn(args.num_a_rows, 0, INT32_MAX / rows_each, "num_a_rows"));
  if (args.num_a_rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.a.data, "a"));
  RETURN_IF_ERROR(RequirePointer(args.out.data, "out"));
  RETURN_IF_ERROR(RequireStride(args.a_stride, args.weights->k(), "a_stride"));
  RETURN_IF_ERROR(RequireStride(args.out_stride, args.weights->n(), "out_stride"));
  if (args.num_segments == 1) return absl::OkStatus();
  // For as many rows as there may be.
  return RequireSegmentStride(args.segment_stride, args.num_a_rows * rows_each, args.out_stride);
}

}  // namespace

absl::Status CudaOps::Embedding(const EmbeddingArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  RETURN_IF_ERROR(RequirePackedShards(args, WeightFormat::kCuda));
  return ToStatus(cuda::Embedding(args, stream_), "Embedding");
}

absl::Status CudaOps::RmsNorm(const RmsNormArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::RmsNorm(args, stream_), "RmsNorm");
}

absl::Status CudaOps::LayerNorm(const LayerNormArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::LayerNorm(args, stream_), "LayerNorm");
}

absl::Status CudaOps::Gemm(const GemmArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  RETURN_IF_ERROR(RequirePacked(*args.weights, WeightFormat::kCuda, "weights"));
  return ToStatus(cuda::Gemm(args, Scratch(), stream_), "Gemm");
}

absl::Status CudaOps::FoldPartials(const FoldPartialsArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::FoldPartials(args, stream_), "FoldPartials");
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
  RETURN_IF_ERROR(CheckTold(args));
  if (!FastAttentionServes(args)) {
    const int64_t most = INT32_MAX / std::max(args.num_heads, 1);  // A block for each.
    RETURN_IF_ERROR(
        Require(args.num_tokens <= most, "num_tokens", args.num_tokens, "on a GPU at most ", most));
    return ToStatus(GenericAttention(args, stream_), "VarlenAttention");
  }
  RETURN_IF_ERROR(CheckAligned(args.q, args.q_stride));
  const AttentionRoom room = RoomIn(scratch_, counters_, shared_bytes_, ScratchBytes(args));
  return ToStatus(cuda::VarlenAttention(args, room, stream_), "VarlenAttention");
}

absl::Status CudaOps::Activation(const ActivationArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::Activation(args, stream_), "Activation");
}

absl::Status CudaOps::ActivationAndMul(const ActivationAndMulArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::ActivationAndMul(args, stream_), "ActivationAndMul");
}

absl::Status CudaOps::Softcap(const SoftcapArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::Softcap(args, stream_), "Softcap");
}

absl::Status CudaOps::SelectRows(const SelectRowsArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::SelectRows(args, stream_), "SelectRows");
}

absl::Status CudaOps::Sample(const SampleArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  if (args.num_rows > 0) RETURN_IF_ERROR(RequirePointer(args.adjusted, "adjusted"));
  return ToStatus(cuda::Sample(args, Scratch(), stream_), "Sample");
}

absl::Status CudaOps::Score(const ScoreArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::Score(args, stream_), "Score");
}

absl::Status CudaOps::TakeTokens(const TakeTokensArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::TakeTokens(args, stream_), "TakeTokens");
}

absl::Status CudaOps::MoeRouting(const MoeRoutingArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::MoeRouting(args, stream_), "MoeRouting");
}

absl::Status CudaOps::MoeAlign(const MoeAlignArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::MoeAlign(args, stream_), "MoeAlign");
}

absl::Status CudaOps::ExpertGemm(const ExpertGemmArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  RETURN_IF_ERROR(CheckOperands(args));
  return ToStatus(cuda::ExpertGemm(args, stream_), "ExpertGemm");
}

absl::Status CudaOps::MoeCombine(const MoeCombineArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::MoeCombine(args, stream_), "MoeCombine");
}

absl::Status CudaOps::RopeAndCache(const RopeAndCacheArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  if (!RopeAndCacheServes(args)) return ModelOps::RopeAndCache(args);
  return ToStatus(cuda::RopeAndCache(args, stream_), "RopeAndCache");
}

absl::Status CudaOps::GatedGemm(const GatedGemmArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  RETURN_IF_ERROR(RequirePacked(*args.product.weights, WeightFormat::kCuda, "weights"));
  // What sm_90a has for prompts ends in no other operator.
  if (!GatedGemmServes(args) || FormOf(args.product) == GemmForm::kManyRowsSm90) {
    return ModelOps::GatedGemm(args);
  }
  return ToStatus(cuda::GatedGemm(args, stream_), "GatedGemm");
}

absl::Status CudaOps::GemmAndNorm(const GemmAndNormArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  RETURN_IF_ERROR(RequirePacked(*args.product.weights, WeightFormat::kCuda, "weights"));
  // Where segments are folded before the norm, that takes no launch more.
  if (!GemmAndNormServes(args) || FormOf(args.product) != GemmForm::kMma) {
    return ModelOps::GemmAndNorm(args);
  }
  return ToStatus(cuda::GemmAndNorm(args, Scratch(), stream_), "GemmAndNorm");
}

}  // namespace baton::cuda
