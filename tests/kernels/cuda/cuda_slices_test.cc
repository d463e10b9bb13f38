#include "kernels/cuda/cuda_slices.h"

#include <gmock/gmock.h>

#include <vector>

#include "tests/kernels/cuda/cuda_device_fixture.h"

namespace baton::cuda {
namespace {

using testing::HasSubstr;

constexpr int64_t kMib = int64_t{1} << 20;

// Of a device whose own memory is 32 MiB in a piece of 36, behind which little is left.
class SlicesTest : public CudaDeviceTest {
 protected:
  void SetUp() override {
    CudaDeviceTest::SetUp();
    const int64_t taken = device_->Memory()->taken;
    if (taken > 64 * kMib) {
      GTEST_SKIP() << "pieces are larger where the device took " << taken << " B";
    }
  }
};

TEST(CudaSlicesTest, PiecesGrowWithWhatIsTakenAndAreWholeGranules) {
  EXPECT_EQ(CudaSlices::PieceFor(1, 0), 2 * kMib);
  EXPECT_EQ(CudaSlices::PieceFor(2 * kMib + 1, 0), 4 * kMib);
  EXPECT_EQ(CudaSlices::PieceFor(1, 80 * kMib), 10 * kMib);
  EXPECT_EQ(CudaSlices::PieceFor(11 * kMib, 80 * kMib), 12 * kMib);
  EXPECT_EQ(CudaSlices::PieceFor(1, 81 * kMib), 12 * kMib);
  EXPECT_EQ(CudaSlices::PieceFor(1, 1 << 30), 128 * kMib);
  EXPECT_EQ(CudaSlices::PieceFor(1, 80'000 * kMib), 256 * kMib);
  EXPECT_EQ(CudaSlices::PieceFor(CudaSlices::kLargestSlice, 0), 32 * kMib);
}

TEST_F(SlicesTest, ABufferIsCutWhereThereIsRoomAndAnOldPieceIsFilledUp) {
  const DeviceMemory before = *device_->Memory();  // `there_` is the first of a piece of 4 MiB.
  const Buffer large = Allocate(7 * kMib / 2, MemoryKind::kDevice);
  EXPECT_EQ(device_->Memory()->taken, before.taken);
  const Buffer second = Allocate(kMib, MemoryKind::kDevice);
  const int64_t taken = device_->Memory()->taken;
  EXPECT_EQ(taken - before.taken, 6 * kMib);  // An eighth of 36 MiB, in granules.
  const Buffer small = Allocate(100'000, MemoryKind::kDevice);
  EXPECT_GT(small.data(), large.data());
  EXPECT_LT(small.data(), second.data());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(small.data()) % 256, 0u);
  EXPECT_EQ(device_->Memory()->taken, taken);
}

// As a pool of K/V blocks is, behind which little is left.
TEST_F(SlicesTest, WhatHasMemoryOfItsOwnMakesNoPieceLarger) {
  const DeviceMemory before = *device_->Memory();
  const Buffer pool = Allocate(256 * kMib, MemoryKind::kDevice);
  const Buffer small = Allocate(4 * kMib, MemoryKind::kDevice);  // More than a piece has room for.
  EXPECT_EQ(device_->Memory()->taken - before.taken, (256 + 6) * kMib);  // 6: as above.
}

TEST_F(SlicesTest, APieceGoesWithItsLastBuffer) {
  const DeviceMemory before = *device_->Memory();
  Buffer first = Allocate(20 * kMib, MemoryKind::kDevice);
  EXPECT_EQ(device_->Memory()->taken - before.taken, 20 * kMib);
  {
    std::vector<Buffer> filling;
    for (int i = 0; i < 20; ++i) filling.push_back(Allocate(kMib / 2, MemoryKind::kDevice));
    Buffer last = std::move(filling.back());
    filling.clear();
    first = Buffer();
    EXPECT_GT(device_->Memory()->taken, before.taken);
  }
  EXPECT_EQ(device_->Memory()->taken, before.taken);
  EXPECT_EQ(device_->Memory()->free, before.free);
}

#if !defined(BATON_CUDA_DEVICE)
// Where the piece that would be taken is more than the device has left, a smaller one will do.
TEST_F(SlicesTest, TheLastGranulesAreGivenToo) {
  const DeviceMemory before = *device_->Memory();
  emulation::SetDeviceMemory(before.total - before.free + 2 * kMib);
  const Buffer large = Allocate(3 * kMib, MemoryKind::kDevice);  // Of the piece there is.
  const Buffer last = Allocate(2 * kMib, MemoryKind::kDevice);
  EXPECT_EQ(device_->Memory()->free, 0);
  EXPECT_THAT(device_->Allocate(2 * kMib, MemoryKind::kDevice).status().ToString(),
              HasSubstr("RESOURCE_EXHAUSTED: cannot allocate 2097152 bytes of GPU memory, of which "
                        "0 of"));
  emulation::SetDeviceMemory(before.total);
}

// The emulation tells neighbours apart, though they are one allocation for CUDA.
TEST_F(SlicesTest, NoCopyReachesBeyondItsSlice) {
  const auto copy = [&](const std::byte* from, std::byte* to, int64_t bytes) {
    Copy(Lane::kCompute, 0, from, to, bytes);
    const absl::Status status = Wait(*device_, MarkNow(Lane::kCompute), kLimit);
    const std::string message = emulation::LastMessage();
    EXPECT_EQ(status.ok(), message.empty()) << status;
    emulation::ResetDevice();
    return message;
  };
  const Buffer first = Allocate(1024, MemoryKind::kDevice);
  auto second = std::make_unique<Buffer>(Allocate(1024, MemoryKind::kDevice));
  const Buffer third = Allocate(1024, MemoryKind::kDevice);
  std::byte* const freed = second->data();
  EXPECT_EQ(copy(first.data(), second->data(), 1024), "");
  EXPECT_THAT(copy(first.data(), host_.data(), 1032), HasSubstr("outside any allocation"));
  EXPECT_THAT(copy(host_.data(), first.data(), 1032), HasSubstr("outside any allocation"));
  EXPECT_THAT(copy(host_.data(), third.data() + 2048, 8), HasSubstr("outside any allocation"));
  second.reset();
  EXPECT_THAT(copy(freed, host_.data(), 8), HasSubstr("and was freed"));
  EXPECT_EQ(copy(first.data(), third.data(), 1024), "");
}
#endif

}  // namespace
}  // namespace baton::cuda
