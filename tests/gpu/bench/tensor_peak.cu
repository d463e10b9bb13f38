#include "kernels/cuda/floats.h"
#include "tests/gpu/bench/tensor_peak.h"

namespace baton::cuda {
namespace tensor_peak {

// Two bf16 of either sign and magnitudes in [2^-8, 2^-7): what a GPU takes of its clock depends on
// what it multiplies.
BATON_DEVICE uint32_t TwoWeights(uint32_t seed) {
  const uint32_t bits = (seed + threadIdx.x * 7 + blockIdx.x) * 2654435761u;
  return (bits & 0x807f807fu) | 0x3b803b80u;
}

__global__ void __launch_bounds__(TensorPeak::kThreads)
    MultiplyOnlyKernel(float* sums, int rounds) {
  const uint32_t a[4] = {TwoWeights(1), TwoWeights(2), TwoWeights(3), TwoWeights(4)};
  const uint32_t b0 = TwoWeights(5), b1 = TwoWeights(6);
  float c[TensorPeak::kChains][4] = {};
  BATON_ROLLED
  for (int round = 0; round < rounds; ++round) {
    BATON_UNROLL
    for (int chain = 0; chain < TensorPeak::kChains; ++chain) {
      MultiplyAdd<Bf16>(c[chain], a, b0, b1);
    }
  }
  float sum = 0;
  BATON_UNROLL
  for (int chain = 0; chain < TensorPeak::kChains; ++chain) {
    sum += (c[chain][0] + c[chain][1]) + (c[chain][2] + c[chain][3]);
  }
  sums[blockIdx.x * TensorPeak::kThreads + threadIdx.x] = sum;
}

}  // namespace tensor_peak

cudaError_t MultiplyOnly(const TensorPeak& peak, float* sums, cudaStream_t stream) {
  return Launch(tensor_peak::MultiplyOnlyKernel, dim3(peak.blocks), dim3(TensorPeak::kThreads), 0,
                stream, sums, peak.rounds);
}

}  // namespace baton::cuda
