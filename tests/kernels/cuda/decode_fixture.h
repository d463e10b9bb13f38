#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attention_decode_sm90.h"
#include "kernels/cuda/gemm_sm90.h"
#include "tests/kernels/cuda/device_attention.h"

namespace baton::cuda {

using Lengths = std::vector<std::pair<int32_t, int32_t>>;  // (queries, keys)

inline std::vector<std::byte> BytesOf(const Result& result) {
  std::vector<std::byte> bytes((result.out.size() + result.lse.size()) * sizeof(float));
  std::memcpy(bytes.data(), result.out.data(), result.out.size() * sizeof(float));
  std::memcpy(bytes.data() + result.out.size() * sizeof(float), result.lse.data(),
              result.lse.size() * sizeof(float));
  return bytes;
}

// All blocks so far, and those of a launch of this form.
#if defined(BATON_CUDA_DEVICE)
inline int64_t Blocks() { return 0; }
inline constexpr int64_t kBlocks = 0;
#else
inline int64_t Blocks() { return emulation::GetStatistics().blocks; }
inline constexpr int64_t kBlocks = 6;
#endif

inline Lengths OneQueryEach(const std::vector<int32_t>& keys) {
  Lengths lengths;
  for (const int32_t n : keys) lengths.emplace_back(1, n);
  return lengths;
}

// The form of every GPU is the oracle of the one that sm_90a has.
class DecodeSm90Test : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    emulation::SetGpu("sm90");
    if (!IsSm90()) GTEST_SKIP() << "the device is no sm_90";
  }

  // bf16 and f16 in turn.
  AttentionShapes Decode(int32_t dim, Lengths lengths) {
    return Shape(kTypes[num_shapes_++ % 2], dim, std::move(lengths));
  }

  static void ExpectEqualBits(const AttentionShapes& shape, const std::string& what,
                              RunOptions options = {}) {
    SCOPED_TRACE(what);
    AttentionProblem problem(shape, 31);
    const DeviceProblem device(problem);
    options.scratch = true;
    options.out = options.out == DType::kF32 ? DType::kF32 : shape.compute;
    const Result expected = device.Run(options);
    options.counters = true;
    const int64_t blocks = Blocks();
    EXPECT_TRUE(BytesOf(device.Run(options)) == BytesOf(expected));
    EXPECT_EQ(Blocks() - blocks, kBlocks) << "the other form has run";
  }

 private:
  int num_shapes_ = 0;
};

}  // namespace baton::cuda
