#include <algorithm>

#include "kernels/cuda/cache.h"
#include "kernels/cuda/generic_attention.h"
#include "kernels/cuda/generic_rows.h"

namespace baton::cuda {
namespace generic_attention {

using attention::MinusInfinity;

constexpr int kPartialKeys = kPartitionKeys;
constexpr int kThreads = 64;  // A row's: most heads have no more columns for each to have one.
constexpr int kWarps = kThreads / 32;
constexpr int kColumns = kMaxAttentionDim / kThreads;
constexpr int kLanes = 16;  // In which the CPU sums probabilities.

struct Shared {
  float q[kMaxAttentionDim];
  float scores[kPartialKeys];    // Then unnormalised probabilities.
  int64_t values[kPartialKeys];  // Where V of a key begins; -1: the row does not see it.
  float warp_max[kWarps];
  bool warp_sees[kWarps];
};

// Brings the row's query in, rotated.
BATON_DEVICE void LoadQuery(const Problem& args, const Row& row, Shared& shared) {
  const int64_t first = row.token * args.base.q_stride + int64_t{row.head} * args.k_dim;
  int64_t position = 0;
  if (args.rotation.dim > 0) {
    position = CacheSeqlenOf(args.base.seq_lens, args.cache_seqlen, row.s) +
               (args.queries_advance ? row.query : 0);
  }
  for (int d = threadIdx.x; d < args.k_dim; d += kThreads) {
    shared.q[d] = RotatedElement(args.rotation, position, args.base.q, first, d);
  }
  __syncthreads();
}

// q . k in ascending order; groups of elements that lie together are `group` apart.
template <typename T>
BATON_DEVICE float Product(const float* q, const T* k, int64_t group, int32_t group_dim,
                           int32_t dim, float scale) {
  float sum = 0.0f;
  for (int32_t first = 0; first < dim; first += group_dim, k += group) {
    for (int32_t d = 0; d < group_dim; ++d) {
      float x = ToFloat(k[d]);
      if constexpr (sizeof(T) == 1) x *= scale;
      sum = fmaf(q[first + d], x, sum);
    }
  }
  return sum;
}

// Of a key that the row sees.
BATON_DEVICE float ProductOf(const Problem& args, const Shared& shared, const Row& row,
                             int32_t key) {
  const bool cached = key < row.num_cached;
  const DenseKeys& dense = args.base.dense;
  const int32_t group_dim = cached ? args.k.strides.group_dim : args.k_dim;
  const int64_t at = cached ? CachedAt(args, args.k, row, key)
                            : DenseAt(args, row, key, dense.k_stride, args.k_dim);
  const void* data = cached ? args.k.plane.data : dense.k.data;
  const float scale = cached ? StoredScaleOf(args.k.plane, row.kv_head) : 1.0f;
  return WithStoredType(cached ? args.k.plane.dtype : dense.k.dtype, [&](auto type) {
    return Product(shared.q, static_cast<const decltype(type)*>(data) + at, args.k.strides.group,
                   group_dim, args.k_dim, scale);
  });
}

// Scale, softcap, bias.
BATON_DEVICE float Transform(const ScoreOptions& options, float product, float scale, float slope,
                             int32_t distance) {
  float x = product * scale;
  if (options.softcap > 0) x = Tanh(x / options.softcap) * options.softcap;
  return slope == 0 ? x : fmaf(-slope, fabsf(static_cast<float>(distance)), x);
}

// Keys [first, last) of a partial, counted from its first.
struct Span {
  int begin;
  int end;
};

BATON_DEVICE Span SpanOf(const KeyRange& keys, int32_t first_key) {
  const int begin = max(keys.begin, first_key) - first_key;
  const int64_t end = min(int64_t{keys.end}, int64_t{first_key} + kPartialKeys) - first_key;
  return {begin, static_cast<int>(end)};
}

// Greatest score of a partial, and the sum of its probabilities relative to it. 0: no key.
struct State {
  float max;
  float sum;
};

// The scores of a partial and where its values are. All threads have its maximum, and whether the
// row sees a key.
BATON_DEVICE bool Score(const Problem& args, const Row& row, int32_t first_key, const Span& span,
                        Shared& shared, float& max) {
  const ScoreOptions& scores = args.base.scores;
  const AttentionScales& scales = args.base.scales;
  const float scale = scores.scale * (DescaleOf(args, scales.q_descale, row) *
                                      DescaleOf(args, scales.k_descale, row));
  const float slope = SlopeOf(scores, row);
  max = MinusInfinity();
  bool sees = false;
  // The same thread takes the same keys when probabilities are made of them.
  for (int i = span.begin + static_cast<int>(threadIdx.x); i < span.end; i += kThreads) {
    const int32_t key = first_key + i;
    float x = MinusInfinity();
    int64_t value = -1;
    if (row.sparse.Sees(key)) {
      sees = true;
      x = Transform(scores, ProductOf(args, shared, row, key), scale, slope, row.position - key);
      value = key < row.num_cached ? CachedAt(args, args.v, row, key)
                                   : DenseAt(args, row, key, args.base.dense.v_stride, args.v_dim);
    }
    shared.scores[i] = x;
    shared.values[i] = value;
    max = fmaxf(max, x);
  }
  const int warp = threadIdx.x / 32;
  for (int by = 16; by > 0; by /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, by));
  sees = __any_sync(~0u, sees);
  if (threadIdx.x % 32 == 0) {
    shared.warp_max[warp] = max;
    shared.warp_sees[warp] = sees;
  }
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) {
    max = fmaxf(max, shared.warp_max[w]);
    sees = sees || shared.warp_sees[w];
  }
  return sees;
}

