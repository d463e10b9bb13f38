#include "kernels/cuda/rows.h"

#include <algorithm>

#include "kernels/cuda/operands.h"

namespace baton::cuda {
namespace rows {

constexpr int kThreads = 256;

BATON_DEVICE int64_t ThreadIndex() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

// Operation by operation PortableSinCos: the nearest multiple of pi / 2 is taken
// off in three parts, what is left goes through the series of both functions.
BATON_DEVICE double AlternatingSeries(double x2, int first) {
  double y = 1.0;
  BATON_UNROLL
  for (int j = 9; j > 0; --j) {
    const double divisor = static_cast<double>(first + 2 * j - 2) * (first + 2 * j - 1);
    y = 1.0 - y * x2 / divisor;
  }
  return y;
}

BATON_DEVICE void SinCos(double x, double& sin, double& cos) {
  sin = cos = NAN;
  if (!(fabs(x) <= 0x1p40)) return;  // As there: nothing is left of so large an angle.
  const double n = floor(x * 6.36619772367581382433e-01 + 0.5);
  const double r = ((x - n * 1.57079632673412561417e+00) - n * 6.07710050630396597660e-11) -
                   n * 2.02226624879595063154e-21;
  const double s = r * AlternatingSeries(r * r, 2), c = AlternatingSeries(r * r, 1);
  const int quarter = static_cast<int>(static_cast<int64_t>(n) & 3);
  sin = quarter % 2 == 0 ? s : c;
  cos = quarter % 2 == 0 ? c : s;
  if (quarter >= 2) sin = -sin;
  if (quarter == 1 || quarter == 2) cos = -cos;
}

// A thread for each pair.
__global__ void __launch_bounds__(kThreads) RotaryTableKernel(RotaryTableArgs args) {
  const int64_t index = ThreadIndex();
  if (index >= args.num_tokens * args.half) return;
  const int32_t told = args.positions[index / args.half];
  const float* const inv_freq = told < 0 ? args.other_inv_freq : args.inv_freq;
  const auto position = static_cast<float>(told < 0 ? -1 - told : told);
  double sin, cos;
  SinCos(position * inv_freq[index % args.half], sin, cos);
  args.cos[index] = static_cast<float>(cos) * args.attention_scaling;
  args.sin[index] = static_cast<float>(sin) * args.attention_scaling;
}

// Strides and `per_row` in vectors; a thread for each of these.
template <typename Vector>
__global__ void __launch_bounds__(kThreads)
    SelectRowsKernel(SelectRowsArgs args, int64_t per_row) {
  const int64_t index = ThreadIndex();
  if (index >= args.num_rows * per_row) return;
  const int64_t row = index / per_row, column = index % per_row;
  const auto* from = static_cast<const Vector*>(args.from.data);
  auto* to = static_cast<Vector*>(args.to.data);
  to[row * args.to_stride + column] = from[args.rows[row] * args.from_stride + column];
}

template <typename Vector>
BATON_DEVICE void CopyPart(const CopyPiece& piece) {
  const auto* from = reinterpret_cast<const Vector*>(piece.from);
  auto* to = reinterpret_cast<Vector*>(piece.to);
  const int64_t count = piece.bytes / static_cast<int64_t>(sizeof(Vector));
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = ThreadIndex(); i < count; i += step) to[i] = from[i];
}

// Grid: parts of a piece, pieces.
__global__ void __launch_bounds__(kThreads) CopyPiecesKernel(const CopyPiece* pieces) {
  const CopyPiece piece = pieces[blockIdx.y];
  const uint64_t alignment = reinterpret_cast<uintptr_t>(piece.from) |
                             reinterpret_cast<uintptr_t>(piece.to) |
                             static_cast<uint64_t>(piece.bytes);
  if (alignment % sizeof(uint4) == 0) {
    CopyPart<uint4>(piece);
  } else {
    CopyPart<uint2>(piece);
  }
}

}  // namespace rows

namespace {

template <typename Vector>
cudaError_t LaunchSelectRows(SelectRowsArgs args, cudaStream_t stream) {
  const int64_t per_vector = static_cast<int64_t>(sizeof(Vector)) / SizeOf(args.from.dtype);
  args.from_stride /= per_vector;
  args.to_stride /= per_vector;
  const int64_t per_row = args.dim / per_vector;
  return Launch(rows::SelectRowsKernel<Vector>, BlocksFor(args.num_rows * per_row, rows::kThreads),
                rows::kThreads, 0, stream, args, per_row);
}

}  // namespace

cudaError_t RotaryTable(const RotaryTableArgs& args, cudaStream_t stream) {
  const int64_t pairs = args.num_tokens * args.half;
  if (pairs == 0) return cudaSuccess;
  return Launch(rows::RotaryTableKernel, BlocksFor(pairs, rows::kThreads), rows::kThreads, 0,
                stream, args);
}

cudaError_t SelectRows(const SelectRowsArgs& args, cudaStream_t stream) {
  if (args.num_rows == 0 || args.dim == 0) return cudaSuccess;
  if (args.from.dtype != args.to.dtype) return cudaErrorInvalidValue;
  const int64_t size = SizeOf(args.from.dtype);
  const uint64_t alignment = reinterpret_cast<uintptr_t>(args.from.data) |
                             reinterpret_cast<uintptr_t>(args.to.data) |
                             static_cast<uint64_t>(args.dim * size | args.from_stride * size |
                                                   args.to_stride * size);
  if (alignment % sizeof(uint4) == 0) return LaunchSelectRows<uint4>(args, stream);
  if (size == 4) return LaunchSelectRows<uint32_t>(args, stream);
  if (size == 2) return LaunchSelectRows<uint16_t>(args, stream);
  return cudaErrorInvalidValue;
}

cudaError_t CopyPieces(const CopyPiece* pieces, int64_t count, cudaStream_t stream) {
  constexpr int64_t kMaxPieces = 65535;  // The grid's y.
  // Blocks beyond these would find a bus that is full.
  constexpr unsigned kMaxParts = 64;
  for (int64_t first = 0; first < count; first += kMaxPieces) {
    const int64_t last = std::min(count, first + kMaxPieces);
    int64_t greatest = 0;
    for (int64_t i = first; i < last; ++i) greatest = std::max(greatest, pieces[i].bytes);
    if (greatest == 0) continue;
    const unsigned parts = std::min(kMaxParts, BlocksFor(greatest, 64 * rows::kThreads));
    const cudaError_t error =
        Launch(rows::CopyPiecesKernel, dim3(parts, static_cast<unsigned>(last - first)),
               rows::kThreads, 0, stream, pieces + first);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace baton::cuda
