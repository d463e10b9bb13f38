// Several devices of one process: each has its memory and its streams, and what belongs to another
// is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/emulation/cuda_api.h"
#include "kernels/emulation/emulator.h"
#include "tests/kernels/emulation/detector_kernels.h"
#include "tests/kernels/emulation/two_devices_fixture.h"

namespace baton::emulation {
namespace {

using testing::HasSubstr;

class DevicesTest : public TwoDevicesTest {
 protected:
  float Value(int device) {
    Enter(device);
    float x = -1;
    EXPECT_EQ(cudaMemcpy(&x, value_[device], 4, cudaMemcpyDeviceToHost), cudaSuccess);
    return x;
  }
  static size_t Free() {
    size_t free_bytes = 0, total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
    return free_bytes;
  }

  // By a device's tensor cores.
  static float SumOf(int device, const std::vector<float>& numbers) {
    Enter(device);
    uint16_t a[256] = {}, b[128] = {};
    for (size_t k = 0; k < numbers.size(); ++k) {
      a[k] = static_cast<uint16_t>(std::bit_cast<uint32_t>(numbers[k]) >> 16);  // bf16
      b[k] = 0x3f80;                                                            // 1
    }
    void* on_device = nullptr;
    EXPECT_EQ(cudaMalloc(&on_device, 512 + 256 + 512), cudaSuccess);
    auto* const to_a = static_cast<uint16_t*>(on_device);
    auto* const sums = reinterpret_cast<float*>(to_a + 384);
    EXPECT_EQ(cudaMemcpy(to_a, a, sizeof(a), cudaMemcpyDefault), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(to_a + 256, b, sizeof(b), cudaMemcpyDefault), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(sums, 0, 512, nullptr), cudaSuccess);
    EXPECT_EQ(detectors::RunProduct(true, to_a, to_a + 256, sums, nullptr), cudaSuccess);
    float sum = -1;
    EXPECT_EQ(cudaMemcpy(&sum, sums, 4, cudaMemcpyDefault), cudaSuccess) << LastMessage();
    EXPECT_EQ(cudaFree(on_device), cudaSuccess);
    return sum;
  }
};

TEST_F(DevicesTest, ThereAreAsManyAsTold) {
  int count = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 3);
  for (const int none : {-1, 3}) {
    cudaDeviceProp properties;
    int can = 0;
    EXPECT_EQ(cudaSetDevice(none), cudaErrorInvalidDevice);
    EXPECT_EQ(cudaGetDeviceProperties(&properties, none), cudaErrorInvalidDevice);
    EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, none), cudaErrorInvalidDevice);
    EXPECT_EQ(cudaDeviceCanAccessPeer(&can, none, 0), cudaErrorInvalidDevice);
    EXPECT_EQ(cudaDeviceEnablePeerAccess(none, 0), cudaErrorInvalidDevice);
  }
  cudaDeviceProp first, second;
  ASSERT_EQ(cudaGetDeviceProperties(&first, 0), cudaSuccess);
  ASSERT_EQ(cudaGetDeviceProperties(&second, 1), cudaSuccess);
  EXPECT_NE(std::string(first.uuid.bytes, 16), std::string(second.uuid.bytes, 16));
}

TEST_F(DevicesTest, TheCurrentOneIsTheThreads) {
  Enter(1);
  const size_t before = Free();
  void* memory = nullptr;
  std::jthread([&] { EXPECT_EQ(cudaMalloc(&memory, 1 << 20), cudaSuccess); }).join();
  EXPECT_EQ(Free(), before);  // It was 0 of that thread.
  Enter(0);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST_F(DevicesTest, EachHasItsOwnMemory) {
  const size_t first = Free();
  Enter(1);
  const size_t second = Free();
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, second), cudaSuccess);
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, 1), cudaErrorMemoryAllocation);
  Enter(0);
  EXPECT_EQ(Free(), first);
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
  Enter(1);
  EXPECT_EQ(Free(), 0u);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(Free(), second);
}

