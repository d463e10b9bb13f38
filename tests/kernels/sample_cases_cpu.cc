// What sample_fixture.h asks of the CPU.
#include "tests/kernels/sample_fixture.h"

namespace baton {

std::vector<SampleCase> SampleCases() {
  std::vector<SampleCase> cases;
  for (const std::string& set : KernelSets()) {
    cases.push_back({.ops = set, .budget = 100, .long_row = 20000});
  }
  return cases;
}

std::vector<SampleCase> ScoreCases() { return SampleCases(); }

std::unique_ptr<CpuKernels> MakeSampleOps(const SampleCase& which) {
  return MakeTestKernels(which.ops);
}

}  // namespace baton
