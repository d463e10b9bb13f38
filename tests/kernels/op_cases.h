#pragma once

#include "tests/kernels/kernel_fixture.h"

namespace baton {

// Whose operators a body tests, and in which types. A program has those of the CPU, whose operands
// are always f32 (op_cases_cpu.cc), or those of a GPU (cuda/op_cases_device.cc).
struct OpCase {
  std::string ops;
  DType in = DType::kF32;   // Inputs are rounded to it by the body.
  DType out = DType::kF32;  // And outputs by the operator.
  uint64_t seed = 1;
};

std::vector<OpCase> OpCases();

// They take operands of the host in f32. A GPU has copies of them between canaries, typed as the
// case says, aligned as the host's are, and gives back what it wrote.
std::unique_ptr<CpuKernels> MakeOps(const OpCase& which);

class OpTest : public testing::TestWithParam<OpCase> {
 protected:
  const DType in_ = GetParam().in, out_ = GetParam().out;
  const uint64_t seed_ = GetParam().seed;
  const std::unique_ptr<CpuKernels> ops_ = MakeOps(GetParam());
};

#define BATON_FOR_EACH_OP_CASE(suite)                                                        \
  INSTANTIATE_TEST_SUITE_P(Cases, suite, testing::ValuesIn(OpCases()), [](const auto& info) { \
    return info.param.ops + "_" + std::string(ToString(info.param.in)) + "_to_" +            \
           std::string(ToString(info.param.out));                                            \
  })

}  // namespace baton
