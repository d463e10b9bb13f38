#include "kernels/cuda/attention.h"

#include <algorithm>

#include "kernels/cuda/attention_decode_sm90.h"
#include "kernels/cuda/attention_problem.h"
#include "kernels/cuda/attention_sm90.h"
#include "kernels/cuda/attention_warp.h"
#include "kernels/cuda/fp8_pairs.h"
#include "kernels/cuda/sm90_forms.h"

namespace baton::cuda {
namespace attention {

template <int kWarps>
BATON_DEVICE BlockWork WorkOf(const Problem& args, bool is_split) {
  constexpr int kRows = kRowsOf<kWarps>;
  const int num_kv_heads = args.k_cache.num_heads, group = args.num_heads / num_kv_heads;
  const int64_t tiles = (int64_t{args.max_query_len} * group + kRows - 1) / kRows;
  BlockWork work = WorkOfRows(args, blockIdx.x / tiles / num_kv_heads,
                              static_cast<int>(blockIdx.x / tiles % num_kv_heads),
                              static_cast<int>(blockIdx.x % tiles) * kRows, kRows);
  if (is_split) {
    const int first_key = static_cast<int>(blockIdx.y) * kPartialKeys;
    work.keys.begin = max(work.keys.begin, first_key);
    work.keys.end = min(work.keys.end, first_key + kPartialKeys);
  }
  return work;
}

// A lane's chunks of eight elements of K or V of keys [first, first + 64). Each warp has some rows,
// of which each lane finds one or two: that takes longer than what follows for a chunk.
template <int kDim, int kWarps>
class Chunks {
 public:
  static constexpr int kCount = kStepKeys * kDim / 8 / kThreadsOf<kWarps>;

  struct Source {
    bool live;
    int64_t at;
  };

  BATON_DEVICE Chunks(const CachePlane& cache, const BlockWork& work, const int32_t* table,
                      int first)
      : dim_(cache.dim), first_row_(static_cast<int>(threadIdx.x) / 32 * kRows) {
    BATON_UNROLL
    for (int i = 0; i < kPlaces; ++i) {
      const int key = first + first_row_ + 32 * i + static_cast<int>(threadIdx.x) % 32;
      places_[i] = -1;
      if (key < work.keys.begin || key >= work.keys.end) continue;
      places_[i] = table[key / cache.block_size] * cache.block_stride +
                   work.kv_head * HeadStride(cache) + key % cache.block_size * TokenStride(cache);
    }
  }

  BATON_DEVICE int RowOf(int i) const { return first_row_ + IndexOf(i) / (kDim / 8); }
  BATON_DEVICE int ColumnOf(int i) const { return IndexOf(i) % (kDim / 8) * 8; }
  // By whole warps; not live where zeros belong: no query looks there, or the head has ended.
  BATON_DEVICE Source SourceOf(int i) const {
    const int row = IndexOf(i) / (kDim / 8);
    int64_t place = __shfl_sync(~0u, places_[0], row % 32);
    if constexpr (kPlaces > 1) {
      const int64_t other = __shfl_sync(~0u, places_[1], row % 32);
      if (row >= 32) place = other;
    }
    return {place >= 0 && ColumnOf(i) < dim_, place + ColumnOf(i)};
  }

 private:
  static constexpr int kRows = kStepKeys / kWarps, kPlaces = kRows > 32 ? 2 : 1;

  static BATON_DEVICE int IndexOf(int i) { return static_cast<int>(threadIdx.x) % 32 + 32 * i; }

