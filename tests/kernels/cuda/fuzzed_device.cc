// What fuzz_fixture.h asks of the GPU. In two calls of three the blocks are the last of a cache
// whose elements 32 bits cannot count, the others of which lie nowhere.
#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/kernels/cuda/device_library.h"
#include "tests/kernels/fuzz_fixture.h"

namespace baton {
namespace {

using cuda::DeviceLibrary;
using cuda::FarBlocks;

class FuzzedDevice : public DeviceLibrary {
 public:
  FuzzedDevice() : DeviceLibrary(DType::kF32, DType::kF32) {}

 private:
  int64_t Far(const CachePlane& plane) const override {
    return calls_ % 3 == 0 ? 0 : FarBlocks(plane);
  }
};

}  // namespace

inline namespace BATON_FUZZED {

std::vector<std::string> FuzzedNames() { return {"cuda"}; }

std::unique_ptr<CpuKernels> MakeFuzzed(const std::string&, int) {
  emulation::ResetDevice();
  return std::make_unique<FuzzedDevice>();
}

bool FuzzedLacksForms() { return false; }

// Half types and the engine's cache; of long sequences the last keys.
AttentionShapes Served(AttentionShapes shapes, uint64_t seed) {
  constexpr std::pair<DType, DType> kTypes[] = {{DType::kBF16, DType::kBF16},
                                                {DType::kF16, DType::kF16},
                                                {DType::kBF16, DType::kFp8E4M3},
                                                {DType::kF16, DType::kFp8E5M2}};
  std::tie(shapes.compute, shapes.kv) = kTypes[seed % std::size(kTypes)];
  shapes.layout = CacheLayout::kHnd;
  shapes.sparsity = {};
  shapes.dim = shapes.v_dim = (shapes.dim + 7) / 8 * 8;
  Random random(seed);
  const bool long_ones = seed % 6 == 0;
  const int32_t steps[] = {64, shapes.block_size, long_ones ? 512 : 128};
  for (auto& [queries, keys] : shapes.sequences) {
    queries = std::min(queries, long_ones ? 9 : 30);
    keys = std::min(keys, long_ones ? 1200 : 90);
    // Half of them end at or beside an edge.
    const int32_t edge = steps[random.Below(3)] * static_cast<int32_t>(1 + random.Below(2));
    if (random.Below(2) == 0) keys = edge - 1 + static_cast<int32_t>(random.Below(3));
  }
  return shapes;
}

AttentionShapes Affordable(AttentionShapes shapes) { return Fewer(std::move(shapes), 4, 600); }

}  // namespace BATON_FUZZED
}  // namespace baton
