// What library_cases.h asks of the GPU.
#include "tests/kernels/cuda/device_library.h"
#include "tests/kernels/library_cases.h"

namespace baton {

std::vector<std::string> LibraryNames() { return {"cuda"}; }

std::unique_ptr<CpuKernels> MakeLibrary(const std::string&, int) {
  emulation::ResetDevice();
  return std::make_unique<cuda::DeviceLibrary>(DType::kF32, DType::kF32);
}

bool IsOfGpu(const std::string&) { return true; }

}  // namespace baton