  const int dim_;
  const int first_row_;
  int64_t places_[kPlaces];  // Of the lane's rows.
};

// How many of so many loads are under way at once.
template <int kLoads>
constexpr int kLoadsAtOnce = kLoads <= 8 ? kLoads : 4;

template <typename Code, int kDim, typename T, typename Chunks>
BATON_DEVICE void LoadCodes(T (*tile)[kRowElements<kDim>], const CachePlane& cache,
                            const Chunks& chunks) {
  constexpr int kSome = kLoadsAtOnce<Chunks::kCount>;
  static_assert(Chunks::kCount % kSome == 0);
  const auto load = [&](int i) {
    const auto source = chunks.SourceOf(i);
    return source.live ? *reinterpret_cast<const uint2*>(cache.data + source.at) : uint2{};
  };
  const auto store = [&](int i, uint2 low, uint2 high) {
    *reinterpret_cast<uint4*>(&tile[chunks.RowOf(i)][chunks.ColumnOf(i)]) =
        make_uint4(low.x, low.y, high.x, high.y);
  };
  uint32_t not_finite = 0;
  BATON_ROLLED
  for (int begin = 0; begin < Chunks::kCount; begin += kSome) {
    uint2 codes[kSome];
    BATON_UNROLL
    for (int i = 0; i < kSome; ++i) codes[i] = load(begin + i);
    BATON_UNROLL
    for (int i = 0; i < kSome; ++i) {
      not_finite |= NotFinite<Code, T>(codes[i].x) | NotFinite<Code, T>(codes[i].y);
      store(begin + i, WidenFour<Code, T>(codes[i].x), WidenFour<Code, T>(codes[i].y));
    }
  }
  if (!__any_sync(~0u, not_finite != 0)) return;
  BATON_ROLLED
  for (int i = 0; i < Chunks::kCount; ++i) {
    const uint2 codes = load(i);
    store(i, WidenAnyFour<Code, T>(codes.x), WidenAnyFour<Code, T>(codes.y));
  }
}

// K or V of keys [first, first + 64).
template <int kDim, int kWarps, typename T>
BATON_DEVICE void LoadKeys(T (*tile)[kRowElements<kDim>], const Problem& args,
                           const CachePlane& cache, const BlockWork& work, int first) {
  const Chunks<kDim, kWarps> chunks(cache, work, TableOf(args, work.s), first);
  if (cache.dtype == DType::kFp8E4M3) {
    LoadCodes<Fp8E4M3, kDim>(tile, cache, chunks);
  } else if (cache.dtype == DType::kFp8E5M2) {
    LoadCodes<Fp8E5M2, kDim>(tile, cache, chunks);
  } else {
    constexpr int kSome = kLoadsAtOnce<Chunks<kDim, kWarps>::kCount>;
    BATON_ROLLED
    for (int begin = 0; begin < chunks.kCount; begin += kSome) {
      BATON_UNROLL
      for (int i = begin; i < begin + kSome; ++i) {
        const auto [live, at] = chunks.SourceOf(i);
        CopyAsync(&tile[chunks.RowOf(i)][chunks.ColumnOf(i)],
                  reinterpret_cast<const T*>(cache.data) + (live ? at : 0), live);
      }
    }
  }
}

// Ends a partial: folds it into the totals and starts anew.
template <int kDim, typename T, int kWarps>
BATON_DEVICE void FoldIntoTotals(Tiles<kDim, T, kWarps>& shared, Row (&rows)[2],
                                 float (&sums)[kDim / 8][4], Totals<kDim>& totals) {
  SoftmaxState ended[2];
  EndPartial(rows, ended);
  FoldPartial<kDim>(ended, sums, totals.state, [&](int h, int d, int c) -> float& {
    return kTotalsInShared<kDim> ? shared.totals[h * kDim / 4 + 2 * d + c][threadIdx.x]
                                 : totals.sums[kTotalsInShared<kDim> ? 0 : d][2 * h + c];
  });
}

// Writes what a block found: results, or the only partial it looked at.
template <int kDim, typename T, int kWarps>
BATON_DEVICE void StoreRows(const Problem& args, const Scratch& scratch, bool is_split,
                            const BlockWork& work, Tiles<kDim, T, kWarps>& shared, int warp,
                            int lane, const Totals<kDim>& totals) {
  constexpr int kStride = kTotalsStride<kDim, kWarps>;
  BATON_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int row = warp * 16 + lane / 4 + 8 * h;
    if (row >= work.num_rows) continue;
    const float* const sums = RowTotals(shared, totals, h, warp, lane);
    const int64_t token = work.sequence.first_token + (work.first_row + row) / work.group;
    const int head = work.kv_head * work.group + (work.first_row + row) % work.group;
    const int dim = args.v_cache.dim;
    if (is_split) {
      const int64_t scratch_row = token * args.num_heads + head;
      if (lane % 4 == 0) {
        float* state = scratch.StateOf(scratch_row, blockIdx.y);
        state[0] = totals.state[h].max;
        state[1] = totals.state[h].sum;
      }
      StoreRow(scratch.SumsOf(scratch_row, blockIdx.y), sums, kStride, 1.0f, lane, dim);
      continue;
    }
    const float factor =
        EndRow(args, totals.state[h], token, head, work.kv_head, lane % 4 == 0);
    const int64_t at = FirstResult(args, token, head);
    if (args.out.dtype == DType::kF32) {
      StoreRow(static_cast<float*>(args.out.data) + at, sums, kStride, factor, lane, dim);
    } else {
      StoreRow(static_cast<T*>(args.out.data) + at, sums, kStride, factor, lane, dim);
    }
  }
}

template <int kDim, typename T, int kWarps>
__global__ void __launch_bounds__(kThreadsOf<kWarps>, 1)
    AttentionKernel(Problem args, Scratch scratch, bool is_split, float scale) {
  auto& shared = SharedMemory<Tiles<kDim, T, kWarps>>();
  const BlockWork work = WorkOf<kWarps>(args, is_split);
  if (work.num_rows == 0) return;
  // A partial of keys that nobody sees, as most are where the grid is that of the longest sequence.
  if (is_split && work.keys.begin >= work.keys.end) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool has_rows = warp * 16 < work.num_rows;
  scale *= ScaleOf(args.k_cache, work.kv_head);
  Row rows[2] = {RowOf(args, work, warp * 16 + lane / 4),
                 RowOf(args, work, warp * 16 + lane / 4 + 8)};
  Totals<kDim> totals = {{{MinusInfinity(), 0.0f}, {MinusInfinity(), 0.0f}}, {}};
  if constexpr (kTotalsInShared<kDim>) {
    BATON_UNROLL
    for (int i = 0; i < kDim / 2; ++i) shared.totals[i][threadIdx.x] = 0.0f;
  }
  float sums[kDim / 8][4] = {};

  const int first_step = work.keys.begin / kStepKeys * kStepKeys;
  if (work.keys.begin < work.keys.end) {
    LoadQueries<kDim, kWarps>(shared.q, args, work);
    LoadKeys<kDim, kWarps>(shared.k, args, args.k_cache, work, first_step);
    CommitCopies();
  }
  for (int key = first_step; key < work.keys.end; key += kStepKeys) {
    WaitCopies<0>();
    __syncthreads();  // K is there; nobody reads V any more.
    LoadKeys<kDim, kWarps>(shared.v, args, args.v_cache, work, key);
    CommitCopies();
    uint32_t probabilities[kStepKeys / 8][2];
    if (has_rows) {
      float scores[kStepKeys / 8][4] = {};
      MultiplyKeys<kDim>(
          shared.q + 16 * warp,
          [&](int row, int column) { return &shared.k[row][column]; }, lane, scores);
      float factors[2];
      Softmax<T>(args, scale, key, lane, rows, scores, factors);
      Pack<T>(scores, probabilities);
      ScaleSums<kDim>(factors, sums);
    }
    WaitCopies<0>();
    __syncthreads();  // V is there; nobody reads K any more.
    const int next = key + kStepKeys;
    if (next < work.keys.end) {
      LoadKeys<kDim, kWarps>(shared.k, args, args.k_cache, work, next);
      CommitCopies();
    }
    if (!has_rows) continue;
    MultiplyValues<kDim, T>(
        [&](int row, int column) { return &shared.v[row][column]; }, lane, probabilities, sums);
    if (next % kPartialKeys == 0 || next >= work.keys.end) {
      FoldIntoTotals(shared, rows, sums, totals);
    }
  }
  if (has_rows) StoreRows(args, scratch, is_split, work, shared, warp, lane, totals);
}

constexpr int kFoldThreads = 128;

// Folds the partials of one row, in the same order.
template <typename T>
__global__ void __launch_bounds__(kFoldThreads) FoldKernel(Problem args, Scratch scratch) {
  const int64_t s = blockIdx.x / args.max_query_len;
  const int query = static_cast<int>(blockIdx.x % args.max_query_len);
  const int head = blockIdx.y, kv_head = head / (args.num_heads / args.k_cache.num_heads);
  const Sequence sequence = SequenceOf(args, s);
  if (query >= sequence.num_queries) return;
  const int64_t token = sequence.first_token + query, row = token * args.num_heads + head;
  const KeyRange keys =
      VisibleKeys(args.scores, sequence.PositionOf(query), sequence.seq_len);
  const int first = keys.begin / kPartialKeys;
  const int last = keys.begin < keys.end ? (keys.end - 1) / kPartialKeys : first - 1;
  // Every thread folds the states, and its own columns.
  for (int column = threadIdx.x; column < args.v_cache.dim; column += kFoldThreads) {
    float sum[1] = {0.0f};
    const SoftmaxState total = FoldStates(scratch, row, first, last, column, sum);
    const float factor = EndRow(args, total, token, head, kv_head, column == 0);
    StoreResult<T>(args, token, head, column, sum[0] * factor);
  }
}

}  // namespace attention

