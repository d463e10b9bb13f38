#include "kernels/emulation/library_hooks.h"

#include <thread>

#include "gtest/gtest.h"
#include "kernels/emulation/cuda_api.h"
#include "kernels/emulation/emulator.h"

namespace baton::emulation {
namespace {

// Work that says what the test wants, and counts.
struct Work {
  int answer = 1;
  bool wakes = false;  // Something happens while it runs.
  int runs = 0;
  int released = 0;

  static int Run(void* context) {
    auto* work = static_cast<Work*>(context);
    ++work->runs;
    const int answer = work->answer;
    if (work->wakes) {
      work->wakes = false;
      work->answer = 0;
      std::jthread(baton_gpu_wake).join();
    }
    return answer;
  }
  static void Release(void* context) { ++static_cast<Work*>(context)->released; }
};

class LibraryHooksTest : public testing::Test {
 protected:
  LibraryHooksTest() {
    ResetDevice();
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
  }
  ~LibraryHooksTest() override {
    ResetDevice();
    cudaStreamDestroy(stream_);
    cudaEventDestroy(event_);
  }

  int Put() { return baton_gpu_put(stream_, Work::Run, Work::Release, &work_); }

  // Lets the device work.
  cudaError_t Ask() {
    cudaError_t error = cudaErrorNotReady;
    for (int i = 0; i < 100 && error == cudaErrorNotReady; ++i) error = cudaEventQuery(event_);
    return error;
  }

  Work work_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

TEST_F(LibraryHooksTest, WorkThatWaitsKeepsItsStreamUntilItIsWoken) {
  ASSERT_EQ(Put(), cudaSuccess);
  cudaEventRecord(event_, stream_);
  EXPECT_EQ(Ask(), cudaErrorNotReady);
  EXPECT_EQ(work_.runs, 1);  // It is not asked in vain.
  baton_gpu_wake();
  EXPECT_EQ(Ask(), cudaErrorNotReady);
  EXPECT_EQ(work_.runs, 2);
  work_.answer = 0;
  baton_gpu_wake();
  EXPECT_EQ(Ask(), cudaSuccess);
  EXPECT_EQ(work_.released, 1);
}

TEST_F(LibraryHooksTest, WhatHappensWhileWorkRunsWakesItToo) {
  work_.wakes = true;
  ASSERT_EQ(Put(), cudaSuccess);
  cudaEventRecord(event_, stream_);
  EXPECT_EQ(Ask(), cudaSuccess);
  EXPECT_EQ(work_.runs, 2);
}

TEST_F(LibraryHooksTest, OtherWorkThatEndsWakesIt) {
  ASSERT_EQ(Put(), cudaSuccess);
  cudaEventRecord(event_, stream_);
  EXPECT_EQ(Ask(), cudaErrorNotReady);
  work_.answer = 0;
  EXPECT_EQ(cudaMemsetAsync(nullptr, 0, 0, nullptr), cudaSuccess);
  EXPECT_EQ(Ask(), cudaSuccess);
}

TEST_F(LibraryHooksTest, StreamsWithSleepingWorkDoNotWaitForEachOtherForEver) {
  ASSERT_EQ(Put(), cudaSuccess);
  cudaEventRecord(event_, stream_);
  EXPECT_EQ(Ask(), cudaErrorNotReady);
  work_.answer = 0;
  const std::jthread waking(baton_gpu_wake);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
}

TEST_F(LibraryHooksTest, WorkThatFailsLosesTheDeviceAndWakesWhatSleeps) {
  cudaStream_t other;
  cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
  ASSERT_EQ(Put(), cudaSuccess);
  cudaEventRecord(event_, stream_);
  EXPECT_EQ(Ask(), cudaErrorNotReady);
  Work failing = {.answer = 2};
  ASSERT_EQ(baton_gpu_put(other, Work::Run, Work::Release, &failing), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaStreamSynchronize(other), cudaErrorLaunchFailure);
  EXPECT_EQ(failing.released, 1);
  ResetDevice();
  EXPECT_EQ(work_.released, 1);
  cudaStreamDestroy(other);
}

TEST_F(LibraryHooksTest, OnlyStreamsThatDoNotRecordAreTaken) {
  int nothing = 0;
  EXPECT_EQ(baton_gpu_put(&nothing, Work::Run, Work::Release, &work_),
            cudaErrorInvalidResourceHandle);
  EXPECT_EQ(work_.released, 1);
  cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal);
  EXPECT_EQ(Put(), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph;
  cudaStreamEndCapture(stream_, &graph);
  cudaGraphDestroy(graph);
  EXPECT_EQ(work_.runs, 0);
}

TEST_F(LibraryHooksTest, CopiesStayWithinAllocations) {
  void* memory;
  cudaMalloc(&memory, 16);
  char bytes[17] = {};
  EXPECT_TRUE(baton_gpu_copy(memory, bytes, 16));
  EXPECT_FALSE(baton_gpu_copy(memory, bytes, 17));
  EXPECT_FALSE(baton_gpu_copy(bytes, memory, 17));
  cudaFree(memory);
}

}  // namespace
}  // namespace baton::emulation
