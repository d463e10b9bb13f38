#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "tests/kernels/cuda/cuda_device_fixture.h"

namespace baton::cuda {
namespace {

#if !defined(BATON_CUDA_DEVICE)

using HangingDeviceTest = CudaDeviceTest;

// What it has is left to the end of the process, which is one of its own: CUDA would wait for the
// kernel before it took anything back.
TEST_F(HangingDeviceTest, IsGivenUpAndNothingWaitsForIt) {
  const auto run = [&] {
    alarm(120);
    auto graph = device_->Capture([] { return absl::OkStatus(); });
    emulation::HangInKernel(1);
    Copy(Lane::kCopies, 0, host_.data(), there_.data(), 8);
    const Mark mark = MarkNow(Lane::kCopies);
    EXPECT_TRUE(device_->Memory().ok());
    EXPECT_THAT(
        Wait(*device_, mark, std::chrono::milliseconds(50)).ToString(),
        testing::HasSubstr("UNAVAILABLE: emulated sm_90 has not ended its work within 50 ms"));
    for (const absl::Status& status :
         {device_->MarkNow(Lane::kCompute).status(), device_->IsDone(mark).status(),
          device_->Synchronize(), device_->Memory().status(), device_->After(Lane::kCompute, mark),
          device_->CopyPieces(Lane::kCompute, {pieces_.array<CopyPiece>(), 1}),
          device_->Allocate(8, MemoryKind::kDevice).status(), device_->Launch(**graph),
          device_->Capture([] { return absl::OkStatus(); }).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    }
    graph->reset();
    for (Buffer* buffer : {&host_, &pieces_, &there_}) *buffer = Buffer();
    device_.reset();
    std::_Exit(HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

#endif

}  // namespace
}  // namespace baton::cuda
