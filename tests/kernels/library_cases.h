#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/kernels/kernel_fixture.h"

namespace baton {

// Whose operator library a body tests: a program has the kernel sets of the CPU
// (library_cases_cpu.cc), or a GPU (cuda/library_cases_device.cc), where operands of the host, in
// f32, are copied there between canaries, and what was written comes back.
std::vector<std::string> LibraryNames();
std::unique_ptr<CpuKernels> MakeLibrary(const std::string& name, int num_threads = 1);
bool IsOfGpu(const std::string& name);

// The fastest.
inline std::unique_ptr<CpuKernels> MakeBestLibrary(int num_threads = 1) {
  return MakeLibrary(LibraryNames().back(), num_threads);
}
inline bool BestIsOfGpu() { return IsOfGpu(LibraryNames().back()); }

// One test body for every library.
class LibraryTest : public testing::TestWithParam<std::string> {
 protected:
  bool of_gpu() const { return IsOfGpu(GetParam()); }

  std::unique_ptr<CpuKernels> kernels_ = MakeLibrary(GetParam());
};

#define BATON_FOR_EACH_LIBRARY(suite)                                      \
  INSTANTIATE_TEST_SUITE_P(Sets, suite, testing::ValuesIn(LibraryNames()), \
                           [](const auto& info) { return std::string(info.param); })

}  // namespace baton