// Of all probabilities of a partial, in each warp: keys i, i + 16, ... in a lane, lanes as a tree.
BATON_DEVICE float SumProbabilities(const Span& span, const Shared& shared) {
  float sum = 0.0f;
  const int lane = threadIdx.x % kLanes;
  for (int i = span.begin / kLanes * kLanes + lane; i < span.end; i += kLanes) {
    if (i >= span.begin) sum += shared.scores[i];
  }
  for (int by = kLanes / 2; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  return sum;
}

// columns += probability * value of keys [begin, end), of which `v` is the thread's first column;
// its next ones are `step` elements apart.
template <typename T>
BATON_DEVICE void AddValues(const Shared& shared, const T* v, int64_t step, const Span& keys,
                            int32_t num_columns, float scale, float (&columns)[kColumns]) {
  for (int i = keys.begin; i < keys.end; ++i) {
    const int64_t at = shared.values[i];
    if (at < 0) continue;
    const float probability = shared.scores[i];
    BATON_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      if (c >= num_columns) break;
      float x = ToFloat(v[at + c * step]);
      if constexpr (sizeof(T) == 1) x *= scale;
      columns[c] = fmaf(probability, x, columns[c]);
    }
  }
}

// Of what is cached, then of what is dense.
BATON_DEVICE void SumValues(const Problem& args, const Row& row, int32_t first_key,
                            const Span& span, const Shared& shared, float (&columns)[kColumns]) {
  const int thread = threadIdx.x;
  const int num_columns = (args.v_dim - thread + kThreads - 1) / kThreads;
  if (num_columns <= 0) return;
  const int split = min(span.end, max(span.begin, row.num_cached - first_key));
  const ConstFloats& dense = args.base.dense.v;
  // Of V no more elements than one lie together, or all.
  const int64_t apart = args.v.strides.group_dim == 1 ? args.v.strides.group : 1;
  BATON_ROLLED
  for (int part = 0; part < 2; ++part) {
    const bool cached = part == 0;
    const Span keys{cached ? span.begin : split, cached ? split : span.end};
    if (keys.begin >= keys.end) continue;
    const void* data = cached ? args.v.plane.data : dense.data;
    const int64_t step = cached ? apart : 1;
    const float scale = cached ? StoredScaleOf(args.v.plane, row.kv_head) : 1.0f;
    WithStoredType(cached ? args.v.plane.dtype : dense.dtype, [&](auto type) {
      const auto* v = static_cast<const decltype(type)*>(data) + thread * step;
      AddValues(shared, v, kThreads * step, keys, num_columns, scale, columns);
    });
  }
}