TEST_F(DevicesTest, AStreamOfAnotherIsRefusedByName) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream_[0], cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(stream_[0], &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  const cudaStream_t stream = stream_[0];
  const std::vector<std::function<cudaError_t()>> calls = {
      [&] { return detectors::RunAdd(value_[1], 5, stream); },
      [&] { return cudaMemcpyAsync(pinned_, value_[1], 4, cudaMemcpyDefault, stream); },
      [&] { return cudaMemsetAsync(value_[1], 0, 4, stream); },
      [&] { return cudaStreamSynchronize(stream); },
      [&] { return cudaStreamWaitEvent(stream, event_[1]); },
      [&] { return cudaEventRecord(event_[1], stream); },
      [&] { return cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal); },
      [&] { return cudaGraphLaunch(exec, stream); }};
  for (size_t i = 0; i < calls.size(); ++i) {
    ResetDevice();
    Enter(1);
    EXPECT_EQ(calls[i](), cudaErrorInvalidResourceHandle) << i;
    const char* const says = "a stream of device 0 is used by a thread whose device is 1";
    EXPECT_EQ(LastMessage(), says) << i;
    EXPECT_STREQ(cudaGetErrorString(cudaErrorInvalidResourceHandle), says);
    EXPECT_EQ(cudaGraphLaunch(exec, stream_[1]), cudaErrorInvalidResourceHandle);
    Enter(0);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess) << i;  // Nothing is on it.
  }
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(DevicesTest, AnEventIsRecordedWhereItWasMade) {
  EXPECT_EQ(cudaEventRecord(event_[1], stream_[0]), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(LastMessage(), "an event of device 1 is recorded on a stream of device 0");
}

TEST_F(DevicesTest, AMissingWaitBetweenThemShowsInSomeOrder) {
  int stale_without = 0, stale_with = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    for (const bool waits : {false, true}) {
      SetSeed(seed);
      *pinned_ = 0;
      Enter(0);
      ASSERT_EQ(cudaMemsetAsync(value_[0], 0, 4, stream_[0]), cudaSuccess);
      ASSERT_EQ(detectors::RunAdd(value_[0], 5, stream_[0]), cudaSuccess);
      ASSERT_EQ(cudaMemcpyAsync(pinned_, value_[0], 4, cudaMemcpyDefault, stream_[0]), cudaSuccess);
      ASSERT_EQ(cudaEventRecord(event_[0], stream_[0]), cudaSuccess);
      Enter(1);
      if (waits) {
        ASSERT_EQ(cudaStreamWaitEvent(stream_[1], event_[0]), cudaSuccess);
      }
      ASSERT_EQ(cudaMemcpyAsync(value_[1], pinned_, 4, cudaMemcpyDefault, stream_[1]), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream_[1]), cudaSuccess);
      (waits ? stale_with : stale_without) += Value(1) != 5;
      Enter(0);
      ASSERT_EQ(cudaStreamSynchronize(stream_[0]), cudaSuccess);
    }
  }
  EXPECT_GT(stale_without, 5);
  EXPECT_EQ(stale_with, 0);
}

TEST_F(DevicesTest, EachWaitsForItsOwnStreams) {
  ASSERT_EQ(detectors::RunAdd(value_[0], 5, stream_[0]), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event_[0], stream_[0]), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(pinned_, value_[0], 4, cudaMemcpyDefault, stream_[0]), cudaSuccess);
  Enter(1);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(*pinned_, 0);
  Enter(0);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(*pinned_, 5);
}

