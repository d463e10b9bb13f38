#include "kernels/emulation/intrinsics.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "common/base/random.h"
#include "kernels/emulation/emulator.h"
#include "tests/kernels/emulation/detector_kernels.h"
#include "tests/kernels/kernel_fixture.h"

namespace baton::emulation {
namespace {

void* Upload(const void* from, size_t bytes) {
  void* to = nullptr;
  EXPECT_EQ(cudaMalloc(&to, bytes), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
  return to;
}

// Copies, ldmatrix, the fragments of mma and its sum, from end to end: every element of a product
// of small integers, in which nothing is rounded.
TEST(IntrinsicsTest, MultipliesTilesThroughSharedMemory) {
  ResetDevice();
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    Random random(7);
    std::vector<float> a(256), b(128), c(128);
    for (float& x : a) x = static_cast<float>(random.Below(64)) - 32;
    for (float& x : b) x = static_cast<float>(random.Below(64)) - 32;
    for (float& x : c) x = static_cast<float>(random.Below(64));
    void* device_a = Upload(Encode(dtype, a).data(), 512);
    void* device_b = Upload(Encode(dtype, b).data(), 256);
    void* device_c = Upload(c.data(), 512);
    ASSERT_EQ(detectors::RunProduct(dtype == DType::kBF16, static_cast<uint16_t*>(device_a),
                                    static_cast<uint16_t*>(device_b),
                                    static_cast<float*>(device_c), nullptr),
              cudaSuccess);
    std::vector<float> got(128);
    ASSERT_EQ(cudaMemcpy(got.data(), device_c, 512, cudaMemcpyDeviceToHost), cudaSuccess)
        << LastMessage();
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        float sum = c[i * 8 + j];
        for (int k = 0; k < 16; ++k) sum += a[i * 16 + k] * b[j * 16 + k];
        EXPECT_EQ(got[i * 8 + j], sum) << i << " " << j;
      }
    }
    for (void* p : {device_a, device_b, device_c}) EXPECT_EQ(cudaFree(p), cudaSuccess);
  }
}

TEST(IntrinsicsTest, ShufflesAndVotesAsTheManualSays) {
  ResetDevice();
  std::vector<uint32_t> got(160);
  void* out = Upload(got.data(), 640);
  ASSERT_EQ(detectors::RunWarpFunctions(static_cast<uint32_t*>(out), nullptr), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(got.data(), out, 640, cudaMemcpyDeviceToHost), cudaSuccess);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(got[lane], (lane / 16 * 16 + 5) * 10);
    EXPECT_EQ(got[32 + lane], lane < 3 ? lane : lane - 3);
    EXPECT_EQ(got[64 + lane], lane % 8 < 5 ? lane + 3 : lane);
    EXPECT_EQ(got[96 + lane], lane ^ 6);
    EXPECT_EQ(got[128 + lane], 0x49249249u);
  }
  EXPECT_EQ(cudaFree(out), cudaSuccess);
}

}  // namespace
}  // namespace baton::emulation
