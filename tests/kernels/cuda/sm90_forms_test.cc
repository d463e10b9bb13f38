#include "kernels/cuda/sm90_forms.h"

#include <vector>

#include "kernels/cuda/gated_gemm.h"
#include "kernels/cuda/gemm.h"
#include "tests/kernels/cuda/cuda_device_fixture.h"
#include "tests/kernels/cuda/device_attention.h"

namespace baton::cuda {
namespace {

#if !defined(BATON_CUDA_DEVICE)

enum : int { kMany, kFew, kGated, kPrompt, kDecode };
// What a device computes of each, and by how many blocks: forms have shapes of their own.
struct Computed {
  std::vector<std::vector<std::byte>> bits;
  std::vector<int64_t> blocks;
};

// Of the thread's device, once it is `index`.
class Sm90FormsTest : public DeviceTest {
 protected:
  void SetUp() override {
    emulation::SetDevices(8);
    DeviceTest::SetUp();
    emulation::SetGpu("sm90");
    emulation::SetWgmma({.of_shared = emulation::Deviation::kHalves,
                         .of_registers = emulation::Deviation::kHalves});
  }
  void TearDown() override {
    emulation::SetWgmma({});
    emulation::SetGpu("sm90");
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    DeviceTest::TearDown();
    emulation::SetDevices(1);
  }

  static Computed Compute(int index, GemmForm many, GemmForm few) {
    EXPECT_EQ(cudaSetDevice(index), cudaSuccess);
    Computed computed;
    Multiply(257, many, computed);
    Multiply(3, few, computed);
    Gate(computed);
    Attend(65, false, computed);
    Attend(1, true, computed);
    return computed;
  }

 private:
  template <typename Launch>
  static void Count(Computed& computed, const Launch& launch) {
    const int64_t before = emulation::GetStatistics().blocks;
    launch();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << emulation::LastMessage();
    computed.blocks.push_back(emulation::GetStatistics().blocks - before);
  }
  static void Multiply(int64_t m, GemmForm form, Computed& computed) {
    const DeviceFloats a(DType::kBF16, RandomFloats(1, m * kDepth));
    const PackedMatrix weights = Weights();
    const DeviceFloats out(DType::kF32, m * kWeights);
    const GemmArgs args{.a = a,
                        .a_stride = kDepth,
                        .m = m,
                        .weights = &weights,
                        .out = out,
                        .out_stride = kWeights};
    EXPECT_EQ(FormOf(args), form);
    Count(computed, [&] { EXPECT_EQ(Gemm(args, {}, nullptr), cudaSuccess); });
    computed.bits.push_back(out.ReadBytes());
  }
  static void Gate(Computed& computed) {
    const DeviceFloats a(DType::kBF16, RandomFloats(1, kDepth));
    const PackedMatrix weights = Weights();
    const DeviceFloats out(DType::kBF16, int64_t{kWeights / 2});
    const GatedGemmArgs args{
        .product = {.a = a, .a_stride = kDepth, .m = 1, .weights = &weights, .out = out},
        .round_to = DType::kBF16,
        .out = out};
    Count(computed, [&] { EXPECT_EQ(GatedGemm(args, nullptr), cudaSuccess); });
    computed.bits.push_back(out.ReadBytes());
  }
  static void Attend(int32_t queries, bool decodes, Computed& computed) {
    AttentionShapes shape = Shape(kTypes[0], 64, {{queries, 80}});
    shape.heads = shape.kv_heads = 1;
    AttentionProblem problem(shape, 5);
    const DeviceProblem device(problem);
    Result result;
    Count(computed, [&] {
      result = device.Run({.scratch = decodes, .form = VarlenAttention, .counters = decodes});
    });
    const auto* bytes = reinterpret_cast<const std::byte*>(result.out.data());
    computed.bits.emplace_back(bytes, bytes + result.out.size() * sizeof(float));
  }
  static PackedMatrix Weights() {
    return DeviceMatrix(DType::kBF16, Rounded(DType::kBF16, RandomFloats(2, kWeights * kDepth)),
                        kWeights, kDepth);
  }

  static constexpr int64_t kWeights = 64, kDepth = 96;
};

// Devices that no other test opens: nobody takes a verdict back.
TEST_F(Sm90FormsTest, AGpuThatForgoesThemComputesAsOneWithoutThem) {
  constexpr int kSm90 = 2, kOther = 0;
  emulation::SetGpu(kOther, "sm100");  // With the mma.sync of a sm_90.
  const Computed other = Compute(kOther, GemmForm::kMma, GemmForm::kMma);
  const Computed own = Compute(kSm90, GemmForm::kManyRowsSm90, GemmForm::kFewRowsSm90);
  for (const int i : {kMany, kFew, kPrompt}) EXPECT_NE(own.bits[i], other.bits[i]) << i;
  // Decode's form multiplies by mma.sync; what is gated is rounded to bf16.
  EXPECT_EQ(own.bits[kDecode], other.bits[kDecode]);
  for (const int i : {kGated, kPrompt, kDecode}) {
    EXPECT_NE(own.blocks[i], other.blocks[i]) << i;
  }
  {
    const auto opened = MakeCudaDevice(kSm90);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_NE((*opened)->info().foregone, "");
  }
  const Computed forgoing = Compute(kSm90, GemmForm::kMma, GemmForm::kMma);
  EXPECT_EQ(forgoing.bits, other.bits);
  EXPECT_EQ(forgoing.blocks, other.blocks);
}

// As long as nothing is known, and where nothing differs.
TEST_F(Sm90FormsTest, AnSm90TakesThemUntilItIsToldOtherwise) {
  constexpr int kSm90 = 3;
  ASSERT_EQ(cudaSetDevice(kSm90), cudaSuccess);
  EXPECT_TRUE(TakesSm90Forms());
  emulation::SetGpu("sm80");
  EXPECT_FALSE(TakesSm90Forms());
  emulation::SetGpu("sm90");
  ForgoSm90Forms();
  EXPECT_FALSE(TakesSm90Forms());
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_TRUE(TakesSm90Forms());
}

#endif

}  // namespace
}  // namespace baton::cuda
