// What library_cases.h asks of the CPU.
#include "tests/kernels/library_cases.h"

namespace baton {

std::vector<std::string> LibraryNames() { return KernelSets(); }

std::unique_ptr<CpuKernels> MakeLibrary(const std::string& name, int num_threads) {
  return MakeTestKernels(name, num_threads);
}

bool IsOfGpu(const std::string&) { return false; }

}  // namespace baton
