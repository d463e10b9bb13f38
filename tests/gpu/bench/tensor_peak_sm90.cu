#include "kernels/cuda/dialect_sm90.h"
#include "kernels/cuda/floats.h"
#include "kernels/cuda/ring.h"
#include "tests/gpu/bench/tensor_peak.h"

namespace baton::cuda {
namespace tensor_peak_sm90 {

constexpr int kWarpgroup = 128;
constexpr int kWarpgroups = TensorPeakSm90::kThreads / kWarpgroup;
constexpr int kRows = TensorPeakSm90::kRows, kColumns = TensorPeakSm90::kColumns;
constexpr int kTileK = TensorPeakSm90::kTileK;

struct Shared {
  alignas(1024) Bf16 rows[kWarpgroups][kRows][kTileK];
  alignas(1024) Bf16 columns[kColumns][kTileK];
};

// As a product's threads, but for copies: while one warpgroup waits the other multiplies.
__global__ void __launch_bounds__(TensorPeakSm90::kThreads, 1)
    MultiplyOnlySm90Kernel(float* sums, int rounds) {
  auto& shared = SharedMemory<Shared>();
  auto* const words = reinterpret_cast<uint32_t*>(&shared);
  // As tensor_peak.cu's, wherever the swizzle takes them from.
  BATON_ROLLED
  for (uint32_t i = threadIdx.x; i < sizeof(Shared) / sizeof(*words); i += blockDim.x) {
    words[i] = ((i + blockIdx.x) * 2654435761u & 0x807f807fu) | 0x3b803b80u;
  }
  FenceProxy();
  __syncthreads();
  const int warpgroup = Uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  float c[kColumns / 2] = {};
  BATON_ROLLED
  for (int round = 0; round < rounds; ++round) {
    FenceSums(c);
    BATON_UNROLL
    for (int k = 0; k < kTileK; k += 16) {
      MultiplyAsync(c, &shared.rows[warpgroup][0][k], &shared.columns[0][k]);
    }
    CommitProducts();
    WaitProducts<1>();
  }
  FinishSums(c);
  float sum = 0;
  BATON_UNROLL
  for (int i = 0; i < kColumns / 2; ++i) sum += c[i];
  sums[blockIdx.x * TensorPeakSm90::kThreads + threadIdx.x] = sum;
}

}  // namespace tensor_peak_sm90

cudaError_t MultiplyOnlySm90(const TensorPeakSm90& peak, float* sums, cudaStream_t stream) {
  return Launch(tensor_peak_sm90::MultiplyOnlySm90Kernel, dim3(peak.blocks),
                dim3(TensorPeakSm90::kThreads), sizeof(tensor_peak_sm90::Shared), stream, sums,
                peak.rounds);
}

}  // namespace baton::cuda
