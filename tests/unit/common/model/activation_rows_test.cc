#include "common/model/activation_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/make_device.h"

namespace baton {
namespace {

TEST(ActivationRowsTest, RowsLieBesideEachOtherInWholeUnits) {
  const Processors cpu = *MakeDevice({});
  const ActivationRows rows = *AllocateRows(*cpu.device, 3, 5, DType::kBF16);
  EXPECT_EQ(rows.data().dtype, DType::kBF16);
  EXPECT_EQ(rows.memory.size_bytes(), 32);
  EXPECT_TRUE(AllocateRows(*cpu.device, 0, 5, DType::kF32)->memory.data() == nullptr);
  EXPECT_TRUE(AllocateRows(*cpu.device, 5, 0, DType::kF32)->memory.data() == nullptr);
}

TEST(ActivationRowsTest, WhatIsTooMuchNamesTheTokensAndTheCure) {
  const Processors cpu = *MakeDevice({});
  const auto rows = AllocateRows(*cpu.device, int64_t{1} << 40, 1 << 20, DType::kF32);
  EXPECT_EQ(rows.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(rows.status().message()),
              testing::AllOf(testing::HasSubstr("for steps of 1099511627776 tokens"),
                             testing::HasSubstr("lower --chunk-tokens")));
}

}  // namespace
}  // namespace baton
