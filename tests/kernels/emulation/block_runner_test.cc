#include "kernels/emulation/block_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "kernels/emulation/emulator.h"
#include "tests/kernels/emulation/detector_kernels.h"

namespace baton::emulation {
namespace {

using detectors::Fault;
using testing::HasSubstr;

// What running a kernel with two blocks says; empty if nothing.
std::string MessageOf(Fault fault, uint64_t seed, float* host_data = nullptr) {
  ResetDevice();
  SetSeed(seed);
  void *data = nullptr, *counter = nullptr;
  constexpr size_t kBytes = (64 + 2 * 2) * sizeof(float);
  EXPECT_EQ(cudaMalloc(&data, kBytes), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&counter, sizeof(uint32_t)), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(counter, 0, sizeof(uint32_t), nullptr), cudaSuccess);
  EXPECT_EQ(
      detectors::RunFault({fault, host_data == nullptr ? static_cast<float*>(data) : host_data,
                           static_cast<uint32_t*>(counter)},
                          2, nullptr),
      cudaSuccess);
  const cudaError_t error = cudaDeviceSynchronize();
  std::string message = LastMessage();
  EXPECT_EQ(error, message.empty() ? cudaSuccess : cudaErrorLaunchFailure);
  // A failed device fails every call.
  EXPECT_EQ(cudaGetLastError(), error);
  ResetDevice();
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaFree(counter), cudaSuccess);
  return message;
}

struct Detection {
  Fault fault;
  const char* name;
  std::vector<std::string> says;
};

class DetectorTest : public testing::TestWithParam<Detection> {};

TEST_P(DetectorTest, FindsItsFaultInAnyOrderOfThreads) {
  float host[256] = {};
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const std::string message = MessageOf(
        GetParam().fault, seed, GetParam().fault == Fault::kHostPointer ? host : nullptr);
    for (const std::string& text : GetParam().says) EXPECT_THAT(message, HasSubstr(text)) << seed;
    EXPECT_THAT(message, HasSubstr("FaultKernel"));
    if (GetParam().fault == Fault::kSpins) break;  // It takes a second.
    if (HasFailure()) break;
  }
}

const Detection kDetections[] = {
    {Fault::kNoBarrier, "NoBarrier", {"race", "shared byte", "detector_kernels.cu:"}},
    {Fault::kNoWarpBarrier, "NoWarpBarrier", {"race", "shared byte"}},
    {Fault::kOverwrites, "Overwrites", {"race", "shared byte"}},
    {Fault::kUninitialised, "Uninitialised", {"reads uninitialised shared byte"}},
    {Fault::kBeyondShared, "BeyondShared", {"outside shared memory"}},
    {Fault::kTooMuchShared, "TooMuchShared", {"was launched with 1280"}},
    {Fault::kBeyondGlobal, "BeyondGlobal", {"outside any allocation", "has 272 B"}},
    {Fault::kMisalignedGlobal, "MisalignedGlobal", {"misaligned"}},
    {Fault::kMisalignedShared, "MisalignedShared", {"misaligned"}},
    {Fault::kHostPointer, "HostPointer", {"not the device's"}},
    {Fault::kSplitBarrier, "SplitBarrier", {"barrier divergence"}},
    {Fault::kEarlyExit, "EarlyExit", {"barrier divergence"}},
    {Fault::kSplitWarp, "SplitWarp", {"warp divergence"}},
    {Fault::kForeignMask, "ForeignMask", {"not in its own mask"}},
    {Fault::kAbsentLane, "AbsentLane", {"warp divergence"}},
    {Fault::kShuffleOutside, "ShuffleOutside", {"not in the mask"}},
    {Fault::kCopyNotWaited, "CopyNotWaited", {"reads shared byte", "in flight"}},
    {Fault::kCopyNotCommitted, "CopyNotCommitted", {"never committed"}},
    {Fault::kCopyNeverWaited, "CopyNeverWaited", {"never waited for"}},
    {Fault::kCopyOfOther, "CopyOfOther", {"shared byte"}},
    {Fault::kCopyOverwritten, "CopyOverwritten", {"writes shared byte", "in flight"}},
    {Fault::kBlocksWriteOne, "BlocksWriteOne", {"race between blocks", "written by"}},
    {Fault::kBlockReadsOther, "BlockReadsOther", {"race between blocks"}},
    {Fault::kBlockOverwritesRead, "BlockOverwritesRead", {"race between blocks"}},
    {Fault::kThreadsWriteOne, "ThreadsWriteOne", {"race: ", "written by"}},
    {Fault::kLastBlockNoFence, "LastBlockNoFence", {"race between blocks"}},
    {Fault::kLastBlockFencesFirst, "LastBlockFencesFirst", {"race between blocks"}},
    {Fault::kLastBlockUnknown, "LastBlockUnknown", {"race between blocks"}},
    {Fault::kLastBlockReadsAtOnce, "LastBlockReadsAtOnce", {"race between blocks"}},
    {Fault::kLastBlockOtherThread, "LastBlockOtherThread", {"race between blocks"}},
    {Fault::kPlainAdd, "PlainAdd", {"race between blocks"}},
    {Fault::kSpins, "Spins", {"50 million accesses"}},
    {Fault::kSharedPart, "SharedPart", {"race: ", "shared byte 8 "}},
    {Fault::kGlobalPart, "GlobalPart", {"race: ", "offset 8 "}},
};
INSTANTIATE_TEST_SUITE_P(Faults, DetectorTest, testing::ValuesIn(kDetections),
                         [](const auto& info) { return std::string(info.param.name); });

// When each of 4 * 64 threads came by.
std::vector<uint32_t> OrderOf(uint64_t seed) {
  ResetDevice();
  SetSeed(seed);
  uint32_t *counter = nullptr, *order = nullptr;
  EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&counter), 4), cudaSuccess);
  EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&order), 256 * 4), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(counter, 0, 4, nullptr), cudaSuccess);
  EXPECT_EQ(detectors::RunOrder(counter, order, nullptr), cudaSuccess);
  std::vector<uint32_t> out(256);
  EXPECT_EQ(cudaMemcpy(out.data(), order, 256 * 4, cudaMemcpyDeviceToHost), cudaSuccess)
      << LastMessage();
  EXPECT_EQ(cudaFree(counter), cudaSuccess);
  EXPECT_EQ(cudaFree(order), cudaSuccess);
  return out;
}

TEST(BlockRunnerTest, ASeedGivesBlocksAndThreadsAnOrderOfItsOwn) {
  std::set<std::vector<uint32_t>> blocks, threads;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto order = OrderOf(seed);
    EXPECT_EQ(OrderOf(seed), order);
    std::vector<uint32_t> of_blocks, of_threads;
    for (int b = 0; b < 4; ++b) of_blocks.push_back(order[64 * b] / 64);
    for (int t = 0; t < 64; ++t) of_threads.push_back(order[t] % 64);
    blocks.insert(of_blocks);
    threads.insert(of_threads);
  }
  EXPECT_GT(blocks.size(), 5u);  // Of 24.
  EXPECT_EQ(threads.size(), 20u);
}

TEST(BlockRunnerTest, SaysNothingOfCorrectKernels) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    for (const Fault fault : {Fault::kNone, Fault::kWarpBarrier, Fault::kLastBlockSums,
                              Fault::kSharedOtherPart, Fault::kGlobalOtherPart}) {
      ASSERT_EQ(MessageOf(fault, seed), "") << seed;
    }
  }
}

}  // namespace
}  // namespace baton::emulation
