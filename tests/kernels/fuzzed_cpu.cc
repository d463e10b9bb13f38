// What fuzz_fixture.h asks of the CPU.
#include "tests/kernels/fuzz_fixture.h"

namespace baton {
inline namespace BATON_FUZZED {

std::vector<std::string> FuzzedNames() { return KernelSets(); }
std::unique_ptr<CpuKernels> MakeFuzzed(const std::string& name, int num_threads) {
  return MakeTestKernels(name, num_threads);
}
bool FuzzedLacksForms() { return false; }
AttentionShapes Served(AttentionShapes shapes, uint64_t) { return shapes; }
AttentionShapes Affordable(AttentionShapes shapes) { return shapes; }

}  // inline namespace BATON_FUZZED
}  // namespace baton
