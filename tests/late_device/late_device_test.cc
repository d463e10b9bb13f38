// The device that tests rely on keeps its own promises.
#include "tests/late_device/late_device.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <vector>

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

// Also what it was told by arrays of the caller's, which are gone by then.
TEST(LateDeviceTest, TheOperatorLibraryRunsLateAsWell) {
  LateDevice device({.only_when_asked = true});
  const Buffer memory = *device.Allocate(128, MemoryKind::kDevice);
  device.Fill(memory.data(), 64, std::byte{5});
  auto* const row = memory.array<int32_t>(64);  // Of padding.
  ASSERT_TRUE(device.library()
                  .AdvanceStep({.num_seqs = 1,
                                .block_size = 1,
                                .tokens = row,
                                .positions = row + 1,
                                .seq_lens = row + 2,
                                .slot_mapping = memory.array<int64_t>(80)})
                  .ok());
  const Buffer pair = *device.Allocate(sizeof(BlockPair), MemoryKind::kPinned);
  *pair.array<BlockPair>() = {.source = 0, .destination = 1};
  {
    const std::vector<CachePlane> planes = {{.data = memory.data(),
                                             .num_blocks = 2,
                                             .num_heads = 1,
                                             .block_size = 1,
                                             .dim = 8,
                                             .block_stride = 8}};
    device.Fill(memory.data() + 32, 32, std::byte{6});
    ASSERT_TRUE(device.library()
                    .CopyBlocks({.planes = planes.data(),
                                 .num_planes = 1,
                                 .pairs = pair.array<BlockPair>(),
                                 .num_pairs = 1})
                    .ok());
  }
  EXPECT_EQ(device.Read(memory.data() + 32, 1)[0], std::byte{6});
  EXPECT_EQ(device.Read(memory.data() + 64, 1)[0], std::byte{0xff});
  ASSERT_TRUE(device.Synchronize().ok());
  EXPECT_EQ(device.Read(memory.data() + 32, 32), std::vector<std::byte>(32, std::byte{5}));
  EXPECT_EQ(device.Read(memory.data() + 64, 8), std::vector<std::byte>(8));
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

TEST(LateDeviceTest, APeerIsWaitedForOnlyWhereItIsTold) {
  for (const bool told : {false, true}) {
    LateDevice first({.only_when_asked = true}), second({});
    ASSERT_TRUE(second.EnablePeer(first).ok());
    const Buffer there = *first.Allocate(64, MemoryKind::kDevice);
    const Buffer pinned = *first.Allocate(192, MemoryKind::kPinned);
    auto* const pieces = pinned.array<CopyPiece>(128);
    std::memset(pinned.data(), 2, 64);
    pieces[0] = {.from = pinned.data(), .to = there.data(), .bytes = 64};
    pieces[1] = {.from = there.data(), .to = pinned.data() + 64, .bytes = 64};
    ASSERT_TRUE(first.CopyPieces(Lane::kCompute, {pieces, 1}).ok());
    const Mark written = *first.MarkNow(Lane::kCompute);
    if (told) {
      ASSERT_TRUE(second.AfterPeer(Lane::kCompute, first, written).ok());
    }
    ASSERT_TRUE(second.CopyPieces(Lane::kCompute, {pieces + 1, 1}).ok());
    const Mark read = *second.MarkNow(Lane::kCompute);
    if (told) {
      for (int i = 0; i < 100; ++i) EXPECT_FALSE(*second.IsDone(read));
      ASSERT_TRUE(Wait(first, written, std::chrono::hours(1)).ok());
    }
    ASSERT_TRUE(Wait(second, read, std::chrono::hours(1)).ok());
    EXPECT_EQ(pinned.data()[64], told ? std::byte{2} : std::byte{0xff});
    ASSERT_TRUE(first.Synchronize().ok());
  }
}

TEST(LateDeviceTest, AnothersMemoryIsOutOfReach) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto read = [] {
    LateDevice first({}), second({});
    const Buffer there = *first.Allocate(64, MemoryKind::kDevice);
    const Buffer pinned = *second.Allocate(128, MemoryKind::kPinned);
    CopyPiece* const piece = PieceOf(pinned, there.data(), pinned.data() + 64, 64);
    EXPECT_TRUE(second.CopyPieces(Lane::kCompute, {piece, 1}).ok());
    EXPECT_TRUE(second.Synchronize().ok());
  };
  EXPECT_DEATH(read(), "");
}

TEST(LateDeviceTest, AGraphDoesLaterAndOftenWhatWasEnqueuedOnce) {
  LateDevice device({.only_when_asked = true, .graphs = true});
  const Buffer pinned = *device.Allocate(256, MemoryKind::kPinned);
  std::memset(pinned.data(), 0, 128);
  CopyPiece* const piece = pinned.array<CopyPiece>(128);
  *piece = {.from = pinned.data(), .to = pinned.data() + 64, .bytes = 64};
  const auto graph = device.Capture([&]() -> absl::Status {
    // None of them can be in a graph.
    EXPECT_FALSE(device.After(Lane::kCompute, Mark()).ok());
    EXPECT_FALSE(device.IsDone(Mark()).ok());
    EXPECT_FALSE(device.Synchronize().ok());
    EXPECT_FALSE(device.Allocate(1, MemoryKind::kPinned).ok());
    EXPECT_TRUE(device.MarkNow(Lane::kTransfer).ok());
    return device.CopyPieces(Lane::kCompute, {piece, 1});
  });
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_TRUE(device.idle());
  for (const int value : {1, 2}) {
    std::memset(pinned.data(), value, 64);
    ASSERT_TRUE(device.Launch(**graph).ok());
    EXPECT_FALSE(device.idle());
    ASSERT_TRUE(Wait(device, *device.MarkNow(Lane::kCompute), std::chrono::hours(1)).ok());
    EXPECT_EQ(pinned.data()[64], static_cast<std::byte>(value));
  }
  EXPECT_EQ(device.num_launches(), 2);
  device.LoseAfter(0);
  EXPECT_EQ(device.Launch(**graph).code(), absl::StatusCode::kUnavailable);
}

