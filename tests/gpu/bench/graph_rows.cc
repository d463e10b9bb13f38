#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/gpu/bench/gpu_bench.h"

namespace baton::bench {
namespace {

// As a worker holds one of each number of rows, of about so many launches with 8B's layers.
constexpr int kGraphs = 11, kLaunches = 320;
constexpr int kQuickGraphs = 2, kQuickLaunches = 3;

}  // namespace

// What a worker's graphs of decode steps take of the memory that K and V would have.
absl::Status MeasureGraphMemory(GpuBench& bench) {
  const int graphs = bench.quick() ? kQuickGraphs : kGraphs;
  const int launches = bench.quick() ? kQuickLaunches : kLaunches;
  Device& device = bench.device();
  ASSIGN_OR_RETURN(const Buffer list, device.Allocate(sizeof(CopyPiece), MemoryKind::kPinned));
  ASSIGN_OR_RETURN(const Buffer there, device.Allocate(32, MemoryKind::kDevice));
  auto* const piece = list.array<CopyPiece>();
  *piece = {there.data(), there.data() + 16, 16};
  ASSIGN_OR_RETURN(const DeviceMemory before, device.Memory());
  std::vector<std::unique_ptr<Graph>> held;
  for (int i = 0; i < graphs; ++i) {
    ASSIGN_OR_RETURN(held.emplace_back(), device.Capture([&] {
      for (int n = 0; n < launches; ++n) {
        RETURN_IF_ERROR(device.CopyPieces(Lane::kCompute, {piece, 1}));
      }
      return absl::OkStatus();
    }));
  }
  ASSIGN_OR_RETURN(const DeviceMemory after, device.Memory());
  bench.Say({.name = absl::StrCat("memory of ", graphs, " graphs of ", launches, " launches"),
             .value = static_cast<double>(before.free - after.free) * 0x1p-20,
             .unit = "MiB"});
  return device.Synchronize();
}

}  // namespace baton::bench
