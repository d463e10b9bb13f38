#pragma once

#include <chrono>
#include <memory>

#include "kernels/cuda/cuda_device.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace baton::cuda {

inline constexpr auto kLimit = std::chrono::seconds(60);

class CudaDeviceTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    auto device = MakeCudaDevice(0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    host_ = Allocate(4096, MemoryKind::kPinned);
    pieces_ = Allocate(64 * sizeof(CopyPiece), MemoryKind::kPinned);
    there_ = Allocate(4096, MemoryKind::kDevice);
  }
  Buffer Allocate(int64_t bytes, MemoryKind kind) {
    auto buffer = device_->Allocate(bytes, kind);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *std::move(buffer);
  }
  // By the i-th descriptor, which must not be used again before its copy has ended.
  void Copy(Lane lane, int i, const std::byte* from, std::byte* to, int64_t bytes) {
    auto* piece = pieces_.array<CopyPiece>() + i;
    *piece = {from, to, bytes};
    ASSERT_TRUE(device_->CopyPieces(lane, {piece, 1}).ok());
  }
  Mark MarkNow(Lane lane) {
    const auto mark = device_->MarkNow(lane);
    EXPECT_TRUE(mark.ok()) << mark.status();
    return *mark;
  }
  void Await(Mark mark) {
    const absl::Status status = Wait(*device_, mark, kLimit);
    ASSERT_TRUE(status.ok()) << status;
  }

  std::unique_ptr<Device> device_;
  Buffer host_, pieces_, there_;
};

}  // namespace baton::cuda