TEST_F(DevicesTest, AnothersMemoryIsOutOfReachWithoutPeerAccess) {
  const std::string says = "device 1 touches memory of device 0 without peer access";
  Enter(1);
  ASSERT_EQ(detectors::RunAdd(value_[0], 5, stream_[1]), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_[1]), cudaErrorLaunchFailure);
  EXPECT_THAT(LastMessage(), HasSubstr(says));
  EXPECT_THAT(LastMessage(), HasSubstr("detector_kernels.cu"));
  const std::vector<std::function<cudaError_t()>> calls = {
      [&] { return cudaMemcpyAsync(value_[0], pinned_, 4, cudaMemcpyDefault, stream_[1]); },
      [&] { return cudaMemcpyAsync(pinned_, value_[0], 4, cudaMemcpyDefault, stream_[1]); },
      [&] { return cudaMemsetAsync(value_[0], 1, 4, stream_[1]); }};
  for (const auto& call : calls) {
    ResetDevice();
    EXPECT_EQ(call(), cudaErrorInvalidValue);
    EXPECT_EQ(LastMessage(), says);
  }
  // Of the other way, and with a third, it says nothing.
  ResetDevice();
  Enter(0);
  ASSERT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
  Enter(1);
  ASSERT_EQ(cudaDeviceEnablePeerAccess(2, 0), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(value_[0], 1, 4, stream_[1]), cudaErrorInvalidValue);
}

TEST_F(DevicesTest, WithPeerAccessItIsAsItsOwn) {
  int can = 0;
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 1, 0), cudaSuccess);
  EXPECT_EQ(can, 1);
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 1, 1), cudaSuccess);
  EXPECT_EQ(can, 0);
  Enter(1);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorInvalidDevice);
  ASSERT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessAlreadyEnabled);
  ASSERT_EQ(detectors::RunAdd(value_[0], 5, stream_[1]), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(pinned_, value_[0], 4, cudaMemcpyDefault, stream_[1]), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_[1]), cudaSuccess) << LastMessage();
  EXPECT_EQ(*pinned_, 5);
  EXPECT_EQ(Value(0), 5);
}

TEST_F(DevicesTest, PeerAccessMayBeMissing) {
  SetDevices(3, /*peers=*/false);
  int can = 1;
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, 1), cudaSuccess);
  EXPECT_EQ(can, 0);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessUnsupported);
  EXPECT_EQ(cudaMemsetAsync(value_[1], 1, 4, stream_[0]), cudaErrorInvalidValue);
}

TEST_F(DevicesTest, TheLossOfOneIsNotTheOthers) {
  LoseInKernel(1);
  Enter(1);
  ASSERT_EQ(detectors::RunAdd(value_[1], 5, stream_[1]), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_[1]), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaEventQuery(event_[1]), cudaErrorLaunchFailure);
  Enter(0);
  ASSERT_EQ(detectors::RunAdd(value_[0], 5, stream_[0]), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_[0]), cudaSuccess);
  EXPECT_EQ(Value(0), 5);
  EXPECT_EQ(cudaEventQuery(event_[0]), cudaSuccess);
  Enter(1);
  EXPECT_EQ(cudaStreamSynchronize(stream_[1]), cudaErrorLaunchFailure);
}

// By what the one's tensor cores cut off and the other's do not (tensor_core_test.cc).
TEST_F(DevicesTest, EachIsOfItsKind) {
  SetGpu(1, "sm80");
  cudaDeviceProp properties;
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  EXPECT_STREQ(properties.name, "emulated sm_90");
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 1), cudaSuccess);
  EXPECT_STREQ(properties.name, "emulated sm_80");
  constexpr size_t kShared = 200 << 10;  // Of a block: more than the second has.
  EXPECT_EQ(Launch(nullptr, 0, 32, kShared, stream_[0], nullptr), cudaErrorInvalidConfiguration);
  Enter(1);
  EXPECT_EQ(Launch(nullptr, 1, 32, kShared, stream_[1], nullptr), cudaErrorInvalidConfiguration);
  std::vector<float> sums;
  for (const int device : {0, 1}) sums.push_back(SumOf(device, {1, 0x1p-25f, 0x1p-25f, -1}));
  EXPECT_EQ(sums[0], 0x1p-24f);
  EXPECT_EQ(sums[1], 0.0f);
}

}  // namespace
}  // namespace baton::emulation
