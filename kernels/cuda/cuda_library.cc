#include "kernels/cuda/cuda_library.h"

#include "common/base/status.h"
#include "kernels/api/attention_split.h"
#include "kernels/api/check_shapes.h"
#include "kernels/api/require.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cache.h"
#include "kernels/cuda/check_aligned.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/generic_attention.h"

namespace baton::cuda {
namespace {

// What of the rows of outputs a CPU asks where cu_seqlens_k says that there are some.
absl::Status CheckOutputs(const UpdateKvCacheArgs& args) {
  if (args.num_seqs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.k_out.data, "k_out"));
  RETURN_IF_ERROR(RequirePointer(args.v_out.data, "v_out"));
  const int64_t heads = args.append.k_cache.num_heads;
  RETURN_IF_ERROR(
      RequireStride(args.k_out_stride, heads * args.append.k_cache.dim, "k_out_stride"));
  return RequireStride(args.v_out_stride, heads * args.append.v_cache.dim, "v_out_stride");
}

// Of a grid, a block for each.
absl::Status CheckRows(int64_t num_tokens, int64_t num_heads, int64_t num_partitions,
                       FieldName field) {
  const int64_t most = INT32_MAX / (num_heads * num_partitions);
  return Require(num_tokens <= most, field, num_tokens, "on a GPU at most ", most);
}

}  // namespace

absl::Status CudaLibrary::UpdateKvCache(const UpdateKvCacheArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  RETURN_IF_ERROR(CheckOutputs(args));
  RETURN_IF_ERROR(CheckRows(args.num_seqs, args.append.k_cache.num_heads, 1, "num_seqs"));
  return ToStatus(cuda::UpdateKvCache(args, stream_), "UpdateKvCache");
}

absl::Status CudaLibrary::CopyBlocks(const CopyBlocksArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::CopyBlocks(args, stream_), "CopyBlocks");
}

absl::Status CudaLibrary::SwapBlocks(const SwapBlocksArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::SwapBlocks(args, stream_), "SwapBlocks");
}

absl::Status CudaLibrary::GatherBlocks(const GatherBlocksArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::GatherBlocks(args, stream_), "GatherBlocks");
}

absl::Status CudaLibrary::ScatterBlocks(const ScatterBlocksArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::ScatterBlocks(args, stream_), "ScatterBlocks");
}

absl::Status CudaLibrary::AdvanceStep(const AdvanceStepArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::AdvanceStep(args, stream_), "AdvanceStep");
}

absl::Status CudaLibrary::PagedAttention(const PagedAttentionArgs& call) {
  RETURN_IF_ERROR(CheckShapes(call));
  if (call.num_seqs == 0) return absl::OkStatus();
  PagedAttentionArgs args = call;
  if (args.split == AttentionSplit::kReference) {
    args.split = ReferenceSplit(args.max_seq_len, args.num_seqs, args.num_heads);
    if (args.split == AttentionSplit::kSinglePass) args.partials = {};
  }
  if (FastAttentionServes(args)) {
    RETURN_IF_ERROR(RequirePointer(args.block_tables, "block_tables"));
    RETURN_IF_ERROR(CheckAligned(args.q, args.q_stride));
    const bool fits = ScratchBytes(args) <= scratch_.size_bytes();
    const AttentionRoom room{.scratch = fits ? reinterpret_cast<float*>(scratch_.data()) : nullptr,
                             .shared_bytes = shared_bytes_};
    return ToStatus(cuda::PagedAttention(args, room, stream_), "PagedAttention");
  }
  const int64_t partitions = args.partials.given() ? args.max_seq_len / kPartitionKeys + 1 : 1;
  RETURN_IF_ERROR(CheckRows(args.num_seqs, args.num_heads, partitions, "num_seqs"));
  return ToStatus(GenericAttention(args, stream_), "PagedAttention");
}

absl::Status CudaLibrary::PrefixAttention(const PrefixAttentionArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  if (args.num_seqs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 1, "num_tokens"));
  RETURN_IF_ERROR(CheckRows(args.num_tokens, args.num_heads, 1, "num_tokens"));
  return ToStatus(cuda::PrefixAttention(args, stream_), "PrefixAttention");
}

absl::Status CudaLibrary::AttentionWithKvCache(const AttentionWithKvCacheArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  if (args.num_seqs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckRows(args.num_seqs * args.num_queries, args.num_heads, 1, "num_queries"));
  return ToStatus(cuda::AttentionWithKvCache(args, stream_), "AttentionWithKvCache");
}

absl::Status CudaLibrary::MergeAttentionStates(const MergeAttentionStatesArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::MergeAttentionStates(args, stream_), "MergeAttentionStates");
}

}  // namespace baton::cuda
