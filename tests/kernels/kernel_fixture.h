#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/random.h"
#include "kernels/cpu/lane_convert.h"
#include "kernels/make_device.h"
#include "tests/kernels/kernel_sets.h"

namespace baton {

inline std::unique_ptr<CpuKernels> MakeTestKernels(const std::string& set, int num_threads = 1) {
  auto kernels = MakeCpuKernels({.kernels = set, .num_threads = num_threads});
  BATON_CHECK(kernels.ok());
  return *std::move(kernels);
}

// What the weights of a product are, and what its activations were rounded to.
struct ProductTypes {
  DType weights;
  DType activations;
};
inline constexpr ProductTypes kProductTypes[] = {{DType::kF32, DType::kF32},
                                                 {DType::kF16, DType::kF32},
                                                 {DType::kBF16, DType::kF32},
                                                 {DType::kBF16, DType::kBF16}};

// One test body for every kernel set.
class KernelTest : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<CpuKernels> kernels_ = MakeTestKernels(GetParam());
};

#define BATON_FOR_EACH_KERNEL_SET(suite)                                 \
  INSTANTIATE_TEST_SUITE_P(Sets, suite, testing::ValuesIn(KernelSets()), \
                           [](const auto& info) { return std::string(info.param); })

// Values in [-1, 1).
inline std::vector<float> RandomFloats(uint64_t seed, int64_t n) {
  Random random(seed);
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(random.Unit() * 2 - 1);
  return out;
}

inline std::vector<std::byte> Encode(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> out(values.size() * SizeOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) StoreOne<DType::kF32>(out.data(), i, values[i]);
    if (dtype == DType::kF16) StoreOne<DType::kF16>(out.data(), i, values[i]);
    if (dtype == DType::kBF16) StoreOne<DType::kBF16>(out.data(), i, values[i]);
    if (dtype == DType::kFp8E4M3) StoreOne<DType::kFp8E4M3>(out.data(), i, values[i]);
    if (dtype == DType::kFp8E5M2) StoreOne<DType::kFp8E5M2>(out.data(), i, values[i]);
  }
  return out;
}

// The values as they read back from storage of that type.
inline std::vector<float> Rounded(DType dtype, std::vector<float> values) {
  RoundRow(dtype, values.data(), static_cast<int64_t>(values.size()));
  return values;
}

// An output between canaries.
class GuardedFloats {
 public:
  explicit GuardedFloats(int64_t n) : memory_(n + 2 * kGuard, kCanary) {}

  float* data() { return memory_.data() + kGuard; }
  std::vector<float> values() const { return {memory_.begin() + kGuard, memory_.end() - kGuard}; }
  bool GuardsIntact() const {
    for (int i = 0; i < kGuard; ++i) {
      if (memory_[i] != kCanary || memory_[memory_.size() - 1 - i] != kCanary) return false;
    }
    return true;
  }

  static constexpr float kCanary = -7.75e33f;

 private:
  static constexpr int kGuard = 64;
  std::vector<float> memory_;
};

// Errors against a double reference.
struct ErrorStats {
  double max = 0;
  double mean = 0;
};

inline ErrorStats ErrorsOf(const std::vector<float>& got, const std::vector<double>& expected) {
  BATON_CHECK(got.size() == expected.size());
  ErrorStats stats;
  for (size_t i = 0; i < got.size(); ++i) {
    // A NaN must not slip through a comparison.
    const double error = std::isfinite(got[i]) ? std::fabs(got[i] - expected[i]) : INFINITY;
    stats.max = std::max(stats.max, error);
    stats.mean += error / static_cast<double>(got.size());
  }
  return stats;
}

// The acceptance rule of every operator: not worse than a plain fp32 loop by more than this.
inline void ExpectAccurate(const std::vector<float>& got, const std::vector<float>& plain,
                           const std::vector<double>& expected, const std::string& what) {
  const ErrorStats ours = ErrorsOf(got, expected);
  const ErrorStats theirs = ErrorsOf(plain, expected);
  EXPECT_LE(ours.max, 2 * theirs.max + 1e-5) << what;
  EXPECT_LE(ours.mean, 1.5 * theirs.mean + 1e-5) << what;
}

}  // namespace baton