namespace {

using attention::NumPartials;
using attention::Problem;
using attention::ProblemOf;
using attention::Scratch;

template <int kDim, typename T, int kWarps>
cudaError_t LaunchAttention(const Problem& args, cudaStream_t stream) {
  const int64_t dim = args.k_cache.dim, group = args.num_heads / args.k_cache.num_heads;
  constexpr int kRows = attention::kRowsOf<kWarps>;
  const int64_t tiles = (args.max_query_len * group + kRows - 1) / kRows;
  // One tile of rows leaves most of a device idle.
  const bool is_split = args.scratch != nullptr && tiles == 1 && NumPartials(args) > 1 &&
                        NumPartials(args) <= attention::kMaxPartials;
  const Scratch scratch{NumPartials(args), static_cast<int>(dim), args.scratch};
  const dim3 grid(BlocksFor(tiles * args.k_cache.num_heads * args.num_seqs, 1),
                  is_split ? static_cast<unsigned>(NumPartials(args)) : 1);
  const cudaError_t error =
      Launch(attention::AttentionKernel<kDim, T, kWarps>, grid, attention::kThreadsOf<kWarps>,
             sizeof(attention::Tiles<kDim, T, kWarps>), stream, args, scratch, is_split,
             attention::ScaleOfScores(args));
  if (error != cudaSuccess || !is_split) return error;
  return Launch(attention::FoldKernel<T>,
                dim3(BlocksFor(args.num_seqs * args.max_query_len, 1),
                     static_cast<unsigned>(args.num_heads)),
                attention::kFoldThreads, 0, stream, args, scratch);
}

// In blocks of as many warps as there is shared memory for.
template <int kDim, typename T>
cudaError_t ChooseWarps(const Problem& args, const AttentionRoom& room, cudaStream_t stream) {
  constexpr int kFewWarps = attention::kFewWarps<kDim>;
  static_assert(sizeof(attention::Tiles<kDim, T, kFewWarps>) <= kLeastSharedBytes);
  if constexpr (kFewWarps != attention::kMostWarps) {
    if (room.shared_bytes < sizeof(attention::Tiles<kDim, T, attention::kMostWarps>)) {
      return LaunchAttention<kDim, T, kFewWarps>(args, stream);
    }
  }
  return LaunchAttention<kDim, T, attention::kMostWarps>(args, stream);
}

// A head runs in the next larger kernel, its last columns being zeros. None is of 120: a product
// takes 16 columns of k, so its scores would be as many as of 128, with a sixteenth less of values.
template <typename T>
cudaError_t ChooseDim(const Problem& args, const AttentionRoom& room, cudaStream_t stream) {
  const int dim = args.k_cache.dim;
  if (dim <= 32) return ChooseWarps<32, T>(args, room, stream);
  if (dim <= 64) return ChooseWarps<64, T>(args, room, stream);
  if (dim <= 80) return ChooseWarps<80, T>(args, room, stream);
  if (dim <= 96) return ChooseWarps<96, T>(args, room, stream);
  if (dim <= 112) return ChooseWarps<112, T>(args, room, stream);
  if (dim <= 128) return ChooseWarps<128, T>(args, room, stream);
  if (dim <= 192) return ChooseWarps<192, T>(args, room, stream);
  return ChooseWarps<256, T>(args, room, stream);
}

cudaError_t Attention(const Problem& args, const AttentionRoom& room, cudaStream_t stream) {
  if (args.num_seqs == 0) return cudaSuccess;
  if (!IsAllowed(args)) return cudaErrorInvalidValue;
  if (IsDecodeOfSm90(args, room)) return DecodeAttentionSm90(args, room, stream);
  if (args.q.dtype == DType::kBF16) return ChooseDim<Bf16>(args, room, stream);
  return ChooseDim<F16>(args, room, stream);
}

}  // namespace

