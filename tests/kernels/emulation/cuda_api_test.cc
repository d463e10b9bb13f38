#include "kernels/emulation/cuda_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/emulation/emulator.h"
#include "tests/kernels/emulation/detector_kernels.h"

namespace baton::emulation {
namespace {

class CudaApiTest : public testing::Test {
 protected:
  void SetUp() override {
    ResetDevice();
    SetDeviceMemory(1 << 20);
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&value_), 4), cudaSuccess);
    ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&pinned_), 4, cudaHostAllocDefault),
              cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&a_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&b_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), cudaSuccess);
  }
  void TearDown() override {
    ResetDevice();
    EXPECT_EQ(cudaFree(value_), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(a_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(b_), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    SetDeviceMemory(size_t{8} << 30);
  }
  float Value() {
    float x = 0;
    EXPECT_EQ(cudaMemcpy(&x, value_, 4, cudaMemcpyDeviceToHost), cudaSuccess) << LastMessage();
    return x;
  }
  void Zero() {
    ASSERT_EQ(cudaMemsetAsync(value_, 0, 4, a_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  }
  cudaGraph_t Record(const std::function<void()>& work) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(a_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    work();
    EXPECT_EQ(cudaStreamEndCapture(a_, &graph), cudaSuccess);
    return graph;
  }

  float* value_ = nullptr;
  float* pinned_ = nullptr;
  cudaStream_t a_ = nullptr, b_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

TEST_F(CudaApiTest, AMissingWaitForAnEventShowsInSomeOrder) {
  int stale_without = 0, stale_with = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    for (const bool waits : {false, true}) {
      SetSeed(seed);
      Zero();
      *pinned_ = 7;
      ASSERT_EQ(detectors::RunAdd(value_, 5, a_), cudaSuccess);
      ASSERT_EQ(cudaEventRecord(event_, a_), cudaSuccess);
      if (waits) {
        ASSERT_EQ(cudaStreamWaitEvent(b_, event_), cudaSuccess);
      }
      ASSERT_EQ(cudaMemcpyAsync(pinned_, value_, 4, cudaMemcpyDeviceToHost, b_), cudaSuccess);
      EXPECT_EQ(*pinned_, 7);  // Nothing has run yet.
      ASSERT_EQ(cudaStreamSynchronize(b_), cudaSuccess);
      (waits ? stale_with : stale_without) += *pinned_ != 5;
    }
  }
  EXPECT_GT(stale_without, 5);
  EXPECT_LT(stale_without, 35);
  EXPECT_EQ(stale_with, 0);
}

TEST_F(CudaApiTest, AnEventIsReadyOnceItsWorkIsDone) {
  Zero();
  EXPECT_EQ(cudaEventQuery(event_), cudaSuccess);  // Nothing was recorded.
  ASSERT_EQ(detectors::RunAdd(value_, 5, a_), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event_, a_), cudaSuccess);
  int asked = 0;
  cudaError_t error;
  while ((error = cudaEventQuery(event_)) == cudaErrorNotReady) ASSERT_LT(++asked, 1000);
  EXPECT_EQ(error, cudaSuccess);
  EXPECT_EQ(Value(), 5);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
}

TEST_F(CudaApiTest, AGraphReplaysItsWorkWithItsArguments) {
  Zero();
  cudaGraph_t graph = Record([&] {
    ASSERT_EQ(detectors::RunAdd(value_, 2, a_), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event_, a_), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(b_, event_), cudaSuccess);
    ASSERT_EQ(detectors::RunAdd(value_, 1, b_), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event_, b_), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(a_, event_), cudaSuccess);
  });
  EXPECT_EQ(Value(), 0);  // Recording runs nothing.
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, b_), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, b_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(b_), cudaSuccess);
  EXPECT_EQ(Value(), 6);
  // Other arguments, the same kernels.
  cudaGraph_t other = Record([&] {
    ASSERT_EQ(detectors::RunAdd(value_, 10, a_), cudaSuccess);
    ASSERT_EQ(detectors::RunAdd(value_, 20, a_), cudaSuccess);
  });
  cudaGraphExecUpdateResultInfo info;
  ASSERT_EQ(cudaGraphExecUpdate(exec, other, &info), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, a_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_EQ(Value(), 36);
  cudaGraph_t shorter = Record([&] { (void)detectors::RunAdd(value_, 1, a_); });
  EXPECT_EQ(cudaGraphExecUpdate(exec, shorter, &info), cudaErrorGraphExecUpdateFailure);
  for (cudaGraph_t g : {graph, other, shorter}) EXPECT_EQ(cudaGraphDestroy(g), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

TEST_F(CudaApiTest, WaitingOrAllocatingSpoilsARecording) {
  void* memory = nullptr;
  const std::vector<std::function<cudaError_t()>> refused = {
      [&] { return cudaStreamSynchronize(b_); },    [&] { return cudaDeviceSynchronize(); },
      [&] { return cudaEventSynchronize(event_); }, [&] { return cudaMalloc(&memory, 4); },
      [&] { return cudaHostAlloc(&memory, 4, 0); }, [&] { return cudaFree(value_); },
      [&] { return cudaFreeHost(pinned_); }};
  for (const auto& call : refused) {
    ASSERT_EQ(cudaStreamBeginCapture(a_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(a_, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
  }
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal),
            cudaErrorStreamCaptureUnsupported);
}

TEST_F(CudaApiTest, MemoryRunsOutWhereToldAndComesBack) {
  size_t free_bytes = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
  EXPECT_EQ(total, size_t{1} << 20);
  void* most = nullptr;
  void* more = nullptr;
  ASSERT_EQ(cudaMalloc(&most, free_bytes), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&more, 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaFree(most), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&more, 1), cudaSuccess);
  EXPECT_NE(more, most);  // An address is never used twice.
  EXPECT_EQ(cudaFree(more), cudaSuccess);
  EXPECT_EQ(cudaFree(more), cudaErrorInvalidValue);
}

TEST_F(CudaApiTest, FreshMemoryIsPoison) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 8), cudaSuccess);
  uint64_t bits = 0;
  ASSERT_EQ(cudaMemcpy(&bits, memory, 8, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(bits, ~uint64_t{0});
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

// As on a device: the host may free pageable memory at once, and must keep pinned memory.
TEST_F(CudaApiTest, CopiesOfPageableMemoryAreDoneWhenTheCallReturns) {
  float from = 3;
  ASSERT_EQ(cudaMemcpyAsync(value_, &from, 4, cudaMemcpyHostToDevice, a_), cudaSuccess);
  from = 4;
  EXPECT_EQ(Value(), 3);
  *pinned_ = 5;
  ASSERT_EQ(cudaMemcpyAsync(value_, pinned_, 4, cudaMemcpyHostToDevice, a_), cudaSuccess);
  *pinned_ = 6;
  ASSERT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_EQ(Value(), 6);
}

TEST_F(CudaApiTest, FailsTheCallThatATestNames) {
  FailCall(2, cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 4), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  // A lost device stays lost.
  FailCall(1, cudaErrorLaunchFailure);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorLaunchFailure);
  EXPECT_EQ(detectors::RunAdd(value_, 1, a_), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaMalloc(&memory, 4), cudaErrorLaunchFailure);
}

TEST_F(CudaApiTest, FreedMemoryIsFoundByKernelsAndCopies) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 4), cudaSuccess);
  ASSERT_EQ(cudaFree(memory), cudaSuccess);
  ASSERT_EQ(detectors::RunAdd(static_cast<float*>(memory), 1, a_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaErrorLaunchFailure);
  EXPECT_THAT(LastMessage(), testing::HasSubstr("was freed"));
  ResetDevice();
  ASSERT_EQ(cudaMemcpyAsync(pinned_, memory, 4, cudaMemcpyDeviceToHost, a_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaErrorInvalidValue);
  EXPECT_THAT(LastMessage(), testing::HasSubstr("source"));
  ResetDevice();
  ASSERT_EQ(cudaMemcpyAsync(value_, pinned_, 8, cudaMemcpyHostToDevice, a_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaErrorInvalidValue);
  EXPECT_THAT(LastMessage(), testing::HasSubstr("destination"));
  ResetDevice();
  ASSERT_EQ(cudaMemsetAsync(value_, 0, 8, a_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaErrorInvalidValue);
}

// No call that frees does the program's waits for it: what was queued before runs when it is asked
// about, and has the memory until then.
TEST_F(CudaApiTest, FreeingRunsNothingAndTakesNothingFromWhatIsQueued) {
  Zero();
  float* memory = nullptr;
  float* host = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory), 4), cudaSuccess);
  ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&host), 4, cudaHostAllocDefault), cudaSuccess);
  *host = 3;
  ASSERT_EQ(cudaMemcpyAsync(memory, host, 4, cudaMemcpyHostToDevice, a_), cudaSuccess);
  ASSERT_EQ(detectors::RunAdd(memory, 4, a_), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(pinned_, memory, 4, cudaMemcpyDeviceToHost, a_), cudaSuccess);
  *pinned_ = 0;
  const int64_t kernels = GetStatistics().kernels;
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(host), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
  EXPECT_EQ(GetStatistics().kernels, kernels);
  EXPECT_EQ(*pinned_, 0);
  ASSERT_EQ(cudaStreamSynchronize(a_), cudaSuccess) << LastMessage();
  EXPECT_EQ(*pinned_, 7);
  // Now it is gone.
  ASSERT_EQ(detectors::RunAdd(memory, 4, a_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaErrorLaunchFailure);
  EXPECT_THAT(LastMessage(), testing::HasSubstr("was freed"));
}

