// Random products: every form that sm_90a has, each row alone, and the fusions have the bits of the
// form for every GPU, which an fp64 loop judges. BATON_FUZZ_SEED and BATON_FUZZ_CASES choose
// others.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gated_gemm.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_sm90.h"
#include "kernels/cuda/small_gemm_sm90.h"
#include "tests/kernels/cuda/device_fixture.h"
#include "tests/kernels/fuzz_numbers.h"

namespace baton::cuda {
namespace {

using Bytes = std::vector<std::byte>;

class RandomProduct {
 public:
  explicit RandomProduct(uint64_t seed) : random_(seed) {
    m = NearAnEdge(Chance(20) ? 600 : 140);
    n = NearAnEdge(Chance(20) ? 600 : 140);
    k = NearAnEdge(Chance(20) ? 1500 : 300);
    if (Chance(40)) {
      segments = 1 << (1 + Below(3));
      k = segments * 32 * (1 + Below(Chance(30) ? 12 : 4));
    }
    // What an emulated tensor core has the time for.
    while (m * n * k > 400'000) (m > n ? m : n) = (m > n ? m : n) / 2 + 1;
    in = Chance(50) ? DType::kBF16 : DType::kF16;
    out = Chance(50) ? DType::kF32 : in;
    has_bias = Chance(50);
    first_row = Chance(30) ? 32 * (1 + Below(3)) : 0;
    // Rows of tokens that tensor copies can load, mostly.
    a_stride = (k + 7) / 8 * 8 + 8 * Below(3);
    if (Chance(15)) a_stride = k + Below(9);
    gpu = Chance(70) ? "sm90" : Chance(50) ? "sm80" : "sm100";
  }

  std::string Name() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + " in " +
           std::to_string(segments) + " on " + gpu;
  }

  int64_t m, n, k, first_row, a_stride;
  int32_t segments = 1;
  DType in, out;
  bool has_bias;
  std::string gpu;

 private:
  int64_t Below(int64_t n) { return static_cast<int64_t>(random_.Below(n)); }
  bool Chance(int percent) { return Below(100) < percent; }
  int64_t NearAnEdge(int64_t most) {
    if (Chance(50)) return 1 + Below(most);
    const int64_t edge = int64_t{8} << Below(6);  // 8 to 256.
    return std::max<int64_t>(1, edge * (1 + Below(2)) - 1 + Below(3));
  }

  Random random_;
};

// Its operands on the device. Whatever lies between rows is NaN: nobody may read it.
class ProductThere {
 public:
  explicit ProductThere(const RandomProduct& product)
      : p_(product),
        a_(Rounded(p_.in, RandomFloats(1, p_.m * p_.k))),
        b_(Rounded(p_.in, RandomFloats(2, (p_.first_row + p_.n) * p_.k))),
        bias_(RandomFloats(3, p_.n)),
        a_there_(p_.in, WithGaps(a_, 0, p_.m)),
        b_there_(DeviceMatrix(p_.in, b_, p_.first_row + p_.n, p_.k)),
        bias_there_(DType::kF32, bias_),
        scratch_(DType::kF32, p_.segments * p_.m * p_.n) {}

  GemmArgs Args(const DeviceFloats& a, int64_t m, const DeviceFloats& out) const {
    return {.a = a,
            .a_stride = p_.a_stride,
            .m = m,
            .weights = &b_there_,
            .bias = p_.has_bias ? bias_there_.f32() : nullptr,
            .out = out,
            .out_stride = p_.n + kOutGap,
            .segments = p_.segments,
            .first_row = p_.first_row,
            .num_rows = p_.n};
  }
  GemmArgs Args(const DeviceFloats& out) const { return Args(a_there_, p_.m, out); }

  // What a form makes of rows [first, first + m), with scratch memory for so many.
  template <typename Form>
  Bytes Run(const Form& form, int64_t first, int64_t m) const {
    const DeviceFloats a(p_.in, WithGaps(a_, first, m));
    const DeviceFloats out = Out(m);
    EXPECT_EQ(form(Args(a, m, out)), cudaSuccess);
    return out.ReadBytes();
  }
  DeviceFloats Out(int64_t m) const {
    return DeviceFloats(p_.out, std::vector<float>(m * (p_.n + kOutGap), 7));
  }
  std::span<float> ScratchOf(int64_t m) const {
    return {scratch_.f32(), static_cast<size_t>(p_.segments * m * p_.n)};
  }

  template <typename Sum>
  std::vector<Sum> Loop() const {
    std::vector<Sum> sums;
    for (int64_t i = 0; i < p_.m; ++i) {
      for (int64_t j = 0; j < p_.n; ++j) {
        Sum sum = 0;
        for (int64_t d = 0; d < p_.k; ++d) {
          sum += Sum{a_[i * p_.k + d]} * Sum{b_[(p_.first_row + j) * p_.k + d]};
        }
        sums.push_back(sum + (p_.has_bias ? Sum{bias_[j]} : 0));
      }
    }
    return sums;
  }

  static constexpr int64_t kOutGap = 3;

 private:
  std::vector<float> WithGaps(const std::vector<float>& all, int64_t first, int64_t m) const {
    std::vector<float> rows(m * p_.a_stride, NAN);
    for (int64_t i = 0; i < m; ++i) {
      std::copy_n(all.begin() + (first + i) * p_.k, p_.k, rows.begin() + i * p_.a_stride);
    }
    return rows;
  }

