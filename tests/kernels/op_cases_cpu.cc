// What op_cases.h asks of the CPU.
#include "tests/kernels/op_cases.h"

namespace baton {

std::vector<OpCase> OpCases() {
  std::vector<OpCase> cases;
  for (const std::string& set : KernelSets()) {
    cases.push_back({set, DType::kF32, DType::kF32, 1});
    cases.push_back({set, DType::kF32, DType::kF16, 2});
    cases.push_back({set, DType::kBF16, DType::kBF16, 3});
  }
  return cases;
}

std::unique_ptr<CpuKernels> MakeOps(const OpCase& which) { return MakeTestKernels(which.ops); }

}  // namespace baton
