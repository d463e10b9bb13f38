#include "kernels/cuda/moe.h"

#include "kernels/cuda/math.h"

namespace baton::cuda {
namespace moe {

// --- MoeRouting: a warp for each token.

struct Token {
  float keys[kMaxExperts];    // What experts are compared by.
  float scores[kMaxExperts];
  float ranks[kMaxExperts];   // Of groups.
  int32_t ids[kMaxExperts];   // Chosen.
  bool is_open[kMaxExperts];  // Whether a group's experts may be chosen.
};

constexpr int kWarp = 32;
static_assert(kMaxExperts <= kWarp * 32, "a lane has a bit for each of its items");

// Whether a ranks above b.
BATON_DEVICE bool Above(float a, float b) { return a > b || (a == a && b != b); }

BATON_DEVICE bool IsBefore(const float* keys, int a, int b) {
  return Above(keys[a], keys[b]) || (!Above(keys[b], keys[a]) && a < b);
}

// The best of `n` items that are left, in every lane. Item i is lane i % 32's, whose bit i / 32 of
// `taken` says that it is not left.
BATON_DEVICE int BestOf(const float* keys, int n, uint32_t taken) {
  int best = -1;
  for (int i = threadIdx.x; i < n; i += kWarp) {
    if ((taken >> i / kWarp & 1) != 0) continue;
    if (best < 0 || IsBefore(keys, i, best)) best = i;
  }
  BATON_UNROLL
  for (int by = kWarp / 2; by > 0; by /= 2) {
    const int other = __shfl_xor_sync(~0u, best, by);
    if (other >= 0 && (best < 0 || IsBefore(keys, other, best))) best = other;
  }
  return best;
}

BATON_DEVICE uint32_t BitOf(int item) {
  return item % kWarp == static_cast<int>(threadIdx.x) ? 1u << item / kWarp : 0;
}

// Lanes 16 and up do what those 16 below them do: the CPU's vectors have 16 lanes, and the order of
// its sums is that of this one.
BATON_DEVICE void Softmax(Token& token, int n) {
  float greatest = -INFINITY;
  for (int e = threadIdx.x; e < n; e += kWarp) {
    greatest = token.keys[e] > greatest ? token.keys[e] : greatest;
  }
  BATON_UNROLL
  for (int by = kWarp / 2; by > 0; by /= 2) {
    const float other = __shfl_xor_sync(~0u, greatest, by);
    greatest = other > greatest ? other : greatest;
  }
  for (int e = threadIdx.x; e < n; e += kWarp) token.scores[e] = Exp(token.keys[e] - greatest);
  __syncwarp();
  float sum = 0;
  for (int e = threadIdx.x % 16; e < n; e += 16) sum += token.scores[e];
  BATON_UNROLL
  for (int by = 8; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  __syncwarp();
  for (int e = threadIdx.x; e < n; e += kWarp) token.scores[e] = token.scores[e] / sum;
}

// The sum of a group's two greatest keys with a bias, else the greatest.
BATON_DEVICE float RankOf(const float* keys, int begin, int end, bool has_bias) {
  int first = -1, second = -1;
  for (int e = begin; e < end; ++e) {
    if (first < 0 || Above(keys[e], keys[first])) {
      second = first;
      first = e;
    } else if (second < 0 || Above(keys[e], keys[second])) {
      second = e;
    }
  }
  return keys[first] + (has_bias && second >= 0 ? keys[second] : 0.0f);
}

// A bit for each of the lane's experts that are not in one of the best groups.
BATON_DEVICE uint32_t OutsideBestGroups(const MoeRoutingArgs& args, Token& token) {
  const int n = static_cast<int>(args.num_experts), groups = static_cast<int>(args.num_groups);
  const int size = n / groups;
  const bool has_bias = args.selection_bias != nullptr;
  for (int g = threadIdx.x; g < groups; g += kWarp) {
    token.ranks[g] = RankOf(token.keys, g * size, (g + 1) * size, has_bias);
  }
  __syncwarp();
  uint32_t best = 0;
  for (int i = 0; i < args.top_groups; ++i) best |= BitOf(BestOf(token.ranks, groups, best));
  for (int g = threadIdx.x; g < groups; g += kWarp) token.is_open[g] = best >> g / kWarp & 1;
  __syncwarp();
  uint32_t outside = 0;
  for (int e = threadIdx.x; e < n; e += kWarp) {
    if (!token.is_open[e / size]) outside |= BitOf(e);
  }
  return outside;
}

__global__ void __launch_bounds__(kWarp) MoeRoutingKernel(MoeRoutingArgs args) {
  auto& token = SharedMemory<Token>();
  const int n = static_cast<int>(args.num_experts), top_k = static_cast<int>(args.top_k);
  const float* logits = args.logits + blockIdx.x * args.logits_stride;
  for (int e = threadIdx.x; e < n; e += kWarp) token.keys[e] = logits[e];
  if (args.scoring == MoeScoring::kSoftmax) {
    Softmax(token, n);
  } else {
    for (int e = threadIdx.x; e < n; e += kWarp) {
      token.scores[e] = 1.0f / (1.0f + Exp(0.0f - token.keys[e]));
    }
  }
  if (args.selection_bias != nullptr) {
    for (int e = threadIdx.x; e < n; e += kWarp) {
      token.keys[e] = token.scores[e] + args.selection_bias[e];
    }
  }
  __syncwarp();
  uint32_t taken = args.num_groups == args.top_groups ? 0 : OutsideBestGroups(args, token);
  float sum = 0;
  for (int c = 0; c < top_k; ++c) {
    const int best = BestOf(token.keys, n, taken);
    taken |= BitOf(best);
    sum += token.scores[best];
    if (threadIdx.x == 0) token.ids[c] = best;
  }
  __syncwarp();
  const float divisor = args.renormalize ? sum + 1e-20f : 1.0f;
  for (int c = threadIdx.x; c < top_k; c += kWarp) {
    const int64_t at = blockIdx.x * args.top_k + c;
    args.expert_ids[at] = token.ids[c];
    args.weights[at] = token.scores[token.ids[c]] / divisor * args.scaling_factor;
  }
}

// --- MoeAlign: a block for each local expert, and one for the rows of none.

constexpr int kAlignThreads = 256;

struct Counts {
  int before[kAlignThreads / 32];
  int own[kAlignThreads / 32];
};

// -1: not on this rank, or padding.
BATON_DEVICE int LocalExpert(const MoeAlignArgs& args, int64_t row) {
  const int id = args.expert_ids[row];
  return id < 0 || args.expert_map == nullptr ? id : args.expert_map[id];
}

// Each thread has neighbouring rows; how many of them are this block's, and how many an earlier
// block's, gives it the place of the first.
__global__ void __launch_bounds__(kAlignThreads) MoeAlignKernel(MoeAlignArgs args) {
  auto& counts = SharedMemory<Counts>();
  const int block = static_cast<int>(blockIdx.x), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool is_rest = block == args.num_local_experts;
  const int64_t num_rows = args.num_tokens * args.top_k;
  const int64_t each = (num_rows + kAlignThreads - 1) / kAlignThreads;
  const int64_t begin = min(threadIdx.x * each, num_rows), end = min(begin + each, num_rows);
  int before = 0, own = 0;
  for (int64_t row = begin; row < end; ++row) {
    const int e = LocalExpert(args, row);
    before += e >= 0 && e < block;
    own += is_rest ? e < 0 : e == block;
  }
  int until = own;  // The end of this thread's among the warp's.
  BATON_UNROLL
  for (int by = 1; by < 32; by *= 2) {
    before += __shfl_xor_sync(~0u, before, by);
    const int others = __shfl_up_sync(~0u, until, by);
    if (lane >= by) until += others;
  }
  if (lane == 31) {
    counts.before[warp] = before;
    counts.own[warp] = until;
  }
  __syncthreads();
  int offset = 0;
  int64_t at = until - own;
  BATON_UNROLL
  for (int w = 0; w < kAlignThreads / 32; ++w) {
    offset += counts.before[w];
    if (w < warp) at += counts.own[w];
  }
  at += offset;
  if (threadIdx.x == 0) args.expert_offsets[block] = offset;
  for (int64_t row = begin; row < end; ++row) {
    const int e = LocalExpert(args, row);
    if (is_rest ? e >= 0 : e != block) continue;
    args.row_positions[row] = is_rest ? -1 : static_cast<int32_t>(at);
    args.row_order[at++] = is_rest ? -1 : static_cast<int32_t>(row);
  }
}

// --- MoeCombine: a block for each token and so many columns.

constexpr int kCombineThreads = 128;

// A token's choices in the order in which they add, those without a row last.
struct Choices {
  int32_t rows[kMaxExperts];
  float weights[kMaxExperts];
};

// sum += weight * four of a row.
template <typename Y>
BATON_DEVICE void AddWeighted(float weight, const Y* row, int64_t left, bool vectors,
                              float (&sum)[4]) {
  float y[4];
  LoadFour(row, left, vectors, y);
  BATON_UNROLL
  for (int j = 0; j < 4; ++j) sum[j] = fmaf(weight, y[j], sum[j]);
}

template <typename Y, typename Out>
__global__ void __launch_bounds__(kCombineThreads)
    MoeCombineKernel(MoeCombineArgs args, bool vectors) {
  auto& choices = SharedMemory<Choices>();
  const int top_k = static_cast<int>(args.top_k);
  const int64_t token = blockIdx.x;
  const int32_t* ids = args.expert_ids + token * top_k;
  const int32_t* rows = args.row_positions + token * top_k;
  for (int c = threadIdx.x; c < top_k; c += kCombineThreads) {
    const bool is_here = rows[c] >= 0;
    int place = 0;
    for (int other = 0; other < top_k; ++other) {
      const bool is_first = ids[other] < ids[c] || (ids[other] == ids[c] && other < c);
      const bool other_is_here = rows[other] >= 0;
      place += is_here == other_is_here ? (is_here ? is_first : other < c) : other_is_here;
    }
    choices.rows[place] = rows[c];
    choices.weights[place] = args.weights[token * top_k + c];
  }
  __syncthreads();
  const int64_t i = (int64_t{blockIdx.y} * kCombineThreads + threadIdx.x) * 4;
  const int64_t left = args.dim - i;
  if (left <= 0) return;
  float sums[kMaxRanks][4] = {};
  for (int c = 0; c < top_k && choices.rows[c] >= 0; ++c) {
    const Y* row = static_cast<const Y*>(args.y.data) + choices.rows[c] * args.y_stride + i;
    BATON_UNROLL
    for (int s = 0; s < kMaxRanks; ++s) {
      if (s >= args.segments) continue;
      AddWeighted(choices.weights[c], row + s * args.segment_stride, left, vectors, sums[s]);
    }
  }
  float (&sum)[4] = sums[0];
  BATON_UNROLL
  for (int step = 1; step < kMaxRanks; step *= 2) {
    BATON_UNROLL
    for (int s = 0; s < kMaxRanks; s += 2 * step) {
      BATON_UNROLL
      for (int j = 0; j < 4; ++j) {
        if (step < args.segments) sums[s][j] += sums[s + step][j];
      }
    }
  }
  if (args.shared.data != nullptr) {
    float shared[4];
    LoadFour(static_cast<const Out*>(args.shared.data) + token * args.dim + i, left,
             vectors, shared);
    BATON_UNROLL
    for (int j = 0; j < 4; ++j) sum[j] += shared[j];
  }
  StoreFour(static_cast<Out*>(args.out.data) + token * args.out_stride + i, left, vectors, sum);
}

}  // namespace moe

cudaError_t MoeRouting(const MoeRoutingArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0) return cudaSuccess;
  return Launch(moe::MoeRoutingKernel, BlocksFor(args.num_tokens, 1), moe::kWarp,
                sizeof(moe::Token), stream, args);
}

cudaError_t MoeAlign(const MoeAlignArgs& args, cudaStream_t stream) {
  return Launch(moe::MoeAlignKernel, static_cast<unsigned>(args.num_local_experts + 1),
                moe::kAlignThreads, sizeof(moe::Counts), stream, args);
}

cudaError_t MoeCombine(const MoeCombineArgs& args, cudaStream_t stream) {
  const bool rounds = args.round_to == DType::kF32 || args.out.dtype == args.round_to;
  const bool adds = args.shared.data == nullptr || args.shared.dtype == args.out.dtype;
  if (!rounds || !adds) return cudaErrorInvalidValue;
  if (args.num_tokens == 0) return cudaSuccess;
  const bool vectors =
      HasVectors(args.y.data, args.y.dtype, args.dim, args.y_stride) &&
      (args.segments == 1 || args.segment_stride % 4 == 0) &&
      HasVectors(args.shared.data, args.out.dtype, args.dim, args.dim) &&
      HasVectors(args.out.data, args.out.dtype, args.dim, args.out_stride);
  const dim3 grid(BlocksFor(args.num_tokens, 1),
                  BlocksFor(args.dim, 4 * moe::kCombineThreads));
  return WithFloatTypes(args.y.dtype, args.out.dtype, [&](auto y, auto out) {
    return Launch(moe::MoeCombineKernel<decltype(y), decltype(out)>, grid, moe::kCombineThreads,
                  sizeof(moe::Choices), stream, args, vectors);
  });
}

}  // namespace baton::cuda
