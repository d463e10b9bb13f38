#include "kernels/cuda/norms.h"

#include "kernels/cuda/partials.h"

namespace baton::cuda {
namespace {

// A short row takes one warp, a long one a block: by its length alone, so that its sum has one
// order whatever the batch. Both have blocks of 256 threads.
constexpr int kWarpsPerBlock = 8;
constexpr int64_t kShortRow = 512;

}  // namespace

namespace norms {

struct Sums {
  float warp[kWarpsPerBlock];
};

// The sum over all threads of a row, in each of them. kWarps warps share a row.
template <int kWarps>
BATON_DEVICE float RowSum(Sums& shared, float x) {
  BATON_UNROLL
  for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(~0u, x, by);
  if constexpr (kWarps > 1) {
    const int warp = threadIdx.x / 32;
    __syncthreads();  // The sum before this one has been read.
    if (threadIdx.x % 32 == 0) shared.warp[warp] = x;
    __syncthreads();
    x = 0;
    BATON_UNROLL
    for (int i = 0; i < kWarps; ++i) x += shared.warp[i];
  }
  return x;
}

// What is normalised: as it lies there, or as the sums that FoldPartials would leave there.
template <typename X>
struct StoredRows {
  BATON_DEVICE void Load(const RmsNormArgs& args, int64_t token, int64_t at, int64_t left,
                         bool vectors, float (&v)[4]) const {
    LoadFour(static_cast<const X*>(args.x.data) + token * args.x_stride + at, left, vectors, v);
  }
};
template <int kParts>
struct FoldedRows {
  FoldPartialsArgs fold;

