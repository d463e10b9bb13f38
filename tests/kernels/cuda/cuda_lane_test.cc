// How a device's streams are made, and what other threads may do while one records.
#include "kernels/cuda/cuda_lane.h"

#include <thread>
#include <vector>

#include "tests/kernels/cuda/cuda_device_fixture.h"

namespace baton::cuda {
namespace {

using CudaLaneTest = CudaDeviceTest;

#if !defined(BATON_CUDA_DEVICE)
// The stream that everything waits for is nobody's; transfers overtake what computes.
TEST_F(CudaLaneTest, LanesWaitForNobodyUnaskedAndTransfersComeFirst) {
  const std::vector<emulation::StreamFacts> streams = emulation::GetStreams();
  ASSERT_EQ(streams.size(), static_cast<size_t>(kNumLanes));
  for (int lane = 0; lane < kNumLanes; ++lane) {
    EXPECT_EQ(streams[lane].flags, cudaStreamNonBlocking) << lane;
    EXPECT_EQ(streams[lane].priority, static_cast<Lane>(lane) >= Lane::kTransfer ? -1 : 0) << lane;
  }
}
#endif

// A handoff goes on while the engine captures: its thread may copy and wait for its copies.
// Nobody may wait for the lane that is captured, as who allocates does.
TEST_F(CudaLaneTest, OtherThreadsMayUseOtherLanesAmidACapture) {
  auto graph = device_->Capture([&] {
    std::jthread([&] {
      Copy(Lane::kTransfer, 0, host_.data(), there_.data(), 8);
      Await(MarkNow(Lane::kTransfer));
    }).join();
    return absl::OkStatus();
  });
  EXPECT_TRUE(graph.ok()) << graph.status();
}

}  // namespace
}  // namespace baton::cuda
