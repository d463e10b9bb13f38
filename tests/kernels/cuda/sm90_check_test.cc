#include "kernels/cuda/sm90_check.h"

#include <gmock/gmock.h>

#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/gemm_sm90.h"
#include "kernels/cuda/sm90_forms.h"
#include "tests/kernels/cuda/cuda_device_fixture.h"

namespace baton::cuda {
namespace {

class Sm90CheckTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    emulation::SetGpu("sm90");
    if (!IsSm90()) GTEST_SKIP() << "the device is no sm_90";
  }

  static absl::Status Synchronize() {
    return cudaDeviceSynchronize() == cudaSuccess ? absl::OkStatus()
                                                  : absl::UnavailableError("lost");
  }
  // What it finds, whatever is known of the device already.
  static absl::StatusOr<std::string> TryCompare(
      absl::FunctionRef<absl::Status()> wait = Synchronize) {
    const DeviceBytes memory{std::vector<std::byte>(kSm90CheckBytes)};
    const Buffer room(static_cast<std::byte*>(memory.data()), kSm90CheckBytes, nullptr);
    auto found = CompareSm90Forms({.memory = room, .stream = nullptr, .wait = wait});
    if (found.ok()) {
      EXPECT_EQ(memory.Read(), std::vector(kSm90CheckBytes, std::byte{0xff}));
    }
    return found;
  }
};

TEST_F(Sm90CheckTest, FindsNothingWhereBothFormsAddAlike) {
  const auto found = TryCompare();
  ASSERT_TRUE(found.ok()) << found.status() << emulation::LastMessage();
  EXPECT_EQ(*found, "");
}

#if !defined(BATON_CUDA_DEVICE)

using emulation::Deviation;

constexpr Deviation kDeviations[] = {Deviation::kFewerBits,     Deviation::kMoreBits,
                                     Deviation::kNearest,       Deviation::kHalves,
                                     Deviation::kSwappedHalves, Deviation::kFlushes};
constexpr int kKernels = 14;  // Of a comparison.

class DeviatingSm90Test : public Sm90CheckTest {
 protected:
  void SetUp() override {
    emulation::SetDevices(8);
    Sm90CheckTest::SetUp();
  }
  void TearDown() override {
    emulation::SetWgmma({});
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    Sm90CheckTest::TearDown();
    emulation::SetDevices(1);
  }

  static std::string Find(const emulation::WgmmaSums& sums) {
    emulation::SetWgmma(sums);
    return TryCompare().value_or("an error");
  }
  static std::string Foregone(int index) {
    const auto device = MakeCudaDevice(index);
    return device.ok() ? (*device)->info().foregone : device.status().ToString();
  }
  // Whether the device that is opened last takes its forms.
  static bool TakesForms(int index) {
    EXPECT_EQ(cudaSetDevice(index), cudaSuccess);
    return TakesSm90Forms();
  }
};

// The inputs are hard enough for each, in both types and by each form that multiplies so.
TEST_F(DeviatingSm90Test, EveryWayOfAddingOtherwiseFromSharedMemoryIsFound) {
  for (const Deviation deviation : kDeviations) {
    EXPECT_EQ(Find({.of_shared = deviation}),
              "bf16 products of many rows, bf16 products of few rows, bf16 products of 8 rows, "
              "bf16 products of wide tiles, "
              "f16 products of many rows, f16 products of few rows, f16 products of 8 rows, "
              "f16 products of wide tiles")
        << static_cast<int>(deviation);
  }
}

TEST_F(DeviatingSm90Test, EveryWayOfAddingOtherwiseFromRegistersIsFound) {
  for (const Deviation deviation : kDeviations) {
    EXPECT_EQ(Find({.of_registers = deviation}), "bf16 attention, f16 attention")
        << static_cast<int>(deviation);
  }
}

// A verdict stays as long as the process: each test here opens devices that no other one does.
TEST_F(DeviatingSm90Test, OneGpuForgoesItsFormsAndTheOtherDoesNot) {
  emulation::SetWgmma(2, {.of_registers = Deviation::kFewerBits});
  EXPECT_EQ(Foregone(2), "bf16 attention, f16 attention");
  EXPECT_EQ(Foregone(3), "");
  EXPECT_FALSE(TakesForms(2));
  EXPECT_TRUE(TakesForms(3));
  // A sm_100 has none to forgo.
  emulation::SetGpu("sm100");
  EXPECT_FALSE(TakesForms(3));
  emulation::SetGpu("sm90");
}

TEST_F(DeviatingSm90Test, AGpuIsComparedOnceWhoeverOpensIt) {
  const int64_t before = emulation::GetStatistics().kernels;
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      ranks.emplace_back([rank] { EXPECT_EQ(Foregone(4 + rank % 2), ""); });
    }
  }
  EXPECT_EQ(emulation::GetStatistics().kernels - before, 2 * kKernels);
  EXPECT_EQ(Foregone(4), "");
  EXPECT_EQ(emulation::GetStatistics().kernels - before, 2 * kKernels);
}

TEST_F(DeviatingSm90Test, AVerdictIsToldToEveryoneWhoOpensTheGpu) {
  emulation::SetWgmma(6, {.of_shared = Deviation::kNearest});
  const std::string found = Foregone(6);
  EXPECT_THAT(found, testing::HasSubstr("f16 products of many rows"));
  emulation::SetWgmma({});
  EXPECT_EQ(Foregone(6), found);
}

// In whichever of its kernels it is lost; then nothing is known of it.
TEST_F(DeviatingSm90Test, AGpuThatIsLostMeanwhileIsNotOpenedAndNotJudged) {
  for (int kernel = 1; kernel <= kKernels; ++kernel) {
    emulation::LoseInKernel(kernel);
    EXPECT_EQ(TryCompare().status().code(), absl::StatusCode::kUnavailable) << kernel;
    emulation::ResetDevice();
  }
  emulation::LoseInKernel(kKernels);
  const absl::Status lost = MakeCudaDevice(7).status();
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(lost.ToString(), testing::HasSubstr("device = cuda:7: emulated sm_90: "));
  emulation::ResetDevice();
  emulation::SetWgmma(7, {.of_shared = Deviation::kHalves});
  EXPECT_THAT(Foregone(7), testing::HasSubstr("bf16 products of few rows"));
  EXPECT_FALSE(TakesForms(7));
}

// Nothing but its wait has a limit.
TEST_F(DeviatingSm90Test, WhatHasNotEndedIsNotLookedAt) {
  const auto wait = [] { return absl::DeadlineExceededError("not within 30 s"); };
  EXPECT_EQ(TryCompare(wait).status().message(), "not within 30 s");
}

// Who opened it before there was a verdict has as much as who does so after.
TEST_F(DeviatingSm90Test, TheCheckLeavesNoMemoryBehind) {
  const auto memory = [] {
    const auto device = MakeCudaDevice(1);
    EXPECT_TRUE(device.ok()) << device.status();
    return *(*device)->Memory();
  };
  const DeviceMemory first = memory(), second = memory();
  EXPECT_EQ(first.free, second.free);
  EXPECT_EQ(first.taken, second.taken);
}

#endif

}  // namespace
}  // namespace baton::cuda
