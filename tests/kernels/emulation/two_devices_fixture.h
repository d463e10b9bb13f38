#pragma once

#include <gtest/gtest.h>

#include "kernels/emulation/cuda_api.h"
#include "kernels/emulation/emulator.h"

namespace baton::emulation {

// Two of three small devices, each with a number (0 at first), a stream and an event, and pinned
// memory for a number beside them. The thread is at the first device.
class TwoDevicesTest : public testing::Test {
 protected:
  void SetUp() override {
    ResetDevice();
    SetDevices(3);
    SetDeviceMemory(2 << 20);
    for (int device = 0; device < 2; ++device) {
      Enter(device);
      ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&value_[device]), 4), cudaSuccess);
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream_[device], cudaStreamNonBlocking), cudaSuccess);
      ASSERT_EQ(cudaEventCreateWithFlags(&event_[device], cudaEventDisableTiming), cudaSuccess);
      ASSERT_EQ(cudaMemsetAsync(value_[device], 0, 4, stream_[device]), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream_[device]), cudaSuccess);
    }
    ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&pinned_), 4, 0), cudaSuccess);
    *pinned_ = 0;
    Enter(0);
  }
  void TearDown() override {
    ResetDevice();
    for (int device = 0; device < 2; ++device) {
      Enter(device);
      EXPECT_EQ(cudaFree(value_[device]), cudaSuccess);
      EXPECT_EQ(cudaStreamDestroy(stream_[device]), cudaSuccess);
      EXPECT_EQ(cudaEventDestroy(event_[device]), cudaSuccess);
    }
    EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
    Enter(0);
    SetDevices(1);
    SetDeviceMemory(size_t{8} << 30);
    SetGpu("sm90");
  }
  static void Enter(int device) { ASSERT_EQ(cudaSetDevice(device), cudaSuccess); }

  float* value_[2] = {};
  float* pinned_ = nullptr;
  cudaStream_t stream_[2] = {};
  cudaEvent_t event_[2] = {};
};

}  // namespace baton::emulation