// Two devices, each with a piece that copies what the other's copies leave.
class LateGraphTest : public testing::Test {
 protected:
  explicit LateGraphTest() {
    EXPECT_TRUE(second_.EnablePeer(first_).ok());
    std::memset(pinned_.data(), 0, 256);
    pieces_[0] = {.from = pinned_.data(), .to = pinned_.data() + 64, .bytes = 64};
    pieces_[1] = {.from = pinned_.data() + 64, .to = pinned_.data() + 128, .bytes = 64};
    pieces_[2] = {.from = pinned_.data() + 128, .to = pinned_.data() + 192, .bytes = 64};
  }
  absl::Status Copy(LateDevice& device, int piece) {
    return device.CopyPieces(Lane::kCompute, {pieces_ + piece, 1});
  }
  // The first copies, the second goes on from there, and the first from there again.
  absl::StatusOr<std::unique_ptr<Graph>> CaptureAll() {
    return first_.Capture([&]() -> absl::Status {
      EXPECT_TRUE(Copy(first_, 0).ok());
      const Mark begin = *first_.MarkNow(Lane::kCompute);
      const auto end = second_.Join(first_, begin, [&] { return Copy(second_, 1); });
      EXPECT_TRUE(end.ok()) << end.status();
      // It is not yet its own again.
      EXPECT_FALSE(Copy(second_, 1).ok());
      EXPECT_TRUE(first_.AfterPeer(Lane::kCompute, second_, *end).ok());
      return Copy(first_, 2);
    });
  }
  void Await(LateDevice& device) {
    ASSERT_TRUE(Wait(device, *device.MarkNow(Lane::kCompute), std::chrono::hours(1)).ok());
  }

  LateDevice first_{{.graphs = true}}, second_{{.only_when_asked = true, .graphs = true}};
  const Buffer pinned_ = *first_.Allocate(512, MemoryKind::kPinned);
  CopyPiece* const pieces_ = pinned_.array<CopyPiece>(256);
};

TEST_F(LateGraphTest, ALaneOfAnotherTakesPartWhereItWasTold) {
  const auto graph = CaptureAll();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_TRUE(first_.idle() && second_.idle());
  for (const int value : {1, 2}) {
    std::memset(pinned_.data(), value, 64);
    ASSERT_TRUE(first_.Launch(**graph).ok());
    const Mark end = *first_.MarkNow(Lane::kCompute);
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(*first_.IsDone(end));  // The second is not asked.
    EXPECT_FALSE(second_.idle());
    // Its own lane knows nothing of the graph.
    ASSERT_TRUE(Copy(second_, 1).ok());
    Await(second_);
    while (!second_.idle()) {
      // The first's part may end after all that the second was asked for: ask for more.
      ASSERT_TRUE(Copy(second_, 1).ok());
      Await(second_);
    }
    Await(first_);
    EXPECT_EQ(pinned_.data()[192], static_cast<std::byte>(value));
  }
  EXPECT_FALSE(second_.Launch(**graph).ok());
}

TEST_F(LateGraphTest, AMarkOfAGraphIsOfNoUseOutside) {
  Mark inside;
  const auto graph = first_.Capture([&]() -> absl::Status {
    inside = *first_.MarkNow(Lane::kCompute);
    EXPECT_FALSE(second_.AfterPeer(Lane::kCompute, first_, inside).ok());
    const Mark outside = *second_.MarkNow(Lane::kCompute);
    EXPECT_FALSE(first_.AfterPeer(Lane::kCompute, second_, outside).ok());
    return absl::OkStatus();
  });
  ASSERT_TRUE(graph.ok());
  EXPECT_FALSE(second_.AfterPeer(Lane::kCompute, first_, inside).ok());
  EXPECT_FALSE(second_.Join(first_, inside, [] { return absl::OkStatus(); }).ok());
}

TEST_F(LateGraphTest, OneThatIsNotWaitedForSpoilsTheCapture) {
  for (const bool waits_early : {false, true}) {
    const auto graph = first_.Capture([&]() -> absl::Status {
      const Mark begin = *first_.MarkNow(Lane::kCompute);
      const auto end = second_.Join(first_, begin, [&]() -> absl::Status {
        EXPECT_TRUE(Copy(second_, 0).ok());
        if (waits_early) {
          const Mark amid = *second_.MarkNow(Lane::kCompute);
          EXPECT_TRUE(first_.AfterPeer(Lane::kCompute, second_, amid).ok());
        }
        return Copy(second_, 1);
      });
      return end.status();
    });
    EXPECT_EQ(graph.status().message(), "late: the capture has not waited for device 1");
    ASSERT_TRUE(Copy(second_, 0).ok());  // Whatever became of it, the lane is free again.
    Await(second_);
  }
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
