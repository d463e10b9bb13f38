// A GPU beside the first: what is its own, and what it does with the first.
#include <gmock/gmock.h>

#include <cstring>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/kernels/cuda/cuda_device_fixture.h"

namespace baton::cuda {
namespace {

#if !defined(BATON_CUDA_DEVICE)
// Whatever device the thread was at before a call, it goes to the one that is called.
class SecondDeviceTest : public CudaDeviceTest {
 protected:
  void SetUp() override {
    emulation::SetDevices(2);
    CudaDeviceTest::SetUp();
    auto second = MakeCudaDevice(1);
    ASSERT_TRUE(second.ok()) << second.status();
    second_ = *std::move(second);
    Leave();
  }
  void TearDown() override {
    second_.reset();
    Leave();
    CudaDeviceTest::TearDown();
    emulation::SetDevices(1);
  }
  static void Leave() { ASSERT_EQ(cudaSetDevice(0), cudaSuccess); }
  static int64_t FreeOf(int device) {
    size_t free_bytes = 0, total = 0;
    EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
    EXPECT_EQ(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
    Leave();
    return static_cast<int64_t>(free_bytes);
  }
  CopyPiece* Piece(int i, const std::byte* from, std::byte* to) {
    auto* const piece = pieces_.array<CopyPiece>() + i;
    *piece = {from, to, 8};
    return piece;
  }

  std::unique_ptr<Device> second_;
};

TEST_F(SecondDeviceTest, HasItsOwnMemory) {
  const int64_t first = FreeOf(0), second = FreeOf(1);
  {
    const auto buffer = second_->Allocate(2 << 20, MemoryKind::kDevice);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    Leave();
    EXPECT_EQ(FreeOf(1), second - (4 << 20));
    EXPECT_EQ(second_->Memory()->free, second - (4 << 20));
    Leave();
  }
  EXPECT_EQ(FreeOf(1), second);
  EXPECT_EQ(FreeOf(0), first);
}

TEST_F(SecondDeviceTest, EveryCallGoesToIt) {
  const auto there = second_->Allocate(64, MemoryKind::kDevice);
  ASSERT_TRUE(there.ok());
  const auto calls = [&](auto call) {
    Leave();
    const absl::Status status = call();
    EXPECT_TRUE(status.ok()) << status;
  };
  std::memset(host_.data(), 3, 16);
  Mark copied, computed;
  calls([&] {
    return second_->CopyPieces(Lane::kCopies, {Piece(0, host_.data(), there->data()), 1});
  });
  calls([&] {
    const auto mark = second_->MarkNow(Lane::kCopies);
    copied = mark.value_or(Mark());
    return mark.status();
  });
  calls([&] { return second_->After(Lane::kCompute, copied); });
  calls([&] {
    FoldPartialsArgs fold{.num_tokens = 1, .dim = 4, .out = there->floats(DType::kF32, 8)};
    fold.parts[0] = there->floats(DType::kF32).f32();
    return second_->ops().FoldPartials(fold);
  });
  calls([&] {
    auto* const row = there->array<int32_t>(48);  // Of padding.
    return second_->library().AdvanceStep({.num_seqs = 1,
                                           .block_size = 1,
                                           .tokens = row,
                                           .positions = row + 1,
                                           .seq_lens = row + 2,
                                           .slot_mapping = there->array<int64_t>(32)});
  });
  std::unique_ptr<Graph> graph;
  calls([&] {
    auto made = second_->Capture([&] {
      return second_->CopyPieces(Lane::kCompute, {Piece(1, there->data(), host_.data() + 64), 1});
    });
    if (made.ok()) graph = *std::move(made);
    return made.status();
  });
  calls([&] { return second_->Launch(*graph); });
  calls([&] { return second_->Synchronize(); });
  EXPECT_EQ(host_.data()[64], std::byte{3});
  calls([&] {
    const auto mark = second_->MarkNow(Lane::kCompute);
    computed = mark.value_or(Mark());
    return mark.status();
  });
  calls([&] { return Wait(*second_, computed, kLimit); });
  graph.reset();
}

// Of the first one's work nothing is waited for, and its loss is not this one's.
TEST_F(SecondDeviceTest, IsLostAlone) {
  emulation::LoseInKernel(1);
  ASSERT_TRUE(
      second_->CopyPieces(Lane::kCompute, {Piece(0, host_.data(), host_.data() + 8), 1}).ok());
  const Mark mark = *second_->MarkNow(Lane::kCompute);
  Leave();
  EXPECT_EQ(second_->Synchronize().code(), absl::StatusCode::kUnavailable);
  Leave();
  EXPECT_EQ(second_->IsDone(mark).status().code(), absl::StatusCode::kUnavailable);
  Copy(Lane::kCompute, 1, host_.data(), there_.data(), 8);
  Await(MarkNow(Lane::kCompute));
  emulation::ResetDevice();
}

TEST_F(SecondDeviceTest, WaitsForAMarkOfTheFirstOnlyWhereItIsTold) {
  ASSERT_TRUE(second_->EnablePeer(*device_).ok());
  Leave();
  int stale = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const bool waits = seed % 2 == 0;
    emulation::SetSeed(seed);
    std::memset(host_.data(), 1, 8);
    std::memset(host_.data() + 8, 2, 8);
    Copy(Lane::kCompute, 0, host_.data(), there_.data(), 8);
    Await(MarkNow(Lane::kCompute));
    Copy(Lane::kCompute, 1, host_.data() + 8, there_.data(), 8);
    const Mark written = MarkNow(Lane::kCompute);
    if (waits) {
      ASSERT_TRUE(second_->AfterPeer(Lane::kCompute, *device_, written).ok());
    }
    Leave();
    // By the second, of the first one's memory.
    auto* const piece = Piece(2, there_.data(), host_.data() + 16);
    ASSERT_TRUE(second_->CopyPieces(Lane::kCompute, {piece, 1}).ok());
    ASSERT_TRUE(Wait(*second_, *second_->MarkNow(Lane::kCompute), kLimit).ok());
    if (waits) {
      EXPECT_EQ(host_.data()[16], std::byte{2}) << seed;
    }
    stale += host_.data()[16] == std::byte{1};
    Await(written);
  }
  EXPECT_GT(stale, 3);
}

// The first writes, the second goes on from there, and the first from there again.
TEST_F(SecondDeviceTest, TakesPartInAGraphOfTheFirstWhereItIsTold) {
  ASSERT_TRUE(second_->EnablePeer(*device_).ok());
  std::byte* const host = host_.data();
  auto* const write = Piece(0, host, there_.data());
  auto* const go_on = Piece(1, there_.data(), there_.data() + 8);
  auto* const read = Piece(2, there_.data() + 8, host + 8);
  for (const bool waits : {true, false}) {
    Leave();
    auto graph = device_->Capture([&]() -> absl::Status {
      Mark begin = *device_->MarkNow(Lane::kCompute);
      if (waits) {
        RETURN_IF_ERROR(device_->CopyPieces(Lane::kCompute, {write, 1}));
        begin = *device_->MarkNow(Lane::kCompute);
      }
      const auto end = second_->Join(*device_, begin, [&] {
        return second_->CopyPieces(Lane::kCompute, {go_on, 1});
      });
      RETURN_IF_ERROR(end.status());
      if (!waits) RETURN_IF_ERROR(device_->CopyPieces(Lane::kCompute, {write, 1}));
      RETURN_IF_ERROR(device_->AfterPeer(Lane::kCompute, *second_, *end));
      RETURN_IF_ERROR(device_->CopyPieces(Lane::kCompute, {read, 1}));
      // Where a thread was last is no matter.
      return second_->Memory().status();
    });
    ASSERT_TRUE(graph.ok()) << graph.status();
    int stale = 0;
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      emulation::SetSeed(seed);
      std::memset(host, static_cast<int>(seed), 8);
      ASSERT_TRUE(device_->Launch(**graph).ok());
      Await(MarkNow(Lane::kCompute));
      stale += host[8] != static_cast<std::byte>(seed);
    }
    EXPECT_EQ(stale > 3, !waits) << stale;
    EXPECT_EQ(stale == 0, waits) << stale;
    // Its own lane is as before.
    ASSERT_TRUE(second_->CopyPieces(Lane::kCompute, {go_on, 1}).ok());
    ASSERT_TRUE(Wait(*second_, *second_->MarkNow(Lane::kCompute), kLimit).ok());
  }
}

TEST_F(SecondDeviceTest, ACaptureThatItIsLeftInIsRefused) {
  ASSERT_TRUE(second_->EnablePeer(*device_).ok());
  auto* const piece = Piece(0, host_.data(), host_.data() + 8);
  const auto join = [&](const absl::Status& status) {
    return device_->Capture([&] {
      const Mark begin = *device_->MarkNow(Lane::kCompute);
      return second_->Join(*device_, begin, [&] {
        EXPECT_TRUE(second_->CopyPieces(Lane::kCompute, {piece, 1}).ok());
        return status;
      }).status();
    }).status();
  };
  EXPECT_EQ(join(absl::InternalError("no")), absl::InternalError("no"));
  EXPECT_THAT(std::string(join(absl::OkStatus()).message()),
              testing::HasSubstr("cudaStreamEndCapture"));
  // Both go on.
  ASSERT_TRUE(second_->CopyPieces(Lane::kCompute, {piece, 1}).ok());
  ASSERT_TRUE(Wait(*second_, *second_->MarkNow(Lane::kCompute), kLimit).ok());
  Await(MarkNow(Lane::kCompute));
}

TEST_F(SecondDeviceTest, IsNoPeerWithoutAWay) {
  ASSERT_TRUE(second_->EnablePeer(*device_).ok());
  ASSERT_TRUE(second_->EnablePeer(*device_).ok());  // Another group's.
  emulation::SetDevices(2, /*peers=*/false);
  Leave();
  EXPECT_EQ(second_->EnablePeer(*device_),
            absl::FailedPreconditionError("cuda:1 cannot reach the memory of cuda:0: see "
                                          "nvidia-smi topo -p2p r for GPUs that can, or use --tp "
                                          "1"));
}

#endif

}  // namespace
}  // namespace baton::cuda
