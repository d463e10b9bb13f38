#include "kernels/cuda/generic_attention.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/strided_rows.h"

namespace baton::cuda {
namespace merge_states {

constexpr int kThreads = 128;
constexpr int kRows = kThreads / 32;  // A warp for each.

// An infinite LSE is that of no key.
BATON_DEVICE float LseOf(float lse) {
  const float infinity = FromBits(0x7f800000u);
  return lse == infinity ? -infinity : lse;
}

__global__ void __launch_bounds__(kThreads) MergeKernel(MergeAttentionStatesArgs args) {
  const int64_t row = int64_t{blockIdx.x} * kRows + threadIdx.x / 32;
  if (row >= args.num_tokens * args.num_heads) return;  // A whole warp.
  const int lane = threadIdx.x % 32;
  const int64_t token = row / args.num_heads, head = row % args.num_heads;
  const int64_t at = head * args.num_tokens + token;
  const float none = FromBits(0xff800000u);
  const float a = LseOf(args.lse_a[at]), b = LseOf(args.lse_b[at]);
  const float top = a > b || a != a ? a : b;  // What is no number stays none.
  float lse = none, share_a = 0.0f, share_b = 0.0f;
  if (top != none) {
    share_a = Exp(a - top);
    share_b = Exp(b - top);
    const float total = share_a + share_b;
    lse = top + Log(total);
    share_a /= total;
    share_b /= total;
  }
  const int64_t to = token * args.out_stride + head * args.dim;
  for (int d = lane; d < args.dim; d += 32) {
    // An empty side may hold anything.
    const float from_a = a == none ? 0.0f : LoadFloat(args.out_a, row * args.dim + d) * share_a;
    const float from_b = b == none ? 0.0f : LoadFloat(args.out_b, row * args.dim + d) * share_b;
    StoreFloat(args.out, to + d, RoundedTo(args.round_to, from_a + from_b));
  }
  __syncwarp();  // All lanes have read what may be overwritten.
  if (lane == 0 && args.lse != nullptr) args.lse[head * args.lse_stride + token] = lse;
}

// A thread for each sequence.
__global__ void __launch_bounds__(kThreads)
    LensKernel(const __grid_constant__ CascadeLensArgs args) {
  const int64_t s = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (s == 0) {
    args.prefix_queries[0] = 0;
    args.prefix_queries[1] = static_cast<int32_t>(args.attention.num_tokens);
    *args.prefix_len = args.common_prefix_len;
  }
  if (s >= args.attention.num_seqs) return;
  args.suffix_lens[s] = max(args.attention.seq_lens[s] - args.common_prefix_len, 0);
}

}  // namespace merge_states

cudaError_t MergeAttentionStates(const MergeAttentionStatesArgs& call, cudaStream_t stream) {
  MergeAttentionStatesArgs args = call;
  if (args.out_stride == 0) args.out_stride = int64_t{args.num_heads} * args.dim;
  if (args.lse_stride == 0) args.lse_stride = args.num_tokens;
  const int64_t rows = args.num_tokens * args.num_heads;
  if (rows == 0) return cudaSuccess;
  const int64_t blocks = (rows + merge_states::kRows - 1) / merge_states::kRows;
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  return Launch(merge_states::MergeKernel, static_cast<unsigned>(blocks), merge_states::kThreads, 0,
                stream, args);
}

cudaError_t CascadeLens(const CascadeLensArgs& args, cudaStream_t stream) {
  if (args.attention.num_seqs == 0) return cudaSuccess;
  return Launch(merge_states::LensKernel,
                BlocksFor(args.attention.num_seqs, merge_states::kThreads), merge_states::kThreads,
                0, stream, args);
}

}  // namespace baton::cuda
