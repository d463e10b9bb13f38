#pragma once

#include "tests/kernels/fuzz_numbers.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/kernels/random_attention.h"

// A name for what a program fuzzes, where it stands beside another in one program (tests/gpu).
#ifndef BATON_FUZZED
#define BATON_FUZZED fuzzed
#endif

namespace baton {
inline namespace BATON_FUZZED {

// Whose operators a program fuzzes: fuzzed_cpu.cc has the kernel sets, cuda/fuzzed_device.cc and
// for experts cuda/moe_test.cc a GPU, where operands are copied there and back. UNIMPLEMENTED: the
// operator is not for such arguments.
std::vector<std::string> FuzzedNames();
std::unique_ptr<CpuKernels> MakeFuzzed(const std::string& name, int num_threads = 1);
bool FuzzedLacksForms();
// The nearest shapes that the kernels of the engine serve, and that it has the time for.
AttentionShapes Served(AttentionShapes shapes, uint64_t seed);
// Those that it has the time for.
AttentionShapes Affordable(AttentionShapes shapes);

inline constexpr int64_t kHostile[] = {-1,      0,         1,         -7,        3,
                                       1 << 20, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};

// Random arguments for every device; a test sets random_ from its seed.
class FuzzTest : public testing::TestWithParam<std::string> {
 protected:
  // A device that lacks what most cases ask for would not be tested.
  void TearDown() override {
    EXPECT_TRUE(FuzzedLacksForms() || lacking_ == 0);
    EXPECT_GE(served_ * 5, lacking_);
  }
  // False, also of what was refused: the operator has not run, and nothing may be written.
  bool HasRun(const absl::Status& status) {
    ++(absl::IsUnimplemented(status) ? lacking_ : served_);
    return status.ok();
  }
  static bool Lacks(const absl::Status& status) { return absl::IsUnimplemented(status); }
  int64_t Below(int64_t n) { return static_cast<int64_t>(random_.Below(n)); }
  bool Chance(int percent) { return Below(100) < percent; }
  template <typename T>
  void Spoil(T& value) {
    value = static_cast<T>(kHostile[Below(std::size(kHostile))]);
  }
  // To a value that is not above the true one: a larger one that agrees with everything else could
  // not be told from a true one.
  template <typename T>
  void SpoilDown(T& value) {
    const T old = value;
    Spoil(value);
    value = std::min(value, old);
  }

  std::unique_ptr<CpuKernels> kernels_ = MakeFuzzed(GetParam());
  Random random_{0};

 private:
  int64_t served_ = 0, lacking_ = 0;
};

}  // inline namespace BATON_FUZZED

#define BATON_FOR_EACH_FUZZED(suite)                                       \
  INSTANTIATE_TEST_SUITE_P(Devices, suite, testing::ValuesIn(FuzzedNames()), \
                           [](const auto& info) { return std::string(info.param); })

}  // namespace baton
