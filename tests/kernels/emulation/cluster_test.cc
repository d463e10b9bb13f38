#include "kernels/emulation/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/emulation/emulator.h"
#include "tests/kernels/emulation/cluster_kernels.h"

namespace baton::emulation {
namespace {

using detectors::ClusterFault;
using detectors::kClusterThreads;

constexpr int kBlocks = 8;

struct ClusterResult {
  cudaError_t launched;
  std::string message;
  std::vector<float> out;
};

ClusterResult RunClusters(ClusterFault fault, int cluster, uint64_t seed,
                          const char* gpu = "sm90") {
  ResetDevice();
  SetSeed(seed);
  SetGpu(gpu);
  ClusterResult result{cudaSuccess, "", std::vector<float>(kBlocks * kClusterThreads)};
  const size_t bytes = result.out.size() * sizeof(float);
  void* out = nullptr;
  EXPECT_EQ(cudaMalloc(&out, bytes), cudaSuccess);
  result.launched =
      detectors::RunClusterFault(fault, kBlocks, cluster, static_cast<float*>(out), nullptr);
  cudaDeviceSynchronize();
  result.message = LastMessage();
  ResetDevice();
  SetGpu("sm90");
  EXPECT_EQ(cudaMemcpy(result.out.data(), out, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(cudaFree(out), cudaSuccess);
  return result;
}

TEST(ClusterTest, BlocksStoreInEachOthersSharedMemory) {
  for (const int cluster : {1, 2, 4, 8}) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      const ClusterResult result = RunClusters(ClusterFault::kNone, cluster, seed);
      ASSERT_EQ(result.launched, cudaSuccess);
      ASSERT_EQ(result.message, "");
      for (int block = 0; block < kBlocks; ++block) {
        const int teller = (block % cluster + cluster - 1) % cluster;
        for (int i = 0; i < kClusterThreads; ++i) {
          ASSERT_EQ(result.out[block * kClusterThreads + i], 4 * (100 * teller + i)) << block;
        }
      }
    }
  }
}

TEST(ClusterTest, WhatNoGpuLaunchesIsRefused) {
  const auto launched = [](int cluster, const char* gpu = "sm90") {
    return RunClusters(ClusterFault::kNone, cluster, 1, gpu).launched;
  };
  EXPECT_EQ(launched(8), cudaSuccess);
  EXPECT_EQ(launched(3), cudaErrorInvalidClusterSize);  // Of 8 blocks.
  EXPECT_EQ(launched(16), cudaErrorInvalidClusterSize);
  EXPECT_EQ(launched(0), cudaErrorInvalidClusterSize);
  EXPECT_EQ(launched(2, "sm80"), cudaErrorInvalidClusterSize);
}

struct ClusterDetection {
  ClusterFault fault;
  const char* name;
  std::vector<std::string> says;
};

class ClusterDetectorTest : public testing::TestWithParam<ClusterDetection> {};

TEST_P(ClusterDetectorTest, FindsItsFaultInAnyOrderOfThreads) {
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    const std::string message = RunClusters(GetParam().fault, 4, seed).message;
    for (const std::string& text : GetParam().says) {
      ASSERT_THAT(message, testing::HasSubstr(text)) << seed;
    }
    ASSERT_THAT(message, testing::HasSubstr("ClusterKernel"));
  }
}

const ClusterDetection kClusterFaults[] = {
    {ClusterFault::kNoStartBarrier,
     "NoStartBarrier",
     {"of which no cluster barrier says that it has started"}},
    {ClusterFault::kNoBarrier, "NoBarrier", {"race: ", "of its cluster's block"}},
    {ClusterFault::kBlockBarrier, "BlockBarrier", {"race: ", "of its cluster's block"}},
    {ClusterFault::kStoresArrived, "StoresArrived", {"race: ", "of its cluster's block"}},
    {ClusterFault::kStoresLast, "StoresLast", {"stores at cluster_kernels.cu:", "ended"}},
    {ClusterFault::kTwoStoreOne, "TwoStoreOne", {"race: ", "writes shared byte"}},
    {ClusterFault::kBeyondShared, "BeyondShared", {"outside shared memory"}},
    {ClusterFault::kNoSuchBlock, "NoSuchBlock", {"to block 4 of a cluster of 4"}},
    {ClusterFault::kWaitsUnarrived, "WaitsUnarrived", {"where it has not arrived"}},
    {ClusterFault::kArrivesTwice, "ArrivesTwice", {"before it has waited at the last one"}},
    {ClusterFault::kExitsBefore, "ExitsBefore", {"cluster barrier divergence: "}},
    {ClusterFault::kExitsUnwaited, "ExitsUnwaited", {"cluster barrier"}},
};
INSTANTIATE_TEST_SUITE_P(Faults, ClusterDetectorTest, testing::ValuesIn(kClusterFaults),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace baton::emulation
