// What op_cases.h asks of the GPU.
#include "tests/kernels/op_cases.h"

#include "tests/kernels/cuda/device_ops.h"

namespace baton {

std::vector<OpCase> OpCases() {
  std::vector<OpCase> cases;
  for (const cuda::DeviceCase& types : cuda::DeviceCases()) {
    cases.push_back({"cuda", types.in, types.out, types.seed, true});
  }
  return cases;
}

std::unique_ptr<CpuKernels> MakeOps(const OpCase& which) {
  emulation::ResetDevice();
  emulation::SetSeed(which.seed);
  return std::make_unique<cuda::DeviceOps>(which.in, which.out);
}

}  // namespace baton
