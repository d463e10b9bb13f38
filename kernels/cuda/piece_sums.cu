#include "kernels/cuda/piece_sums.h"

#include "kernels/cuda/operands.h"

namespace baton::cuda {
namespace piece_sums {

constexpr int kThreads = 256;

struct Layout {
  uint64_t sums[kThreads];
};

BATON_DEVICE uint64_t FactorOf(uint64_t place) {
  uint64_t z = (place + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return (z ^ (z >> 31)) | 1;
}

// A block for each piece.
__global__ void __launch_bounds__(kThreads) SumPiecesKernel(const SummedPiece* pieces) {
  auto& s = SharedMemory<Layout>();
  const SummedPiece piece = pieces[blockIdx.x];
  const auto* words = reinterpret_cast<const uint32_t*>(piece.data);
  const int64_t count = piece.bytes / static_cast<int64_t>(sizeof(uint32_t));
  uint64_t sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += words[i] * FactorOf(i);
  s.sums[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) s.sums[threadIdx.x] += s.sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *piece.sum = s.sums[0];
}

}  // namespace piece_sums

cudaError_t SumPieces(const SummedPiece* pieces, int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return Launch(piece_sums::SumPiecesKernel, dim3(static_cast<unsigned>(count)),
                piece_sums::kThreads, sizeof(piece_sums::Layout), stream, pieces);
}

}  // namespace baton::cuda