  const RandomProduct& p_;
  const std::vector<float> a_, b_, bias_;
  const DeviceFloats a_there_;
  const PackedMatrix b_there_;
  const DeviceFloats bias_there_, scratch_;
};

class RandomProductTest : public DeviceTest {
 protected:
  void TearDown() override {
    DeviceTest::TearDown();
    emulation::SetGpu("sm90");
  }

  static void ExpectAccurateRows(const RandomProduct& p, const ProductThere& there,
                                 const Bytes& product) {
    const std::vector<float> padded = DeviceFloats::Decode(p.out, product);
    std::vector<float> got;
    for (int64_t i = 0; i < p.m; ++i) {
      const auto row = padded.begin() + i * (p.n + ProductThere::kOutGap);
      got.insert(got.end(), row, row + p.n);
      EXPECT_EQ(std::count(row + p.n, row + p.n + ProductThere::kOutGap, 7.0f),
                ProductThere::kOutGap);
    }
    ExpectAccurate(got, Rounded(p.out, there.Loop<float>()), there.Loop<double>(), "an fp64 loop");
  }

  static void ExpectEveryForm(const RandomProduct& p, const ProductThere& there,
                              const Bytes& expected) {
    const auto is_same = [&](const auto& form) { return there.Run(form, 0, p.m) == expected; };
    EXPECT_TRUE(is_same([&](const GemmArgs& args) {
      return Gemm(args, there.ScratchOf(p.m), nullptr);
    })) << "the form that is chosen";
    EXPECT_TRUE(is_same([&](const GemmArgs& args) {
      return MmaGemm(args, there.ScratchOf(1), nullptr);
    })) << "scratch memory for one row";
    if (!IsSm90() || !GemmSm90Takes(there.Args(there.Out(p.m)))) return;
    EXPECT_TRUE(is_same([](const GemmArgs& args) { return GemmSm90(args, nullptr); })) << "many";
    EXPECT_TRUE(is_same([](const GemmArgs& args) { return SmallGemmSm90(args, nullptr); }))
        << "few";
    if (p.segments > 1) return;
    EXPECT_TRUE(is_same([](const GemmArgs& args) { return WideGemmSm90(args, nullptr); }))
        << "wide";
  }

  // Some of the rows in a product of their own.
  static void ExpectRowsAlone(const RandomProduct& p, const ProductThere& there,
                              const Bytes& expected) {
    const int64_t row_bytes = (p.n + ProductThere::kOutGap) * SizeOf(p.out);
    Random random(p.m);
    for (const int64_t m : {int64_t{1}, 1 + static_cast<int64_t>(random.Below(p.m))}) {
      const auto first = static_cast<int64_t>(random.Below(p.m - m + 1));
      const Bytes got = there.Run(
          [&](const GemmArgs& args) { return Gemm(args, there.ScratchOf(m), nullptr); }, first, m);
      EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin() + first * row_bytes))
          << m << " rows from " << first;
    }
  }
};

TEST_F(RandomProductTest, IsAccurateAndHasTheSameBitsInEveryForm) {
  const uint64_t first = FirstFuzzSeed(), cases = FuzzCasesOrNightly(5, 100);
  for (uint64_t seed = first; seed < first + cases; ++seed) {
    const RandomProduct p(seed);
    SCOPED_TRACE("BATON_FUZZ_SEED=" + std::to_string(seed) + ": " + p.Name());
    emulation::SetGpu(p.gpu);
    emulation::SetSeed(seed);
    const ProductThere there(p);
    const Bytes expected = there.Run(
        [&](const GemmArgs& args) { return MmaGemm(args, there.ScratchOf(p.m), nullptr); }, 0, p.m);
    ExpectAccurateRows(p, there, expected);
    ExpectEveryForm(p, there, expected);
    ExpectRowsAlone(p, there, expected);
    if (HasFailure()) return;
  }
}

// The bits of a product and an activation one after the other.
TEST_F(RandomProductTest, GatesHaveTheBitsOfTheirParts) {
  const uint64_t first = FirstFuzzSeed(), cases = FuzzCasesOrNightly(5, 100);
  for (uint64_t seed = first; seed < first + cases; ++seed) {
    RandomProduct p(seed + 1'000'000);
    p.n = (p.n + 15) / 16 * 16;
    p.segments = 1;
    p.out = p.in;
    SCOPED_TRACE("BATON_FUZZ_SEED=" + std::to_string(seed) + ": " + p.Name());
    emulation::SetGpu(p.gpu);
    emulation::SetSeed(seed);
    const ProductThere there(p);
    const DeviceFloats between = there.Out(p.m), expected(p.in, p.m * p.n / 2);
    GatedGemmArgs args{.product = there.Args(between),
                       .activation = static_cast<ActivationKind>(seed % 4),
                       .round_to = p.in,
                       .out = expected,
                       .out_stride = p.n / 2};
    ASSERT_TRUE(GatedGemmServes(args));
    ASSERT_EQ(MmaGemm(args.product, {}, nullptr), cudaSuccess);
    ASSERT_EQ(ActivationAndMul(args.Activation(), nullptr), cudaSuccess);
    for (const auto form : {GatedGemm, MmaGatedGemm, SmallGatedGemmSm90}) {
      if (form == SmallGatedGemmSm90 && !(IsSm90() && GemmSm90Takes(args.product))) continue;
      const DeviceFloats got(p.in, p.m * p.n / 2);
      args.out = got;
      EXPECT_EQ(form(args, nullptr), cudaSuccess);
      EXPECT_TRUE(got.ReadBytes() == expected.ReadBytes());
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace baton::cuda