bool FastAttentionServes(const VarlenAttentionArgs& args) {
  return args.out.dtype == args.round_to && args.dense.cu_seqlens_k == nullptr &&
         !args.scales.any() && attention::IsServed(ProblemOf(args));
}

bool FastAttentionServes(const PagedAttentionArgs& args) {
  return args.out.dtype == args.round_to && args.sparsity.vert_stride <= 1 && !args.scales.any() &&
         !args.partials.given() && attention::IsServed(ProblemOf(args));
}

int64_t ScratchBytes(const VarlenAttentionArgs& args) {
  return attention::ScratchBytesOf(ProblemOf(args));
}
int64_t ScratchBytes(const PagedAttentionArgs& args) {
  return attention::ScratchBytesOf(ProblemOf(args));
}

int64_t LongestSplit(int64_t num_tokens, int64_t num_heads, int64_t dim, int64_t scratch_bytes) {
  const int64_t partial = attention::PartialBytesOf(num_tokens, num_heads, dim);
  return std::max<int64_t>(scratch_bytes / partial, 1) * attention::kPartialKeys;
}

cudaError_t MmaVarlenAttention(const VarlenAttentionArgs& args, const AttentionRoom& room,
                               cudaStream_t stream) {
  if (args.num_seqs > 0 && !FastAttentionServes(args)) return cudaErrorInvalidValue;
  const bool is_told = args.num_tokens > 0 && args.max_seqlen_q > 0 && args.max_seqlen_k > 0;
  if (args.num_seqs > 0 && (!is_told || args.cu_seqlens_q == nullptr)) return cudaErrorInvalidValue;
  Problem problem = ProblemOf(args);
  problem.scratch = room.scratch;
  return Attention(problem, room, stream);
}

cudaError_t VarlenAttention(const VarlenAttentionArgs& args, const AttentionRoom& room,
                            cudaStream_t stream) {
  return AttentionSm90Pays(args) && TakesSm90Forms() ? AttentionSm90(args, stream)
                                             : MmaVarlenAttention(args, room, stream);
}

cudaError_t PagedAttention(const PagedAttentionArgs& args, const AttentionRoom& room,
                           cudaStream_t stream) {
  if (args.num_seqs > 0 && !FastAttentionServes(args)) return cudaErrorInvalidValue;
  Problem problem = ProblemOf(args);
  if (args.split != AttentionSplit::kSinglePass) problem.scratch = room.scratch;
  return Attention(problem, room, stream);
}

}  // namespace baton::cuda
