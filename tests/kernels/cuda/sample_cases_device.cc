// What sample_fixture.h asks of the GPU.
#include "tests/kernels/cuda/device_sampling.h"
#include "tests/kernels/sample_fixture.h"

namespace baton {

// Rows in parts take the emulation twenty times as long.
std::vector<SampleCase> SampleCases() {
  return {{.ops = "cuda", .budget = 120, .long_row = 3000},
          {.ops = "cuda", .parts = 3, .budget = 3, .long_row = 3000}};
}

std::vector<SampleCase> ScoreCases() { return {{.ops = "cuda"}}; }

std::unique_ptr<CpuKernels> MakeSampleOps(const SampleCase& which) {
  emulation::ResetDevice();
  emulation::SetSeed(1);
  return std::make_unique<cuda::DeviceSampling>(
      cuda::DeviceSampling::Options{.parts = which.parts});
}

}  // namespace baton
