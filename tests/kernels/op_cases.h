#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/kernels/kernel_fixture.h"

namespace baton {

// Whose operators a body tests, and in which types. A program has those of the CPU, whose operands
// are always f32 (op_cases_cpu.cc), or those of a GPU (cuda/op_cases_device.cc).
struct OpCase {
  std::string ops;
  DType in = DType::kF32;   // Inputs are rounded to it by the body.
  DType out = DType::kF32;  // And outputs by the operator.
  uint64_t seed = 1;
  bool typed = false;  // Memory holds those types; without it all is f32.
};

std::vector<OpCase> OpCases();
// Those for operators whose inputs and outputs have one type.
inline std::vector<OpCase> OpCasesOfOneType() {
  std::vector<OpCase> cases = OpCases();
  std::erase_if(cases, [](const OpCase& one) { return one.in != one.out; });
  return cases;
}

// They take operands of the host in f32. A GPU has copies of them between canaries, typed as the
// case says, aligned as the host's are, and gives back what it wrote.
std::unique_ptr<CpuKernels> MakeOps(const OpCase& which);

class OpTest : public testing::TestWithParam<OpCase> {
 protected:
  // What memory of that type makes of values, where no operator is told to round them.
  std::vector<float> Stored(DType type, const std::vector<float>& values) const {
    return GetParam().typed ? Rounded(type, values) : values;
  }

  const DType in_ = GetParam().in, out_ = GetParam().out;
  const uint64_t seed_ = GetParam().seed;
  const std::unique_ptr<CpuKernels> ops_ = MakeOps(GetParam());
};

inline std::vector<float> Cut(const std::vector<float>& all, int64_t begin, int64_t n) {
  return {all.begin() + begin, all.begin() + begin + n};
}

// Behind `shift` other elements: no vector can load from there.
inline std::vector<float> Behind(size_t shift, std::vector<float> values) {
  values.insert(values.begin(), shift, -3);
  return values;
}

// An output that holds these values until they are written.
inline GuardedFloats Guarded(const std::vector<float>& values) {
  GuardedFloats out(std::ssize(values));
  std::copy(values.begin(), values.end(), out.data());
  return out;
}

inline GuardedFloats Sevens(int64_t n) { return Guarded(std::vector<float>(n, 7)); }

#define BATON_FOR_EACH_OP_CASE(suite, cases)                                              \
  INSTANTIATE_TEST_SUITE_P(Cases, suite, testing::ValuesIn(cases), [](const auto& info) { \
    return info.param.ops + "_" + std::string(ToString(info.param.in)) + "_to_" +         \
           std::string(ToString(info.param.out));                                         \
  })

}  // namespace baton
