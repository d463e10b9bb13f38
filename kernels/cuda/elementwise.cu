#include "kernels/cuda/elementwise.h"

#include "kernels/cuda/math.h"
#include "kernels/cuda/partials.h"
#include "kernels/cuda/weights.h"

namespace baton::cuda {
namespace elementwise {

constexpr int kThreads = 256;

BATON_DEVICE int64_t ThreadIndex() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

// A thread for each pair.
template <typename T>
__global__ void __launch_bounds__(kThreads) RopeKernel(RopeArgs args) {
  const int64_t half = args.rotary_dim / 2, index = ThreadIndex();
  if (index >= args.num_tokens * args.num_heads * half) return;
  const int64_t pair = index % half, head = index / half % args.num_heads;
  const int64_t token = index / half / args.num_heads;
  const float c = args.cos[token * half + pair], s = args.sin[token * half + pair];
  T* x = static_cast<T*>(args.x.data) + token * args.x_stride + head * args.head_dim;
  T& first = x[args.interleaved ? 2 * pair : pair];
  T& second = x[args.interleaved ? 2 * pair + 1 : pair + half];
  const float a = ToFloat(first), b = ToFloat(second);
  first = FromFloat<T>(fmaf(a, c, 0.0f - b * s));
  second = FromFloat<T>(fmaf(b, c, a * s));
}

// A thread for four elements of a row, here and below.
template <typename X, typename Out>
__global__ void __launch_bounds__(kThreads) ActivationKernel(ActivationArgs args, bool vectors) {
  const int64_t i = ThreadIndex() * 4, left = args.num_tokens * args.dim - i;
  if (left <= 0) return;
  float x[4];
  LoadFour(static_cast<const X*>(args.x.data) + i, left, vectors, x);
  BATON_UNROLL
  for (int j = 0; j < 4; ++j) x[j] = Activate(args.activation, x[j]);
  StoreFour(static_cast<Out*>(args.out.data) + i, left, vectors, x);
}

template <typename X, typename Out>
__global__ void __launch_bounds__(kThreads)
    ActivationAndMulKernel(ActivationAndMulArgs args, bool vectors) {
  const int64_t per_row = (args.dim + 3) / 4, index = ThreadIndex();
  if (index >= args.num_tokens * per_row) return;
  const int64_t row = index / per_row, i = index % per_row * 4, left = args.dim - i;
  const X* gate = static_cast<const X*>(args.gate_up.data) + row * args.gate_up_stride + i;
  float x[4], up[4];
  LoadFour(gate, left, vectors, x);
  LoadFour(gate + args.dim, left, vectors, up);
  BATON_UNROLL
  for (int j = 0; j < 4; ++j) x[j] = Activate(args.activation, x[j]) * up[j];
  StoreFour(static_cast<Out*>(args.out.data) + row * args.out_stride + i, left, vectors, x);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) SoftcapKernel(SoftcapArgs args, bool vectors) {
  const int64_t per_row = (args.dim + 3) / 4, index = ThreadIndex();
  if (index >= args.num_tokens * per_row) return;
  const int64_t i = index % per_row * 4, left = args.dim - i;
  T* x = static_cast<T*>(args.x.data) + index / per_row * args.x_stride + i;
  float v[4];
  LoadFour(x, left, vectors, v);
  BATON_UNROLL
  for (int j = 0; j < 4; ++j) v[j] = args.cap * Tanh(v[j] / args.cap);
  StoreFour(x, left, vectors, v);
}

template <int kParts, typename Out>
__global__ void __launch_bounds__(kThreads)
    FoldPartialsKernel(FoldPartialsArgs args, bool vectors) {
  const int64_t per_row = (args.dim + 3) / 4, index = ThreadIndex();
  if (index >= args.num_tokens * per_row) return;
  const int64_t row = index / per_row, i = index % per_row * 4, left = args.dim - i;
  float sum[4];
  FoldFour<kParts>(args, row, i, vectors, sum);
  StoreFour(static_cast<Out*>(args.out.data) + row * args.out_stride + i, left, vectors, sum);
}

// EmbeddingArgs with the rows of its table, which are divided among matrices.
struct EmbeddingRows {
  const void* shards[kMaxRanks];
  int64_t rows_each;
  int64_t table_stride;
  const int32_t* tokens;
  int64_t num_tokens;
  int64_t dim;
  float scale;
  Floats out;
  int64_t out_stride;
};

template <typename Table, typename Out>
__global__ void __launch_bounds__(kThreads) EmbeddingKernel(EmbeddingRows args, bool vectors) {
  const int64_t per_row = (args.dim + 3) / 4, index = ThreadIndex();
  if (index >= args.num_tokens * per_row) return;
  const int64_t row = index / per_row, i = index % per_row * 4, left = args.dim - i;
  const int64_t token = args.tokens[row], shard = token / args.rows_each;
  const void* table = args.shards[0];
  BATON_UNROLL  // An index that is no constant would copy them to local memory.
  for (int s = 1; s < kMaxRanks; ++s) {
    if (s == shard) table = args.shards[s];
  }
  const int64_t at = (token - shard * args.rows_each) * args.table_stride + i;
  float x[4];
  LoadFour(static_cast<const Table*>(table) + at, left, vectors, x);
  if (args.scale != 1.0f) {
    BATON_UNROLL
    for (int j = 0; j < 4; ++j) x[j] *= args.scale;
  }
  StoreFour(static_cast<Out*>(args.out.data) + row * args.out_stride + i, left, vectors, x);
}

// A thread for each sequence.
__global__ void __launch_bounds__(kThreads) AdvanceStepKernel(AdvanceStepArgs args) {
  const int64_t i = ThreadIndex();
  if (i >= args.num_seqs) return;
  if (i >= args.num_queries) {
    args.tokens[i] = 0;
    args.positions[i] = 0;
    args.slot_mapping[i] = -1;
    return;
  }
  const int32_t position = args.seq_lens[i];
  const int64_t block = args.block_tables[i * args.max_blocks + position / args.block_size];
  args.tokens[i] = args.sampled_tokens[i];
  args.positions[i] = position;
  args.seq_lens[i] = position + 1;
  args.slot_mapping[i] = block * args.block_size + position % args.block_size;
}

}  // namespace elementwise

namespace {

template <typename Kernel, typename... Args>
cudaError_t LaunchThreads(Kernel kernel, int64_t threads, cudaStream_t stream,
                          const Args&... args) {
  if (threads == 0) return cudaSuccess;
  return Launch(kernel, BlocksFor(threads, elementwise::kThreads), elementwise::kThreads, 0,
                stream, args...);
}

}  // namespace

cudaError_t Rope(const RopeArgs& args, cudaStream_t stream) {
  return WithFloatType(args.x.dtype, [&](auto x) {
    return LaunchThreads(elementwise::RopeKernel<decltype(x)>,
                         args.num_tokens * args.num_heads * (args.rotary_dim / 2), stream, args);
  });
}

cudaError_t Activation(const ActivationArgs& args, cudaStream_t stream) {
  if (args.out.dtype != args.round_to) return cudaErrorInvalidValue;
  const int64_t n = args.num_tokens * args.dim;
  const bool vectors = HasVectors(args.x.data, args.x.dtype, n, n) &&
                       HasVectors(args.out.data, args.out.dtype, n, n);
  return WithFloatTypes(args.x.dtype, args.out.dtype, [&](auto x, auto out) {
    return LaunchThreads(elementwise::ActivationKernel<decltype(x), decltype(out)>, (n + 3) / 4,
                         stream, args, vectors);
  });
}

cudaError_t ActivationAndMul(const ActivationAndMulArgs& call, cudaStream_t stream) {
  ActivationAndMulArgs args = call;
  if (args.gate_up_stride == 0) args.gate_up_stride = 2 * args.dim;
  if (args.out_stride == 0) args.out_stride = args.dim;
  if (args.out.dtype != args.round_to) return cudaErrorInvalidValue;
  const bool vectors =
      HasVectors(args.gate_up.data, args.gate_up.dtype, args.dim, args.gate_up_stride) &&
      HasVectors(args.out.data, args.out.dtype, args.dim, args.out_stride);
  return WithFloatTypes(args.gate_up.dtype, args.out.dtype, [&](auto x, auto out) {
    return LaunchThreads(elementwise::ActivationAndMulKernel<decltype(x), decltype(out)>,
                         args.num_tokens * ((args.dim + 3) / 4), stream, args, vectors);
  });
}

cudaError_t Softcap(const SoftcapArgs& args, cudaStream_t stream) {
  const bool vectors = HasVectors(args.x.data, args.x.dtype, args.dim, args.x_stride);
  return WithFloatType(args.x.dtype, [&](auto x) {
    return LaunchThreads(elementwise::SoftcapKernel<decltype(x)>,
                         args.num_tokens * ((args.dim + 3) / 4), stream, args, vectors);
  });
}

cudaError_t FoldPartials(const FoldPartialsArgs& call, cudaStream_t stream) {
  FoldPartialsArgs args = call;
  if (args.part_stride == 0) args.part_stride = args.dim;
  if (args.out_stride == 0) args.out_stride = args.dim;
  const bool rounds = args.round_to == DType::kF32 || args.out.dtype == args.round_to;
  if (!rounds) return cudaErrorInvalidValue;
  bool vectors = HasVectors(args.out.data, args.out.dtype, args.dim, args.out_stride);
  for (int32_t i = 0; i < args.num_parts; ++i) {
    vectors &= HasVectors(args.parts[i], DType::kF32, args.dim, args.part_stride);
  }
  const int64_t threads = args.num_tokens * ((args.dim + 3) / 4);
  return WithFloatType(args.out.dtype, [&](auto out) {
    using Out = decltype(out);
    switch (args.num_parts) {
      case 1:
        return LaunchThreads(elementwise::FoldPartialsKernel<1, Out>, threads, stream, args,
                             vectors);
      case 2:
        return LaunchThreads(elementwise::FoldPartialsKernel<2, Out>, threads, stream, args,
                             vectors);
      case 4:
        return LaunchThreads(elementwise::FoldPartialsKernel<4, Out>, threads, stream, args,
                             vectors);
      case 8:
        return LaunchThreads(elementwise::FoldPartialsKernel<8, Out>, threads, stream, args,
                             vectors);
      default:
        return cudaErrorInvalidValue;
    }
  });
}

cudaError_t Embedding(const EmbeddingArgs& call, cudaStream_t stream) {
  if (call.num_tokens == 0) return cudaSuccess;
  const PackedMatrix& table = *call.shards[0];
  elementwise::EmbeddingRows args{
      .shards = {},
      .rows_each = call.num_shards == 1 ? table.n() : call.rows_each,
      .table_stride = RowStride(table.k()),
      .tokens = call.tokens,
      .num_tokens = call.num_tokens,
      .dim = table.k(),
      .scale = call.scale,
      .out = call.out,
      .out_stride = call.out_stride == 0 ? table.k() : call.out_stride};
  bool vectors = HasVectors(args.out.data, args.out.dtype, args.dim, args.out_stride);
  for (int32_t i = 0; i < call.num_shards; ++i) {
    const PackedMatrix& shard = *call.shards[i];
    if (shard.format() != WeightFormat::kCuda) return cudaErrorInvalidValue;
    args.shards[i] = shard.data();
    vectors &= HasVectors(shard.data(), shard.dtype(), args.dim, args.table_stride);
  }
  return WithFloatTypes(table.dtype(), args.out.dtype, [&](auto table, auto out) {
    return LaunchThreads(elementwise::EmbeddingKernel<decltype(table), decltype(out)>,
                         args.num_tokens * ((args.dim + 3) / 4), stream, args, vectors);
  });
}

cudaError_t AdvanceStep(const AdvanceStepArgs& args, cudaStream_t stream) {
  return LaunchThreads(elementwise::AdvanceStepKernel, args.num_seqs, stream, args);
}

}  // namespace baton::cuda