TEST_F(CudaApiTest, OnlyARecordingOfAllThreadsForbidsOtherThreads) {
  for (const auto& [mode, is_valid] : {std::pair(cudaStreamCaptureModeThreadLocal, true),
                                       std::pair(cudaStreamCaptureModeGlobal, false)}) {
    ASSERT_EQ(cudaStreamBeginCapture(a_, mode), cudaSuccess);
    cudaError_t error = cudaErrorInvalidValue;
    std::jthread([&] { error = cudaStreamSynchronize(b_); }).join();
    EXPECT_EQ(error == cudaSuccess, is_valid);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(a_, &graph) == cudaSuccess, is_valid);
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
}

TEST_F(CudaApiTest, RefusesLaunchesBeyondTheLimits) {
  const auto launch = [&](dim3 grid, dim3 block, size_t shared) {
    return Launch(nullptr, grid, block, shared, a_, nullptr);
  };
  EXPECT_EQ(launch(0, 32, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch({1, 65536}, 32, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1u << 31, 32, 0), cudaErrorInvalidValue);
  EXPECT_EQ(launch(1, 1025, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, 0, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, 32, (227 << 10) + 1), cudaErrorInvalidConfiguration);
}

TEST_F(CudaApiTest, AWaitStandsForTheRecordBeforeIt) {
  ASSERT_EQ(cudaEventRecord(event_, b_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(a_, event_), cudaSuccess);
  // The wait stands for the first record, which comes.
  ASSERT_EQ(cudaEventRecord(event_, b_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
}

TEST_F(CudaApiTest, TheHostMayNotTouchDeviceMemory) {
  EXPECT_EXIT(*value_ = 1, testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace baton::emulation
