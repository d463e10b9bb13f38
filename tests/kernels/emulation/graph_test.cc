// Graphs over several devices: what orders their work, and what a recording refuses.
#include "kernels/emulation/graph.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/emulation/cuda_api.h"
#include "kernels/emulation/emulator.h"
#include "tests/kernels/emulation/detector_kernels.h"
#include "tests/kernels/emulation/two_devices_fixture.h"

namespace baton::emulation {
namespace {

class GraphTest : public TwoDevicesTest {
 protected:
  void SetUp() override {
    TwoDevicesTest::SetUp();
    for (int device = 0; device < 2; ++device) {
      Enter(device);
      ASSERT_EQ(cudaDeviceEnablePeerAccess(1 - device, 0), cudaSuccess);
      ASSERT_EQ(cudaEventCreateWithFlags(&end_[device], cudaEventDisableTiming), cudaSuccess);
    }
    Enter(0);
  }
  void TearDown() override {
    ResetDevice();
    for (const cudaEvent_t end : end_) EXPECT_EQ(cudaEventDestroy(end), cudaSuccess);
    TwoDevicesTest::TearDown();
  }
  void Begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    Enter(0);
    ASSERT_EQ(cudaStreamBeginCapture(stream_[0], mode), cudaSuccess);
  }
  // The device's stream takes part from here on.
  void Fork(int device) {
    Enter(1 - device);
    ASSERT_EQ(cudaEventRecord(event_[1 - device], stream_[1 - device]), cudaSuccess);
    Enter(device);
    ASSERT_EQ(cudaStreamWaitEvent(stream_[device], event_[1 - device]), cudaSuccess);
  }
  // What comes on a device's stream waits for what is on the other's.
  void After(int device) { Fork(device); }
  cudaError_t End(cudaGraph_t* graph) {
    Enter(0);
    return cudaStreamEndCapture(stream_[0], graph);
  }
  cudaGraphExec_t EndAndMake() {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(End(&graph), cudaSuccess);
    cudaGraphExec_t exec = nullptr;
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return exec;
  }
  // Whether a recording with that in it, which is forked and joined, ends as it should not.
  void ExpectSpoilt(const std::function<cudaError_t()>& call, cudaError_t error) {
    Begin();
    Fork(1);
    EXPECT_EQ(call(), error);
    After(0);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(End(&graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
  }
  static size_t Free(int device) {
    Enter(device);
    size_t free_bytes = 0, total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
    return free_bytes;
  }
  void Copy(void* to, const void* from, int device) {
    Enter(device);
    ASSERT_EQ(cudaMemcpyAsync(to, from, 4, cudaMemcpyDefault, stream_[device]), cudaSuccess);
  }
  void Await(int device) {
    Enter(device);
    ASSERT_EQ(cudaStreamSynchronize(stream_[device]), cudaSuccess) << LastMessage();
  }

  cudaEvent_t end_[2] = {};
};

TEST_F(GraphTest, DevicesWaitForEachOtherOnlyWhereItWasRecorded) {
  int stale_without = 0;
  for (const bool waits : {false, true}) {
    // The second writes what the first reads, amid its own work.
    Begin();
    Fork(1);
    ASSERT_EQ(detectors::RunAdd(value_[1], 5, stream_[1]), cudaSuccess);
    if (waits) After(0);
    Copy(pinned_, value_[1], 0);
    After(0);
    const cudaGraphExec_t exec = EndAndMake();
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      SetSeed(seed);
      Enter(1);
      ASSERT_EQ(cudaMemsetAsync(value_[1], 0, 4, stream_[1]), cudaSuccess);
      Await(1);
      Enter(0);
      ASSERT_EQ(cudaGraphLaunch(exec, stream_[0]), cudaSuccess);
      ASSERT_EQ(cudaGraphLaunch(exec, stream_[0]), cudaSuccess);  // Behind all of the first.
      Await(0);
      if (waits) {
        EXPECT_EQ(*pinned_, 10) << seed;
      }
      stale_without += *pinned_ != 10;
    }
    Enter(0);
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  }
  EXPECT_GT(stale_without, 5);
}

// The stream of the launch has all of the graph; the other device's stream has none of it.
TEST_F(GraphTest, OtherStreamsKnowNothingOfALaunch) {
  Begin();
  Fork(1);
  ASSERT_EQ(detectors::RunAdd(value_[1], 5, stream_[1]), cudaSuccess);
  After(0);
  const cudaGraphExec_t exec = EndAndMake();
  int early = 0, late = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const bool told = seed % 2 == 0;
    SetSeed(seed);
    Enter(1);
    ASSERT_EQ(cudaMemsetAsync(value_[1], 0, 4, stream_[1]), cudaSuccess);
    Await(1);
    ASSERT_EQ(detectors::RunAdd(value_[1], 1, stream_[1]), cudaSuccess);
    ASSERT_EQ(cudaMemsetAsync(value_[1], 0, 4, stream_[1]), cudaSuccess);
    if (told) After(0);
    Enter(0);
    ASSERT_EQ(cudaGraphLaunch(exec, stream_[0]), cudaSuccess);
    if (told) After(1);
    Copy(pinned_, value_[1], 1);
    Await(1);
    if (told) {
      EXPECT_EQ(*pinned_, 5) << seed;
    }
    early += *pinned_ == 0;
    Await(0);
    Copy(pinned_, value_[1], 0);
    Await(0);
    late += *pinned_ == 0;
  }
  EXPECT_GT(early, 3);
  EXPECT_GT(late, 3);
  Enter(0);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

TEST_F(GraphTest, WhatWasNotJoinedIsRefused) {
  Begin();
  Fork(1);
  ASSERT_EQ(detectors::RunAdd(value_[1], 5, stream_[1]), cudaSuccess);
  After(0);
  ASSERT_EQ(detectors::RunAdd(value_[1], 5, stream_[1]), cudaErrorInvalidResourceHandle);
  Enter(1);
  ASSERT_EQ(detectors::RunAdd(value_[1], 5, stream_[1]), cudaSuccess);  // Behind the join.
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(End(&graph), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(graph, nullptr);
  Await(1);  // It records no more, and nothing of it runs.
  Await(0);
}

TEST_F(GraphTest, NoWaitCrossesTheEdgeOfARecording) {
  Enter(1);
  ASSERT_EQ(cudaEventRecord(end_[1], stream_[1]), cudaSuccess);
  ExpectSpoilt([&] { return cudaStreamWaitEvent(stream_[1], end_[1]); },
               cudaErrorStreamCaptureIsolation);
  // The second waits, which the thread that records may not do whatever the event.
  for (const auto& [ask, error] :
       {std::pair(&cudaEventQuery, cudaErrorCapturedEvent),
        std::pair(&cudaEventSynchronize, cudaErrorStreamCaptureUnsupported)}) {
    ExpectSpoilt([ask = ask, this] { return ask(event_[0]); }, error);
    // It stays what it was recorded as.
    Enter(0);
    EXPECT_EQ(ask(event_[0]), cudaErrorCapturedEvent);
  }
  EXPECT_EQ(cudaStreamWaitEvent(stream_[0], event_[0]), cudaErrorCapturedEvent);
  ASSERT_EQ(cudaEventRecord(event_[0], stream_[0]), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream_[0], event_[0]), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event_[0]), cudaSuccess);
}

TEST_F(GraphTest, TwoRecordingsDoNotMerge) {
  Begin();
  ASSERT_EQ(cudaEventRecord(event_[0], stream_[0]), cudaSuccess);
  Enter(1);
  ASSERT_EQ(cudaStreamBeginCapture(stream_[1], cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream_[1], event_[0]), cudaErrorStreamCaptureMerge);
  for (const int device : {1, 0}) {
    Enter(device);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_[device], &graph), cudaErrorStreamCaptureInvalidated);
  }
}

