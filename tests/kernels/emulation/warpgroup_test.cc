#include "kernels/emulation/warpgroup.h"

#include <cmath>
#include <utility>
#include <vector>

#include "kernels/emulation/tensor_core.h"
#include "tests/kernels/emulation/async_fixture.h"

namespace baton::emulation {
namespace {

using detectors::AsyncFault;
using detectors::HeldFault;

std::vector<float> Numbers(uint64_t seed, int64_t count) {
  return Rounded(DType::kBF16, RandomFloats(seed, count));
}

// a * b, one mma.sync k16 after the other from zero; b_at(k, j) is where an element of b lies.
template <typename BAt>
std::vector<float> SumsOfMma(const std::vector<float>& a, const std::vector<float>& b,
                             const BAt& b_at, const SumRule& rule = RuleOf(Architecture::kHopper)) {
  std::vector<float> sums(kAsyncRows * kAsyncColumns);
  for (int i0 = 0; i0 < kAsyncRows; i0 += 16) {
    for (int j0 = 0; j0 < kAsyncColumns; j0 += 8) {
      TileProduct tile = {};
      for (int k0 = 0; k0 < kAsyncDepth; k0 += 16) {
        for (int k = 0; k < 16; ++k) {
          for (int i = 0; i < 16; ++i) tile.a[i][k] = a[(i0 + i) * kAsyncDepth + k0 + k];
          for (int j = 0; j < 8; ++j) tile.b[k][j] = b[b_at(k0 + k, j0 + j)];
        }
        MultiplyTile(rule, -126, tile);
      }
      for (int i = 0; i < 16; ++i) {
        for (int j = 0; j < 8; ++j) sums[(i0 + i) * kAsyncColumns + j0 + j] = tile.c[i][j];
      }
    }
  }
  return sums;
}

TEST(WarpgroupTest, ProductsOfCopiedTilesHaveTheSumsOfMma) {
  const auto a = Numbers(1, kAsyncRows * kAsyncDepth), b = Numbers(2, kAsyncColumns * kAsyncDepth);
  const std::vector<float> expected =
      SumsOfMma(a, b, [](int k, int j) { return j * kAsyncDepth + k; });
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const AsyncResult result = RunAsync(AsyncFault::kNone, seed, a, b);
    EXPECT_EQ(result.message, "");
    ASSERT_EQ(result.out, expected);
  }
}

// The first operand in registers, the second by rows.
TEST(WarpgroupTest, ProductsOfHeldOperandsHaveTheSumsOfMma) {
  const auto a = Numbers(3, kAsyncRows * kAsyncDepth), b = Numbers(4, kAsyncColumns * kAsyncDepth);
  const std::vector<float> expected =
      SumsOfMma(a, b, [](int k, int j) { return k * kAsyncColumns + j; });
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const AsyncResult result = RunHeld(HeldFault::kNone, seed, a, b);
    EXPECT_EQ(result.message, "");
    ASSERT_EQ(result.out, expected);
  }
}

// Each operand has a way of its own, which mma.sync does not take part in.
TEST(WarpgroupTest, DeviatesWhereItIsTold) {
  const auto a = Numbers(1, kAsyncRows * kAsyncDepth), b = Numbers(2, kAsyncColumns * kAsyncDepth);
  const auto by_columns = [](int k, int j) { return j * kAsyncDepth + k; };
  const auto by_rows = [](int k, int j) { return k * kAsyncColumns + j; };
  const SumRule shared = RuleOf(Deviation::kHalves), held = RuleOf(Deviation::kFewerBits);
  SetWgmma({.of_shared = Deviation::kHalves, .of_registers = Deviation::kFewerBits});
  EXPECT_EQ(RunAsync(AsyncFault::kNone, 1, a, b).out, SumsOfMma(a, b, by_columns, shared));
  EXPECT_EQ(RunHeld(HeldFault::kNone, 1, a, b).out, SumsOfMma(a, b, by_rows, held));
  SetWgmma({});
  EXPECT_EQ(RunAsync(AsyncFault::kNone, 1, a, b).out, SumsOfMma(a, b, by_columns));
  EXPECT_NE(SumsOfMma(a, b, by_columns), SumsOfMma(a, b, by_columns, shared));
  EXPECT_NE(SumsOfMma(a, b, by_rows), SumsOfMma(a, b, by_rows, held));
}

