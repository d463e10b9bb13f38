#include "kernels/emulation/emulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/kernels/emulation/detector_kernels.h"

namespace baton::emulation {
namespace {

class EmulatorTest : public testing::Test {
 protected:
  void SetUp() override {
    ResetDevice();
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&value_), 4), cudaSuccess);
    ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&pinned_), 4, cudaHostAllocDefault),
              cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, -1), cudaSuccess);
    *pinned_ = 0;
    ASSERT_EQ(cudaMemcpyAsync(value_, pinned_, 4, cudaMemcpyHostToDevice, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }
  void TearDown() override {
    ResetDevice();
    EXPECT_EQ(cudaFree(value_), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  // Adds 5, and brings the sum to the host.
  cudaError_t Enqueue() {
    const cudaError_t error = detectors::RunAdd(value_, 5, stream_);
    if (error != cudaSuccess) return error;
    return cudaMemcpyAsync(pinned_, value_, 4, cudaMemcpyDeviceToHost, stream_);
  }
  float* value_ = nullptr;
  float* pinned_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

// A driver cannot be stopped: in a process of its own, which does not ask and does not wait.
TEST_F(EmulatorTest, ADriverRunsWorkThatNobodyAsksAbout) {
  const auto run = [&] {
    alarm(120);
    StartDriver();
    StartDriver();  // There is one.
    if (Enqueue() != cudaSuccess) std::exit(1);
    while (*static_cast<volatile float*>(pinned_) != 5) std::this_thread::yield();
    // Waiting is as without.
    for (int i = 2; i < 100; ++i) {
      if (Enqueue() != cudaSuccess || cudaStreamSynchronize(stream_) != cudaSuccess) std::exit(2);
      if (*pinned_ != 5 * static_cast<float>(i)) std::exit(3);
    }
    LoseInKernel(2);
    if (Enqueue() != cudaSuccess || Enqueue() == cudaErrorInvalidValue) std::exit(4);
    if (cudaDeviceSynchronize() != cudaErrorLaunchFailure) std::exit(5);
    std::_Exit(0);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

TEST_F(EmulatorTest, WithoutOneNothingRunsThatNobodyAsksAbout) {
  ASSERT_EQ(Enqueue(), cudaSuccess);
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  EXPECT_EQ(*pinned_, 0);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(*pinned_, 5);
}

// What asks goes on; what waits, or gives or takes memory, does not come back.
TEST_F(EmulatorTest, TheDeviceHangsInTheKernelThatATestNames) {
  HangInKernel(2);
  ASSERT_EQ(Enqueue(), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaSuccess);
  ASSERT_EQ(Enqueue(), cudaSuccess);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  std::atomic<int> back = 0;
  void* memory[2] = {};
  std::jthread waits([&] { ++back, cudaStreamSynchronize(stream_), ++back; });
  std::jthread allocates([&] { ++back, cudaMalloc(&memory[0], 4), ++back; });
  std::jthread allocates_pinned([&] { ++back, cudaHostAlloc(&memory[1], 4, 0), ++back; });
  std::jthread frees([&] { ++back, cudaFreeHost(pinned_), ++back; });
  while (back < 4) std::this_thread::yield();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  EXPECT_EQ(back, 4);
  ResetDevice();  // Lets them go.
  for (std::jthread* thread : {&waits, &allocates, &allocates_pinned, &frees}) thread->join();
  EXPECT_EQ(cudaFree(memory[0]), cudaSuccess);
  pinned_ = static_cast<float*>(memory[1]);
}

TEST_F(EmulatorTest, TheDeviceIsLostInTheKernelThatATestNames) {
  LoseInKernel(2);
  ASSERT_EQ(Enqueue(), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(*pinned_, 5);
  ASSERT_EQ(Enqueue(), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorLaunchFailure);
  EXPECT_EQ(*pinned_, 5);
  EXPECT_THAT(cudaGetErrorString(cudaErrorLaunchFailure), testing::HasSubstr("lost"));
  EXPECT_EQ(Enqueue(), cudaErrorLaunchFailure);
}

TEST_F(EmulatorTest, SaysWhatDeviceItIs) {
  int count = 0, version = 0, runtime = 0, least = 0, greatest = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(1), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaDriverGetVersion(&version), cudaSuccess);
  EXPECT_EQ(cudaRuntimeGetVersion(&runtime), cudaSuccess);
  EXPECT_GE(version, runtime);
  EXPECT_EQ(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
  EXPECT_LT(greatest, least);
  for (const auto& [architecture, name, major] :
       {std::tuple(Architecture::kAmpere, "emulated sm_80", 8),
        std::tuple(Architecture::kHopper, "emulated sm_90", 9)}) {
    SetArchitecture(architecture);
    cudaDeviceProp properties;
    ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
    EXPECT_STREQ(properties.name, name);
    EXPECT_EQ(properties.major, major);
    EXPECT_EQ(properties.minor, 0);
    EXPECT_EQ(properties.totalGlobalMem, size_t{8} << 30);
  }
  SetGpu("sm86");
  cudaDeviceProp small;
  ASSERT_EQ(cudaGetDeviceProperties(&small, 0), cudaSuccess);
  EXPECT_STREQ(small.name, "emulated sm_86");
  EXPECT_EQ(small.minor, 6);
  EXPECT_EQ(small.sharedMemPerBlockOptin, size_t{99} << 10);
  SetGpu("sm90");
  cudaDeviceProp properties;
  EXPECT_EQ(cudaGetDeviceProperties(&properties, 1), cudaErrorInvalidDevice);
}

}  // namespace
}  // namespace baton::emulation
