#include "kernels/cpu/cpu_device.h"

#include <algorithm>
#include <numeric>

#include "tests/kernels/kernel_fixture.h"

namespace baton {
namespace {

TEST(CpuDeviceTest, Bf16IsTheFastestOnlyForBf16WeightsOnADotProduct) {
  for (const std::string& name : KernelSets()) {
    const auto kernels = MakeTestKernels(name);
    CpuDevice device(kernels.get());
    EXPECT_EQ(&device.library(), kernels.get());
    const DType bf16 = kernels->has_bf16_dot() ? DType::kBF16 : DType::kF32;
    EXPECT_EQ(device.FastestCompute(DType::kBF16), bf16) << name;
    EXPECT_EQ(device.FastestCompute(DType::kF16), DType::kF32) << name;
    EXPECT_EQ(device.FastestCompute(DType::kF32), DType::kF32) << name;
    EXPECT_EQ(device.Arithmetic(DType::kBF16), kernels->numerics(DType::kBF16));
    EXPECT_EQ(device.info().name, name);
  }
}

TEST(CpuDeviceTest, ComputesInF32AndBf16AndRefusesF16ByName) {
  const auto kernels = MakeTestKernels("portable");
  const CpuDevice device(kernels.get());
  EXPECT_TRUE(device.CheckModel({.compute = DType::kF32}).ok());
  EXPECT_TRUE(device.CheckModel({.compute = DType::kBF16}).ok());
  EXPECT_EQ(device.CheckModel({.compute = DType::kF16}).message(),
            "compute_dtype = f16: CPUs compute in f32 or bf16; take another --compute-dtype, or a "
            "GPU by --device cuda");
}

TEST(CpuDeviceTest, HeadsThatNoKernelServesAreRefusedByName) {
  const auto kernels = MakeTestKernels("portable");
  const CpuDevice device(kernels.get());
  EXPECT_TRUE(device.CheckModel({.head_dim = 256}).ok());
  EXPECT_EQ(device.CheckModel({.head_dim = 258}).message(),
            "head_dim = 258: CPUs serve up to 256");
}

TEST(CpuDeviceTest, CopiesEachPieceWhetherFewBytesOrMany) {
  const auto kernels = MakeTestKernels("portable", 3);
  CpuDevice device(kernels.get());
  for (const int64_t bytes : {8, 4096, 1 << 17}) {
    std::vector<std::byte> from(5 * bytes), to(6 * bytes, std::byte{0xee});
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 31 + i / 256);
    // In another order, a gap where the sixth would be.
    std::vector<CopyPiece> pieces;
    for (const int64_t i : {4, 0, 2, 1, 3}) {
      pieces.push_back({from.data() + i * bytes, to.data() + (4 - i) * bytes, bytes});
    }
    ASSERT_TRUE(device.CopyPieces(Lane::kCopies, pieces).ok());
    for (int64_t i = 0; i < 5; ++i) {
      EXPECT_EQ(std::memcmp(to.data() + (4 - i) * bytes, from.data() + i * bytes, bytes), 0) << i;
    }
    EXPECT_TRUE(std::all_of(to.end() - bytes, to.end(),
                            [](std::byte b) { return b == std::byte{0xee}; }));
  }
}

TEST(CpuDeviceTest, EveryMarkIsDoneAndThereAreNoGraphs) {
  const auto kernels = MakeTestKernels("portable");
  CpuDevice device(kernels.get());
  EXPECT_TRUE(device.info().unified);
  for (const Lane lane : {Lane::kCompute, Lane::kCopies, Lane::kTransfer}) {
    const absl::StatusOr<Mark> mark = device.MarkNow(lane);
    ASSERT_TRUE(mark.ok());
    EXPECT_TRUE(*device.IsDone(*mark));
  }
  EXPECT_EQ(device.Capture([] { return absl::OkStatus(); }).status().code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(device.Launch(Graph()).code(), absl::StatusCode::kUnimplemented);
  const absl::StatusOr<DeviceMemory> memory = device.Memory();
  ASSERT_TRUE(memory.ok());
  EXPECT_GT(memory->free, 0);
  EXPECT_GT(memory->total, memory->free);
}

}  // namespace
}  // namespace baton
