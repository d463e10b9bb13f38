#pragma once

// Runs the kernels of async_kernels.h.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/emulation/emulator.h"
#include "tests/kernels/emulation/async_kernels.h"
#include "tests/kernels/kernel_fixture.h"

namespace baton::emulation {

inline constexpr int kAsyncRows = 64, kAsyncColumns = 128, kAsyncDepth = 64;

inline void* UploadBytes(const void* from, size_t bytes) {
  void* to = nullptr;
  EXPECT_EQ(cudaMalloc(&to, bytes), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
  return to;
}

struct AsyncResult {
  std::string message;
  std::vector<float> out;
};

// What launch(a, b, out) writes, of bf16 on the device.
template <typename Launch>
AsyncResult RunProducts(uint64_t seed, const std::vector<float>& a, const std::vector<float>& b,
                        const Launch& launch) {
  ResetDevice();
  SetSeed(seed);
  SetGpu("sm90");
  AsyncResult result{"", std::vector<float>(kAsyncRows * kAsyncColumns, 7)};
  const size_t bytes = result.out.size() * sizeof(float);
  void* device_a = UploadBytes(Encode(DType::kBF16, a).data(), 2 * a.size());
  void* device_b = UploadBytes(Encode(DType::kBF16, b).data(), 2 * b.size());
  void* out = UploadBytes(result.out.data(), bytes);
  EXPECT_EQ(launch(static_cast<uint16_t*>(device_a), static_cast<uint16_t*>(device_b),
                   static_cast<float*>(out)),
            cudaSuccess);
  cudaDeviceSynchronize();
  result.message = LastMessage();
  ResetDevice();
  EXPECT_EQ(cudaMemcpy(result.out.data(), out, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  for (void* p : {device_a, device_b, out}) EXPECT_EQ(cudaFree(p), cudaSuccess);
  return result;
}

inline AsyncResult RunAsync(detectors::AsyncFault fault, uint64_t seed, const std::vector<float>& a,
                            const std::vector<float>& b) {
  return RunProducts(seed, a, b, [&](const uint16_t* from_a, const uint16_t* from_b, float* out) {
    return detectors::RunAsyncFault(fault, from_a, from_b, out, nullptr);
  });
}

inline AsyncResult RunHeld(detectors::HeldFault fault, uint64_t seed, const std::vector<float>& a,
                           const std::vector<float>& b) {
  return RunProducts(seed, a, b, [&](const uint16_t* from_a, const uint16_t* from_b, float* out) {
    return detectors::RunHeldFault(fault, from_a, from_b, out, nullptr);
  });
}

struct AsyncDetection {
  detectors::AsyncFault fault;
  const char* name;
  std::vector<std::string> says;
};

// In any order of threads.
inline void ExpectDetected(const AsyncDetection& detection) {
  const std::vector<float> a(kAsyncRows * kAsyncDepth, 1), b(kAsyncColumns * kAsyncDepth, 1);
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const std::string message = RunAsync(detection.fault, seed, a, b).message;
    for (const std::string& text : detection.says) {
      EXPECT_THAT(message, testing::HasSubstr(text)) << seed;
    }
    EXPECT_THAT(message, testing::HasSubstr("AsyncKernel"));
    if (testing::Test::HasFailure()) break;
  }
}

}  // namespace baton::emulation
