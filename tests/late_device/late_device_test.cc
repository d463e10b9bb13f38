// The device that tests rely on keeps its own promises.
#include "tests/late_device/late_device.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

namespace baton {
namespace {

CopyPiece* PieceOf(const Buffer& pinned, const std::byte* from, std::byte* to, int64_t bytes) {
  auto* const piece = pinned.array<CopyPiece>();
  *piece = {.from = from, .to = to, .bytes = bytes};
  return piece;
}

TEST(LateDeviceTest, TheHostCannotTouchTheDevicesMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // The device has a thread.
  LateDevice device({});
  const Buffer memory = *device.Allocate(64, MemoryKind::kDevice);
  EXPECT_DEATH(std::memset(memory.data(), 0, 1), "");
  EXPECT_EQ(device.Read(memory.data(), 64), std::vector<std::byte>(64, std::byte{0xff}));
}

TEST(LateDeviceTest, NothingHappensBeforeSomebodyAsks) {
  LateDevice device({.only_when_asked = true});
  const Buffer memory = *device.Allocate(64, MemoryKind::kDevice);
  const Buffer pinned = *device.Allocate(128, MemoryKind::kPinned);
  CopyPiece* const piece = PieceOf(pinned, pinned.data() + 64, memory.data(), 64);
  ASSERT_TRUE(device.CopyPieces(Lane::kCompute, {piece, 1}).ok());
  const Mark mark = *device.MarkNow(Lane::kCompute);
  EXPECT_FALSE(device.idle());
  std::memset(pinned.data() + 64, 5, 64);  // Read when the copy runs.
  ASSERT_TRUE(Wait(device, mark, std::chrono::hours(1)).ok());
  EXPECT_TRUE(device.idle());
  EXPECT_EQ(device.Read(memory.data(), 64), std::vector<std::byte>(64, std::byte{5}));
}

TEST(LateDeviceTest, ALaneWaitsForAnotherOnlyWhenTold) {
  int overtaken = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (const bool told : {false, true}) {
      LateDevice device({.seed = seed, .only_when_asked = true});
      const Buffer pinned = *device.Allocate(256, MemoryKind::kPinned);
      std::memset(pinned.data(), 1, 256);
      std::memset(pinned.data() + 64, 2, 64);
      auto* const pieces = pinned.array<CopyPiece>(192);
      pieces[0] = {.from = pinned.data() + 64, .to = pinned.data(), .bytes = 64};
      pieces[1] = {.from = pinned.data(), .to = pinned.data() + 128, .bytes = 64};
      ASSERT_TRUE(device.CopyPieces(Lane::kCopies, {pieces, 1}).ok());
      if (told) {
        ASSERT_TRUE(device.After(Lane::kCompute, *device.MarkNow(Lane::kCopies)).ok());
      }
      ASSERT_TRUE(device.CopyPieces(Lane::kCompute, {pieces + 1, 1}).ok());
      ASSERT_TRUE(device.Synchronize().ok());
      const bool early = pinned.data()[128] == std::byte{1};
      EXPECT_FALSE(told && early) << seed;
      overtaken += early ? 1 : 0;
    }
  }
  EXPECT_GT(overtaken, 10);
}

TEST(LateDeviceTest, FailsHangsAndIsLostWhenTold) {
  LateDevice device({.only_when_asked = true});
  device.FailNext("SelectRows", 1);
  const SelectRowsArgs nothing{.dim = 1};
  EXPECT_TRUE(device.ops().SelectRows(nothing).ok());
  EXPECT_EQ(device.ops().SelectRows(nothing).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(device.ops().SelectRows(nothing).ok());
  device.HangAfter(1);
  const Mark mark = *device.MarkNow(Lane::kCompute);
  EXPECT_EQ(Wait(device, mark, std::chrono::milliseconds(20)).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(device.num_works(), 1);
  device.LoseAfter(0);
  EXPECT_EQ(device.MarkNow(Lane::kCompute).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(device.Synchronize().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(device.idle());
}

}  // namespace
}  // namespace baton