// One partial of a row; column c of a thread is threadIdx.x + c * kThreads.
BATON_DEVICE State RunPartial(const Problem& args, const Row& row, int32_t first_key,
                              Shared& shared, float (&columns)[kColumns]) {
  BATON_UNROLL
  for (int c = 0; c < kColumns; ++c) columns[c] = 0.0f;
  const Span span = SpanOf(row.keys, first_key);
  State state{MinusInfinity(), 0.0f};
  if (span.begin >= span.end) return state;
  if (!Score(args, row, first_key, span, shared, state.max)) {
    __syncthreads();  // The maxima have been read.
    return {MinusInfinity(), 0.0f};
  }
  for (int i = span.begin + static_cast<int>(threadIdx.x); i < span.end; i += kThreads) {
    shared.scores[i] = Exp(shared.scores[i] - state.max);
  }
  __syncthreads();
  state.sum = SumProbabilities(span, shared);
  SumValues(args, row, first_key, span, shared, columns);
  __syncthreads();  // Nobody reads probabilities any more.
  return state;
}

// Adds a partial to what is folded so far; a sum of 0 is nothing.
BATON_DEVICE void Fold(const State& partial, const float (&columns)[kColumns], State& total,
                       float (&sums)[kColumns]) {
  if (partial.sum == 0) return;
  if (total.sum == 0) {
    total = partial;
    BATON_UNROLL
    for (int c = 0; c < kColumns; ++c) sums[c] = columns[c];
    return;
  }
  const float max = partial.max > total.max ? partial.max : total.max;
  const float old = Exp(total.max - max), added = Exp(partial.max - max);
  BATON_UNROLL
  for (int c = 0; c < kColumns; ++c) sums[c] = fmaf(columns[c], added, sums[c] * old);
  total = {max, total.sum * old + partial.sum * added};
}

// Writes the row of which these are the sums.
BATON_DEVICE void EndRow(const Problem& args, const Row& row, State total,
                         float (&sums)[kColumns]) {
  const VarlenAttentionArgs& base = args.base;
  const bool saw_a_key = total.sum != 0;
  if (base.scores.sinks != nullptr) {
    const float nothing[kColumns] = {};
    Fold({base.scores.sinks[row.head], 1.0f}, nothing, total, sums);
  }
  const float descale = DescaleOf(args, base.scales.v_descale, row);
  const int64_t at = row.token * base.out_stride + int64_t{row.head} * args.v_dim;
  BATON_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    const int column = static_cast<int>(threadIdx.x) + c * kThreads;
    if (column >= args.v_dim) continue;
    float x = 0.0f;
    if (saw_a_key) x = sums[c] / total.sum * descale / base.scales.output_scale;
    StoreFloat(base.out, at + column, RoundedTo(base.round_to, x));
  }
  if (base.lse == nullptr || threadIdx.x != 0) return;
  base.lse[row.head * base.lse_stride + row.token] =
      saw_a_key ? total.max + Log(total.sum) : MinusInfinity();
}

// A block for each row. It reads what the row sees and nothing else.
__global__ void __launch_bounds__(kThreads, 1) RowKernel(Problem args) {
  auto& shared = SharedMemory<Shared>();
  const Row row = RowAt(args, blockIdx.x);
  if (row.token < 0) return;  // A decode that is to be skipped.
  LoadQuery(args, row, shared);
  float sums[kColumns] = {};
  State total{MinusInfinity(), 0.0f};
  const int32_t first = row.keys.begin / kPartialKeys;
  for (int64_t i = first; i * kPartialKeys < row.keys.end; ++i) {
    float columns[kColumns];
    const State partial =
        RunPartial(args, row, static_cast<int32_t>(i * kPartialKeys), shared, columns);
    Fold(partial, columns, total, sums);
  }
  EndRow(args, row, total, sums);
}

// Where the caller has one partial of one row.
BATON_DEVICE int64_t PartialAt(const Problem& args, int64_t row, int64_t partition) {
  return row * args.partials.max_num_partitions + partition;
}