// Nor does one of another thread, of another device, that took part.
TEST_F(GraphTest, NoThreadWaitsForAStreamThatRecords) {
  const std::function<cudaError_t(cudaStream_t)> calls[] = {cudaStreamQuery, cudaStreamSynchronize};
  for (const auto& call : calls) {
    for (const int device : {0, 1}) {
      Begin();
      Fork(1);
      After(0);
      std::jthread([&] {
        Enter(device);
        EXPECT_EQ(call(stream_[device]), cudaErrorStreamCaptureUnsupported);
      }).join();
      cudaGraph_t graph = nullptr;
      EXPECT_EQ(End(&graph), cudaErrorStreamCaptureInvalidated);
      Enter(device);
      EXPECT_EQ(call(stream_[device]), cudaSuccess);
    }
  }
}

TEST_F(GraphTest, EndsWhereItBegan) {
  Begin();
  Fork(1);
  cudaGraph_t graph = nullptr;
  Enter(1);
  EXPECT_EQ(cudaStreamEndCapture(stream_[1], &graph), cudaErrorStreamCaptureUnmatched);
  EXPECT_EQ(cudaStreamEndCapture(stream_[0], &graph), cudaErrorInvalidResourceHandle);
  std::jthread([&] { EXPECT_EQ(End(&graph), cudaErrorStreamCaptureWrongThread); }).join();
  After(0);
  EXPECT_EQ(End(&graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  Begin(cudaStreamCaptureModeRelaxed);
  std::jthread([&] { EXPECT_EQ(End(&graph), cudaSuccess); }).join();
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(GraphTest, TakesMemoryOfEachOfItsDevices) {
  const size_t before[] = {Free(0), Free(1)};
  Begin();
  Fork(1);
  After(0);
  const cudaGraphExec_t exec = EndAndMake();
  ASSERT_EQ(cudaGraphUpload(exec, stream_[0]), cudaSuccess);
  for (const int device : {0, 1}) EXPECT_EQ(Free(device), before[device] - Graph::kBytes);
  Enter(0);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  for (const int device : {0, 1}) EXPECT_EQ(Free(device), before[device]);
}

}  // namespace
}  // namespace baton::emulation