TEST(WarpgroupTest, FaultsOfHeldOperandsAreFound) {
  const std::vector<float> a(kAsyncRows * kAsyncDepth, 1), b(kAsyncColumns * kAsyncDepth, 1);
  const std::pair<HeldFault, const char*> faults[] = {
      {HeldFault::kNoFence, "with no wgmma.fence for its operand"},
      {HeldFault::kWritesFencedOperand, "has written operand of the wgmma"},
      {HeldFault::kWritesOperand, "has written an operand of a wgmma before it waited"},
      {HeldFault::kMisplacedRows, "do not begin at a multiple of 1024 B"}};
  for (const auto& [fault, says] : faults) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      EXPECT_THAT(RunHeld(fault, seed, a, b).message, testing::HasSubstr(says)) << seed;
    }
  }
}

class WarpgroupDetectorTest : public testing::TestWithParam<AsyncDetection> {};

TEST_P(WarpgroupDetectorTest, FindsItsFaultInAnyOrderOfThreads) { ExpectDetected(GetParam()); }

const AsyncDetection kWarpgroupFaults[] = {
    {AsyncFault::kReusesTooEarly, "ReusesTooEarly", {"while a wgmma reads it"}},
    {AsyncFault::kReusesUnasked, "ReusesUnasked", {"writes shared byte"}},
    {AsyncFault::kNoProxyFence, "NoProxyFence", {"with no fence.proxy.async behind it"}},
    {AsyncFault::kNoSumsFence, "NoSumsFence", {"with no wgmma.fence for its sums"}},
    {AsyncFault::kWritesSums, "WritesSums", {"has written sums of a wgmma before it waited"}},
    {AsyncFault::kWritesFencedSums, "WritesFencedSums", {"has written sums", "after its fence"}},
    {AsyncFault::kProductNotWaited, "ProductNotWaited", {"exits with a wgmma never waited for"}},
    {AsyncFault::kSplitWarpgroup, "SplitWarpgroup", {"warpgroup divergence"}},
    {AsyncFault::kOtherTiles, "OtherTiles", {"names other tiles"}},
    {AsyncFault::kMisplacedTile, "MisplacedTile", {"does not begin in the first row"}},
};
INSTANTIATE_TEST_SUITE_P(Faults, WarpgroupDetectorTest, testing::ValuesIn(kWarpgroupFaults),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(WarpgroupTest, FencedWritesAreSeenAndUnfinishedSumsAreNone) {
  const std::vector<float> a(kAsyncRows * kAsyncDepth, 1), b(kAsyncColumns * kAsyncDepth, 1);
  const AsyncResult written = RunAsync(AsyncFault::kProxyFence, 1, a, b);
  EXPECT_EQ(written.message, "");
  EXPECT_EQ(written.out, std::vector<float>(kAsyncRows * kAsyncColumns, 0));
  const AsyncResult early = RunAsync(AsyncFault::kReadsSums, 1, a, b);
  EXPECT_EQ(early.message, "");
  for (const float x : early.out) ASSERT_TRUE(std::isnan(x));
}

TEST(WarpgroupTest, NeedsAHopper) {
  ResetDevice();
  SetGpu("sm80");
  const std::vector<uint16_t> zeros(kAsyncColumns * kAsyncDepth);
  void* a = UploadBytes(zeros.data(), 2 * zeros.size());
  void* out = nullptr;
  ASSERT_EQ(cudaMalloc(&out, kAsyncRows * kAsyncColumns * sizeof(float)), cudaSuccess);
  const auto* tile = static_cast<uint16_t*>(a);
  EXPECT_EQ(
      detectors::RunAsyncFault(AsyncFault::kNone, tile, tile, static_cast<float*>(out), nullptr),
      cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT_THAT(LastMessage(), testing::HasSubstr("on a GPU without it"));
  SetGpu("sm90");
  ResetDevice();
  for (void* p : {a, out}) EXPECT_EQ(cudaFree(p), cudaSuccess);
}

}  // namespace
}  // namespace baton::emulation