  BATON_DEVICE void Load(const RmsNormArgs&, int64_t token, int64_t at, int64_t, bool vectors,
                         float (&v)[4]) const {
    FoldFour<kParts>(fold, token, at, vectors, v);
  }
};

// Element i is always added by thread i / 4 % (32 kWarps) of its row.
template <int kWarps, typename Rows, typename Out>
__global__ void __launch_bounds__(32 * kWarpsPerBlock)
    RmsNormKernel(RmsNormArgs args, Rows rows, bool vectors) {
  auto& shared = SharedMemory<Sums>();
  constexpr int kThreads = 32 * kWarps;
  const int64_t row = int64_t{blockIdx.x} * (kWarpsPerBlock / kWarps) + threadIdx.x / kThreads;
  if (row >= args.num_tokens * args.rows_per_token) return;  // A whole warp: only rows of one.
  const int first = static_cast<int>(threadIdx.x) % kThreads * 4;
  const int64_t token = row / args.rows_per_token, part = row % args.rows_per_token * args.dim;
  Out* out = static_cast<Out*>(args.out.data) + token * args.out_stride + part;
  float* residual = args.residual == nullptr ? nullptr : args.residual + row * args.residual_stride;

  float squares = 0;
  for (int64_t i = first; i < args.dim; i += 4 * kThreads) {
    float v[4];
    rows.Load(args, token, part + i, args.dim - i, vectors, v);
    if (residual != nullptr) {
      float r[4];
      LoadFour(residual + i, args.dim - i, vectors, r);
      BATON_UNROLL
      for (int j = 0; j < 4; ++j) v[j] += r[j];
      StoreFour(residual + i, args.dim - i, vectors, v);
    }
    BATON_UNROLL
    for (int j = 0; j < 4; ++j) squares = fmaf(v[j], v[j], squares);
  }
  const float mean = RowSum<kWarps>(shared, squares) / static_cast<float>(args.dim);
  const float inverse = 1.0f / sqrtf(mean + args.eps);
  const float offset = args.one_plus_weight ? 1.0f : 0.0f;
  for (int64_t i = first; i < args.dim; i += 4 * kThreads) {
    float v[4], weight[4];
    if (residual != nullptr) {
      LoadFour(residual + i, args.dim - i, vectors, v);
    } else {
      rows.Load(args, token, part + i, args.dim - i, vectors, v);
    }
    LoadFour(args.weight + i, args.dim - i, vectors, weight);
    BATON_UNROLL
    for (int j = 0; j < 4; ++j) v[j] = v[j] * inverse * (weight[j] + offset);
    StoreFour(out + i, args.dim - i, vectors, v);
  }
}

template <int kWarps, typename X, typename Out>
__global__ void __launch_bounds__(32 * kWarpsPerBlock)
    LayerNormKernel(LayerNormArgs args, bool vectors) {
  auto& shared = SharedMemory<Sums>();
  constexpr int kThreads = 32 * kWarps;
  const int64_t row = int64_t{blockIdx.x} * (kWarpsPerBlock / kWarps) + threadIdx.x / kThreads;
  if (row >= args.num_tokens) return;
  const int first = static_cast<int>(threadIdx.x) % kThreads * 4;
  const X* x = static_cast<const X*>(args.x.data) + row * args.x_stride;
  Out* out = static_cast<Out*>(args.out.data) + row * args.out_stride;

  float sum = 0;
  for (int64_t i = first; i < args.dim; i += 4 * kThreads) {
    float v[4];
    LoadFour(x + i, args.dim - i, vectors, v);
    BATON_UNROLL
    for (int j = 0; j < 4; ++j) sum += v[j];
  }
  const float mean = RowSum<kWarps>(shared, sum) / static_cast<float>(args.dim);
  float squares = 0;
  for (int64_t i = first; i < args.dim; i += 4 * kThreads) {
    float v[4];
    LoadFour(x + i, args.dim - i, vectors, v);
    BATON_UNROLL
    for (int j = 0; j < 4; ++j) {
      const float d = i + j < args.dim ? v[j] - mean : 0.0f;
      squares = fmaf(d, d, squares);
    }
  }
  const float variance = RowSum<kWarps>(shared, squares) / static_cast<float>(args.dim);
  const float inverse = 1.0f / sqrtf(variance + args.eps);
  for (int64_t i = first; i < args.dim; i += 4 * kThreads) {
    float v[4], weight[4], bias[4] = {};
    LoadFour(x + i, args.dim - i, vectors, v);
    LoadFour(args.weight + i, args.dim - i, vectors, weight);
    if (args.bias != nullptr) LoadFour(args.bias + i, args.dim - i, vectors, bias);
    BATON_UNROLL
    for (int j = 0; j < 4; ++j) v[j] = fmaf((v[j] - mean) * inverse, weight[j], bias[j]);
    StoreFour(out + i, args.dim - i, vectors, v);
  }
}

}  // namespace norms

namespace {

template <typename Kernel, typename... Args>
cudaError_t LaunchRows(Kernel short_row, Kernel long_row, int64_t rows, int64_t dim,
                       cudaStream_t stream, const Args&... args) {
  const bool is_short = dim <= kShortRow;
  return Launch(is_short ? short_row : long_row, BlocksFor(rows, is_short ? kWarpsPerBlock : 1),
                32 * kWarpsPerBlock, sizeof(norms::Sums), stream, args...);
}

bool HasFloatVectors(const float* data, int64_t dim, int64_t stride) {
  return HasVectors(data, DType::kF32, dim, stride);
}

}  // namespace

cudaError_t RmsNorm(const RmsNormArgs& call, cudaStream_t stream) {
  RmsNormArgs args = call;
  if (args.residual_stride == 0) args.residual_stride = args.dim;
  if (args.out.dtype != args.round_to) return cudaErrorInvalidValue;
  const int64_t rows = args.num_tokens * args.rows_per_token;
  if (rows == 0 || args.dim == 0) return cudaSuccess;
  const bool vectors = HasVectors(args.x.data, args.x.dtype, args.dim, args.x_stride) &&
                       HasVectors(args.out.data, args.out.dtype, args.dim, args.out_stride) &&
                       HasFloatVectors(args.weight, args.dim, args.dim) &&
                       HasFloatVectors(args.residual, args.dim, args.residual_stride);
  return WithFloatTypes(args.x.dtype, args.out.dtype, [&](auto x, auto out) {
    using Rows = norms::StoredRows<decltype(x)>;
    return LaunchRows(norms::RmsNormKernel<1, Rows, decltype(out)>,
                      norms::RmsNormKernel<kWarpsPerBlock, Rows, decltype(out)>, rows, args.dim,
                      stream, args, Rows{}, vectors);
  });
}

namespace {

template <int kParts>
cudaError_t LaunchFolded(const FoldPartialsArgs& fold, const RmsNormArgs& norm,
                         cudaStream_t stream) {
  bool vectors = HasVectors(norm.out.data, norm.out.dtype, norm.dim, norm.out_stride) &&
                 HasFloatVectors(norm.weight, norm.dim, norm.dim) &&
                 HasFloatVectors(norm.residual, norm.dim, norm.residual_stride);
  for (const float* part : fold.parts) vectors &= HasFloatVectors(part, fold.dim, fold.part_stride);
  return WithFloatType(norm.out.dtype, [&](auto out) {
    using Rows = norms::FoldedRows<kParts>;
    return LaunchRows(norms::RmsNormKernel<1, Rows, decltype(out)>,
                      norms::RmsNormKernel<kWarpsPerBlock, Rows, decltype(out)>, norm.num_tokens,
                      norm.dim, stream, norm, Rows{fold}, vectors);
  });
}

}  // namespace

cudaError_t FoldAndNorm(const FoldPartialsArgs& parts, const RmsNormArgs& call,
                        cudaStream_t stream) {
  FoldPartialsArgs fold = parts;
  RmsNormArgs norm = call;
  if (fold.part_stride == 0) fold.part_stride = fold.dim;
  if (norm.residual_stride == 0) norm.residual_stride = norm.dim;
  if (norm.out.dtype != norm.round_to || norm.residual == nullptr || fold.dim != norm.dim ||
      norm.rows_per_token != 1) {
    return cudaErrorInvalidValue;
  }
  if (norm.num_tokens == 0) return cudaSuccess;
  if (fold.num_parts == 2) return LaunchFolded<2>(fold, norm, stream);
  if (fold.num_parts == 4) return LaunchFolded<4>(fold, norm, stream);
  if (fold.num_parts == 8) return LaunchFolded<8>(fold, norm, stream);
  return cudaErrorInvalidValue;
}

cudaError_t LayerNorm(const LayerNormArgs& args, cudaStream_t stream) {
  if (args.out.dtype != args.round_to) return cudaErrorInvalidValue;
  if (args.num_tokens == 0 || args.dim == 0) return cudaSuccess;
  const bool vectors = HasVectors(args.x.data, args.x.dtype, args.dim, args.x_stride) &&
                       HasVectors(args.out.data, args.out.dtype, args.dim, args.out_stride) &&
                       HasFloatVectors(args.weight, args.dim, args.dim) &&
                       HasFloatVectors(args.bias, args.dim, args.dim);
  return WithFloatTypes(args.x.dtype, args.out.dtype, [&](auto x, auto out) {
    return LaunchRows(norms::LayerNormKernel<1, decltype(x), decltype(out)>,
                      norms::LayerNormKernel<kWarpsPerBlock, decltype(x), decltype(out)>,
                      args.num_tokens, args.dim, stream, args, vectors);
  });
}

}  // namespace baton::cuda