// A block for each partition of each row, of which all are written that the sequence has.
__global__ void __launch_bounds__(kThreads, 1) PartialKernel(Problem args) {
  auto& shared = SharedMemory<Shared>();
  const auto partitions = static_cast<uint32_t>(args.num_partitions);
  const int64_t partition = blockIdx.x % partitions, index = blockIdx.x / partitions;
  const Row row = RowAt(args, static_cast<uint32_t>(index));
  if (partition * kPartialKeys >= row.num_keys) return;
  LoadQuery(args, row, shared);
  float columns[kColumns];
  const State partial =
      RunPartial(args, row, static_cast<int32_t>(partition * kPartialKeys), shared, columns);
  const int64_t at = PartialAt(args, index, partition);
  BATON_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    const int column = static_cast<int>(threadIdx.x) + c * kThreads;
    if (column < args.v_dim) args.partials.tmp_out[at * args.v_dim + column] = columns[c];
  }
  if (threadIdx.x != 0) return;
  args.partials.max_logits[at] = partial.max;
  args.partials.exp_sums[at] = partial.sum;
}

// The second pass: a block for each row.
__global__ void __launch_bounds__(kThreads) ReduceKernel(Problem args) {
  const int64_t index = blockIdx.x;
  const Row row = RowAt(args, blockIdx.x);
  float sums[kColumns] = {};
  State total{MinusInfinity(), 0.0f};
  for (int64_t i = 0; i < args.num_partitions && i * kPartialKeys < row.num_keys; ++i) {
    const int64_t at = PartialAt(args, index, i);
    float columns[kColumns];
    BATON_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      const int column = static_cast<int>(threadIdx.x) + c * kThreads;
      columns[c] = column < args.v_dim ? args.partials.tmp_out[at * args.v_dim + column] : 0.0f;
    }
    Fold({args.partials.max_logits[at], args.partials.exp_sums[at]}, columns, total, sums);
  }
  EndRow(args, row, total, sums);
}

}  // namespace generic_attention

namespace {

using generic_attention::kThreads;
using generic_attention::Problem;
using generic_attention::ProblemOf;

cudaError_t Attend(const Problem& args, cudaStream_t stream) {
  const int64_t rows = args.base.num_tokens * args.base.num_heads;
  if (args.base.num_seqs == 0 || rows == 0) return cudaSuccess;
  const int64_t parts = args.partials.given() ? args.num_partitions : 1;
  if (args.base.num_tokens > INT32_MAX || rows > INT32_MAX / std::max<int64_t>(parts, 1)) {
    return cudaErrorInvalidValue;
  }
  const auto blocks = static_cast<unsigned>(rows);
  constexpr size_t kShared = sizeof(generic_attention::Shared);
  if (!args.partials.given()) {
    return Launch(generic_attention::RowKernel, blocks, kThreads, kShared, stream, args);
  }
  if (parts > 0) {
    const cudaError_t error =
        Launch(generic_attention::PartialKernel, static_cast<unsigned>(rows * parts), kThreads,
               kShared, stream, args);
    if (error != cudaSuccess) return error;
  }
  return Launch(generic_attention::ReduceKernel, blocks, kThreads, 0, stream, args);
}

}  // namespace

cudaError_t GenericAttention(const VarlenAttentionArgs& args, cudaStream_t stream) {
  if (args.num_seqs > 0 && args.num_tokens == 0) return cudaErrorInvalidValue;
  return Attend(ProblemOf(args), stream);
}

cudaError_t GenericAttention(const PagedAttentionArgs& args, cudaStream_t stream) {
  return Attend(ProblemOf(args), stream);
}

cudaError_t PrefixAttention(const PrefixAttentionArgs& args, cudaStream_t stream) {
  if (args.num_seqs > 0 && args.num_tokens == 0) return cudaErrorInvalidValue;
  return Attend(ProblemOf(args), stream);
}

cudaError_t AttentionWithKvCache(const AttentionWithKvCacheArgs& args, cudaStream_t stream) {
  const cudaError_t error = AppendRows(args, stream);
  if (error != cudaSuccess) return error;
  return Attend(ProblemOf(args), stream);
}

}  // namespace baton::cuda
