#include "kernels/cuda/cuda_library.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
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

// What a CPU asks of each sequence's length, where all have one that the host knows.
absl::Status CheckLength(const AttentionWithKvCacheArgs& args) {
  const int64_t blocks = args.block_table == nullptr ? 1 : args.max_blocks;
  const int64_t capacity = std::min<int64_t>(blocks * args.k_cache.block_size, INT32_MAX);
  RETURN_IF_ERROR(Require(args.num_new <= capacity, "num_new", args.num_new,
                          absl::StrCat("at most the capacity of ", capacity, " of a sequence")));
  if (args.cache_seqlens != nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(RequireIn(args.cache_seqlen, 0, capacity - args.num_new, "cache_seqlen"));
  if (args.rotary_cos == nullptr) return absl::OkStatus();
  const ScoreOptions& scores = args.scores;
  const bool advances = scores.causal || scores.window_left >= 0 || scores.window_right >= 0;
  const int64_t tokens = std::max<int64_t>(args.num_new, advances ? args.num_queries : 1);
  return RequireAtLeast(args.num_rotary_positions, args.cache_seqlen + tokens,
                        "num_rotary_positions");
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
  if (call.max_seq_len > 0) RETURN_IF_ERROR(RequirePointer(call.block_tables, "block_tables"));
  // The sizes choose passes, not the kernel: who gives partials stays with the one that has them.
  const bool is_fast = FastAttentionServes(call);
  PagedAttentionArgs args = call;
  if (args.split == AttentionSplit::kReference) {
    args.split = ReferenceSplit(args.max_seq_len, args.num_seqs, args.num_heads);
    if (args.split == AttentionSplit::kSinglePass) args.partials = {};
  }
  if (is_fast) {
    RETURN_IF_ERROR(CheckAligned(args.q, args.q_stride));
    const AttentionRoom room = RoomIn(scratch_, counters_, shared_bytes_, ScratchBytes(args));
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
  if (args.max_blocks > 0) RETURN_IF_ERROR(RequirePointer(args.block_table, "block_table"));
  RETURN_IF_ERROR(CheckRows(args.num_tokens, args.num_heads, 1, "num_tokens"));
  return ToStatus(cuda::PrefixAttention(args, stream_), "PrefixAttention");
}

absl::Status CudaLibrary::AttentionWithKvCache(const AttentionWithKvCacheArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  if (args.num_seqs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckLength(args));
  RETURN_IF_ERROR(CheckRows(args.num_seqs * args.num_queries, args.num_heads, 1, "num_queries"));
  return ToStatus(cuda::AttentionWithKvCache(args, stream_), "AttentionWithKvCache");
}

absl::Status CudaLibrary::MergeAttentionStates(const MergeAttentionStatesArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  return ToStatus(cuda::MergeAttentionStates(args, stream_), "MergeAttentionStates");
}

absl::Status CudaLibrary::CascadeLens(const CascadeLensArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  if (args.attention.num_seqs == 0) return absl::OkStatus();
  // As VarlenAttention asks of the two calls to come.
  RETURN_IF_ERROR(RequireAtLeast(args.attention.max_seqlen_q, 1, "max_seqlen_q"));
  RETURN_IF_ERROR(RequireAtLeast(args.attention.max_seqlen_k, 1, "max_seqlen_k"));
  return ToStatus(cuda::CascadeLens(args, stream_), "CascadeLens");
}

}  // namespace baton::cuda
