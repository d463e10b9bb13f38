// Operators on each element alone, of every device: their bits are those of the portable kernel set
// on every one, rounded to what they write, and there they agree with formulas in fp64.
// Norms: norms_test.cc.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/op_cases.h"

namespace baton {
namespace {

// Around the CPU's vectors and a GPU's of 4, and more than a block of threads.
constexpr int64_t kDims[] = {1, 2, 3, 4, 6, 64, 127, 1030};
constexpr int64_t kTokens = 3;
constexpr ActivationKind kActivations[] = {ActivationKind::kSilu, ActivationKind::kGelu,
                                           ActivationKind::kGeluTanh, ActivationKind::kRelu};

double ActivationOf(ActivationKind kind, double x) {
  switch (kind) {
    case ActivationKind::kSilu:
      return x / (1 + std::exp(-x));
    case ActivationKind::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case ActivationKind::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ActivationKind::kRelu:
      return std::max(x, 0.0);
  }
  return NAN;
}

double ToleranceOf(double x) { return 3e-6 * std::max(1.0, std::abs(x) / 20); }

// What is no number there must be none here.
void ExpectNear(float got, double exact, double tolerance) {
  if (std::isnan(exact)) {
    EXPECT_TRUE(std::isnan(got)) << got;
  } else {
    EXPECT_NEAR(got, exact, tolerance);
  }
}

// The same bits; any NaN is as good as another.
void ExpectSame(const std::vector<float>& got, const std::vector<float>& expected,
                const std::string& what) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const bool same = FloatBits(got[i]) == FloatBits(expected[i]) ||
                      (std::isnan(got[i]) && std::isnan(expected[i]));
    ASSERT_TRUE(same) << what << ", element " << i << ": " << got[i] << ", not " << expected[i];
  }
}

// Dense rows so far from each other, `between` them.
std::vector<float> Spread(const std::vector<float>& dense, int64_t width, int64_t stride,
                          float between) {
  std::vector<float> rows(std::ssize(dense) / width * stride, between);
  for (int64_t i = 0; i < std::ssize(dense); ++i) rows[i / width * stride + i % width] = dense[i];
  return rows;
}

class ElementwiseTest : public OpTest {
 protected:
  // Also large ones, where functions saturate.
  std::vector<float> Values(uint64_t seed, int64_t n) const {
    auto x = RandomFloats(seed, n);
    for (int64_t i = 0; i < n; ++i) x[i] *= i % 7 == 0 ? 200.0f : i % 2 == 0 ? 20.0f : 4.0f;
    return Rounded(in_, x);
  }

  // Of dense rows.
  static std::vector<float> Activate(CpuKernels& ops, ActivationKind kind, DType round_to,
                                     const std::vector<float>& x, int64_t tokens, size_t shift = 0,
                                     bool in_place = false) {
    const auto from = Behind(shift, x);
    GuardedFloats out = in_place ? Guarded(x) : Sevens(std::ssize(x));
    const float* read = in_place ? out.data() : from.data() + shift;
    const int64_t dim = std::ssize(x) / tokens;
    EXPECT_EQ(ops.Activation({read, tokens, dim, kind, round_to, out.data()}), absl::OkStatus());
    EXPECT_TRUE(out.GuardsIntact());
    return out.values();
  }

  // 0 as a stride: dense rows.
  static std::vector<float> ActivateAndMul(CpuKernels& ops, ActivationAndMulArgs args,
                                           const std::vector<float>& gate_up) {
    const int64_t stride = args.out_stride == 0 ? args.dim : args.out_stride;
    GuardedFloats out = Sevens(args.num_tokens * stride);
    args.gate_up = gate_up.data();
    args.out = out.data();
    EXPECT_EQ(ops.ActivationAndMul(args), absl::OkStatus());
    EXPECT_TRUE(out.GuardsIntact());
    return out.values();
  }

  static std::vector<float> Softcap(CpuKernels& ops, const std::vector<float>& x, int64_t dim,
                                    int64_t stride) {
    GuardedFloats got = Guarded(x);
    EXPECT_EQ(ops.Softcap({got.data(), stride, std::ssize(x) / stride, dim, 30.0f}),
              absl::OkStatus());
    EXPECT_TRUE(got.GuardsIntact());
    return got.values();
  }

  // Rows of `values`, of the type of inputs.
  PackedMatrix Pack(const std::vector<float>& values, int64_t dim) const {
    const auto bytes = Encode(in_, values);
    const WeightRows part{bytes.data(), in_, std::ssize(values) / dim};
    return *ops_->PackWeights({.parts = &part, .num_parts = 1, .k = dim});
  }

  const std::unique_ptr<CpuKernels> portable_ = MakeTestKernels("portable");
};

TEST_P(ElementwiseTest, RopeRotatesPairsAndLeavesTheRest) {
  for (const auto& [dim, rotary] :
       {std::pair{8, 8}, {10, 10}, {80, 80}, {68, 64}, {10, 6}, {6, 2}}) {
    for (const bool interleaved : {false, true}) {
      const int64_t heads = 3, tokens = 5, half = rotary / 2, stride = heads * dim + 5;
      auto x = Rounded(in_, RandomFloats(seed_ + dim, tokens * stride));
      x[dim] = x[stride - 1] = NAN;  // One that turns, and one behind a row.
      const auto cos = RandomFloats(seed_ + 1, tokens * half);
      const auto sin = RandomFloats(seed_ + 2, tokens * half);
      const auto run = [&, dim = dim, rotary = rotary](CpuKernels& ops) {
        GuardedFloats got = Guarded(x);
        EXPECT_EQ(ops.Rope({.x = got.data(),
                            .x_stride = stride,
                            .num_tokens = tokens,
                            .num_heads = heads,
                            .head_dim = dim,
                            .rotary_dim = rotary,
                            .cos = cos.data(),
                            .sin = sin.data(),
                            .interleaved = interleaved}),
                  absl::OkStatus());
        EXPECT_TRUE(got.GuardsIntact());
        return got.values();
      };
      const auto plain = run(*portable_);
      std::vector<double> exact(x.begin(), x.end());
      for (int64_t i = 0; i < tokens * heads * half; ++i) {
        const int64_t pair = i % half, t = i / half / heads, c = t * half + pair;
        const int64_t head = t * stride + i / half % heads * dim;
        const int64_t a = head + (interleaved ? 2 * pair : pair);
        const int64_t b = interleaved ? a + 1 : a + half;
        exact[a] = double{x[a]} * cos[c] - double{x[b]} * sin[c];
        exact[b] = double{x[b]} * cos[c] + double{x[a]} * sin[c];
      }
      for (size_t i = 0; i < x.size(); ++i) ExpectNear(plain[i], exact[i], 2e-7);
      ExpectSame(run(*ops_), Stored(in_, plain), "rope of " + std::to_string(rotary));
    }
  }
}

TEST_P(ElementwiseTest, ActivationsAgreeWithTheirFormulasFromFarBelowToFarAboveZero) {
  for (const int64_t dim : kDims) {
    for (const ActivationKind kind : kActivations) {
      const auto x = Values(seed_ + dim, kTokens * dim);
      const auto plain = Activate(*portable_, kind, DType::kF32, x, kTokens);
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_NEAR(plain[i], ActivationOf(kind, x[i]), ToleranceOf(x[i])) << x[i];
      }
      for (const size_t shift : {0, 1}) {
        ExpectSame(Activate(*ops_, kind, out_, x, kTokens, shift), Rounded(out_, plain),
                   "dim " + std::to_string(dim));
      }
      if (in_ != out_) continue;  // In place there is one type.
      ExpectSame(Activate(*ops_, kind, out_, x, kTokens, 0, true), Rounded(out_, plain),
                 "in place");
    }
  }
}

// Of rows with gaps between them, too: nobody reads or writes there.
TEST_P(ElementwiseTest, ActivationsTimesUpAgreeWithTheirFormulas) {
  for (const int64_t dim : kDims) {
    for (const ActivationKind kind : kActivations) {
      const auto x = Values(seed_ + dim, kTokens * 2 * dim);
      ActivationAndMulArgs args{.num_tokens = kTokens, .dim = dim, .activation = kind};
      const auto plain = ActivateAndMul(*portable_, args, x);
      for (int64_t i = 0; i < kTokens * dim; ++i) {
        const int64_t at = i / dim * 2 * dim + i % dim;
        const double gate = x[at], up = x[at + dim];
        EXPECT_NEAR(plain[i], ActivationOf(kind, gate) * up,
                    ToleranceOf(gate) * std::max(1.0, std::abs(up)));
      }
      args.round_to = out_;
      for (const int64_t gap : {0, 1, 4}) {
        const int64_t stride = 2 * dim + gap, out_stride = dim + gap;
        args.gate_up_stride = gap == 0 ? 0 : stride;
        args.out_stride = gap == 0 ? 0 : out_stride;
        ExpectSame(ActivateAndMul(*ops_, args, Spread(x, 2 * dim, stride, NAN)),
                   Spread(Rounded(out_, plain), dim, out_stride, 7),
                   "dim " + std::to_string(dim) + ", gap " + std::to_string(gap));
      }
    }
  }
}

TEST_P(ElementwiseTest, SoftcapBendsLogitsTowardsItsCapInPlace) {
  for (const int64_t dim : kDims) {
    for (const int64_t gap : {3, 4}) {
      const auto x = Spread(Values(seed_, kTokens * dim), dim, dim + gap, NAN);
      const auto plain = Softcap(*portable_, x, dim, dim + gap);
      for (size_t i = 0; i < x.size(); ++i) ExpectNear(plain[i], 30 * std::tanh(x[i] / 30.0), 1e-5);
      ExpectSame(Softcap(*ops_, x, dim, dim + gap), Stored(in_, plain),
                 "dim " + std::to_string(dim));
    }
  }
}

TEST_P(ElementwiseTest, WhatIsNoNumberStaysNone) {
  const auto x = Rounded(in_, {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, -0.0f});
  const int64_t n = std::ssize(x);
  const auto expect = [](const std::vector<float>& got, const std::vector<float>& expected) {
    EXPECT_TRUE(std::isnan(got[0]));
    ExpectSame(got, expected, "specials");
  };
  for (const ActivationKind kind : kActivations) {
    expect(Activate(*ops_, kind, out_, x, 1), Activate(*portable_, kind, out_, x, 1));
    for (const bool is_gate : {false, true}) {
      auto gate_up = std::vector<float>(2 * n, 2);
      std::copy(x.begin(), x.end(), gate_up.begin() + (is_gate ? 0 : n));
      const ActivationAndMulArgs args{
          .num_tokens = 1, .dim = n, .activation = kind, .round_to = out_};
      expect(ActivateAndMul(*ops_, args, gate_up), ActivateAndMul(*portable_, args, gate_up));
    }
  }
  expect(Softcap(*ops_, x, n, n), Stored(in_, Softcap(*portable_, x, n, n)));
}

// Byte by byte, for a row may hold -0 or a NaN; of what is scaled all but the bits of the NaN.
TEST_P(ElementwiseTest, ATableInShardsGivesTheRowsOfTheWholeAndMayBeScaled) {
  struct Case {
    int32_t shards, gap;
    float scale = 1;
  };
  const int64_t vocab = 23;
  std::vector<int32_t> ids = {4, 4};
  for (int32_t i = 0; i < vocab; ++i) ids.push_back(i * 7 % vocab);
  const int64_t num_tokens = std::ssize(ids);
  for (const int64_t dim : kDims) {
    auto values = RandomFloats(seed_, vocab * dim);
    values[7 * dim] = -0.0f;
    values[9 * dim - 1] = BitsFloat(0x7fc12345u);
    values = Rounded(in_, values);
    for (const auto& [shards, gap, scale] :
         {Case{1, 0}, {1, 1}, {1, 4, 6.78233f}, {2, 0}, {3, 1, 6.78233f}, {4, 4}, {8, 0}}) {
      EmbeddingArgs args{.num_shards = shards,
                         .rows_each = shards == 1 ? 0 : (vocab + shards - 1) / shards,
                         .tokens = ids.data(),
                         .num_tokens = num_tokens,
                         .scale = scale,
                         .out_stride = gap == 0 ? 0 : dim + gap};
      std::vector<PackedMatrix> parts;
      for (int32_t i = 0; i < shards; ++i) {
        const int64_t first = i * args.rows_each;
        const int64_t count = shards == 1 ? vocab : std::min(args.rows_each, vocab - first);
        parts.push_back(Pack(Cut(values, first * dim, count * dim), dim));
      }
      for (int32_t i = 0; i < shards; ++i) args.shards[i] = &parts[i];
      EXPECT_EQ(args.num_rows(), vocab);
      std::vector<float> rows;
      for (const int32_t id : ids) {
        for (const float x : Cut(values, id * dim, dim)) rows.push_back(scale == 1 ? x : x * scale);
      }
      GuardedFloats out = Sevens(num_tokens * (dim + gap));
      args.out = out.data();
      ASSERT_EQ(ops_->Embedding(args), absl::OkStatus());
      EXPECT_TRUE(out.GuardsIntact());
      const auto got = out.values(), expected = Spread(Stored(out_, rows), dim, dim + gap, 7);
      ExpectSame(got, expected, "dim " + std::to_string(dim));
      if (scale == 1) {
        EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0) << dim;
      }
      args.scale = INFINITY;
      EXPECT_EQ(ops_->Embedding(args).message(), "scale = inf: must be finite");
      args.scale = 1;
      auto wrong = ids;
      wrong[5] = vocab;
      args.tokens = wrong.data();
      EXPECT_EQ(ops_->Embedding(args).message(), "tokens[5] = 23: must be in [0, 23)");
    }
  }
}

// Dense and with gaps; a part or the output may lie where no vector can load or store.
TEST_P(ElementwiseTest, PartialsAddAsABalancedTreeAndThenTheBias) {
  for (const int64_t dim : kDims) {
    for (const int64_t gap : {0, 1, 4}) {
      const int64_t part_stride = dim + gap, out_stride = dim + 2 * gap;
      std::vector<std::vector<float>> parts;
      for (int32_t p = 0; p < kMaxRanks; ++p) {
        const auto part = RandomFloats(seed_ + p, kTokens * dim);
        parts.push_back(Behind(p == 5, Spread(part, dim, part_stride, NAN)));
      }
      parts[0][dim - 1] = NAN;
      const auto bias = RandomFloats(seed_ + 8, dim);
      for (const int32_t num_parts : {1, 2, 4, 8}) {
        const bool has_bias = num_parts != 2;
        const size_t shift = num_parts == 2 ? 1 : 0;
        GuardedFloats out = Guarded(Behind(shift, std::vector<float>(kTokens * out_stride, 7)));
        FoldPartialsArgs args{.num_parts = num_parts,
                              .part_stride = gap == 0 ? 0 : part_stride,
                              .num_tokens = kTokens,
                              .dim = dim,
                              .bias = has_bias ? bias.data() : nullptr,
                              .round_to = out_,
                              .out = out.data() + shift,
                              .out_stride = gap == 0 ? 0 : out_stride};
        for (int32_t p = 0; p < num_parts; ++p) args.parts[p] = parts[p].data() + (p == 5);
        std::vector<float> sums(kTokens * dim);
        for (int64_t i = 0; i < kTokens * dim; ++i) {
          float s[kMaxRanks] = {};
          for (int32_t p = 0; p < num_parts; ++p) {
            s[p] = args.parts[p][i / dim * part_stride + i % dim];
          }
          for (int32_t left = num_parts / 2; left > 0; left /= 2) {
            for (int32_t p = 0; p < left; ++p) s[p] = s[2 * p] + s[2 * p + 1];
          }
          sums[i] = s[0] + (has_bias ? bias[i % dim] : 0);
        }
        ASSERT_EQ(ops_->FoldPartials(args), absl::OkStatus());
        EXPECT_TRUE(out.GuardsIntact());
        ExpectSame(out.values(), Behind(shift, Spread(Rounded(out_, sums), dim, out_stride, 7)),
                   "dim " + std::to_string(dim) + ", parts " + std::to_string(num_parts));
        // Or added to the first part.
        GuardedFloats first = Guarded(parts[0]);
        args.parts[0] = first.data();
        args.round_to = DType::kF32;
        args.out = first.data();
        args.out_stride = args.part_stride;
        ASSERT_EQ(ops_->FoldPartials(args), absl::OkStatus());
        EXPECT_TRUE(first.GuardsIntact());
        ExpectSame(first.values(), Spread(sums, dim, part_stride, NAN), "in place");
      }
    }
  }
}

// From rows of so many elements to rows of others.
struct RowOperator {
  std::string name;
  int64_t width, out_width;
  std::function<absl::Status(const float* rows, int64_t num_rows, float* out)> run;
};

class RowsOfElementwiseTest : public ElementwiseTest {
 protected:
  // What else they read is the same for all rows, or a part of a row.
  std::vector<RowOperator> Operators(int64_t dim) {
    table_ = Pack(Rounded(in_, RandomFloats(seed_ + 1, 11 * dim)), dim);
    const int64_t half = dim / 2, rope_width = 3 * dim + 2 * half;
    const auto rope = [=, this](const float* rows, int64_t n, float* out) {
      std::vector<float> cos, sin;
      for (const float* row = rows; row < rows + n * rope_width; row += rope_width) {
        std::copy_n(row, 3 * dim, out + (row - rows) / rope_width * 3 * dim);
        cos.insert(cos.end(), row + 3 * dim, row + 3 * dim + half);
        sin.insert(sin.end(), row + 3 * dim + half, row + rope_width);
      }
      return ops_->Rope({out, 3 * dim, n, 3, dim, 2 * half, cos.data(), sin.data()});
    };
    const auto activation = [=, this](const float* rows, int64_t n, float* out) {
      return ops_->Activation({rows, n, dim, ActivationKind::kGelu, out_, out});
    };
    const auto gated = [=, this](const float* rows, int64_t n, float* out) {
      return ops_->ActivationAndMul({rows, n, dim, ActivationKind::kSilu, out_, out});
    };
    const auto softcap = [=, this](const float* rows, int64_t n, float* out) {
      std::copy_n(rows, n * dim, out);
      return ops_->Softcap({out, dim, n, dim, 0.5f});
    };
    const auto embedding = [=, this](const float* rows, int64_t n, float* out) {
      std::vector<int32_t> ids;
      for (int64_t t = 0; t < n; ++t) ids.push_back(static_cast<int32_t>((rows[t] + 1) * 5));
      return ops_->Embedding(
          {.shards = {&table_}, .tokens = ids.data(), .num_tokens = n, .out = out});
    };
    const auto fold = [=, this](const float* rows, int64_t n, float* out) {
      return ops_->FoldPartials({{rows, rows + dim, rows + 2 * dim, rows + 3 * dim},
                                 4,
                                 4 * dim,
                                 n,
                                 dim,
                                 nullptr,
                                 out_,
                                 out});
    };
    return {{"rope", rope_width, 3 * dim, rope},       {"activation", dim, dim, activation},
            {"gated activation", 2 * dim, dim, gated}, {"softcap", dim, dim, softcap},
            {"embedding", 1, dim, embedding},          {"fold", 4 * dim, dim, fold}};
  }

 private:
  PackedMatrix table_;
};

// Each row's bytes are the same alone and in every batch, wherever it stands there and lies.
TEST_P(RowsOfElementwiseTest, DoNotDependOnTheirBatchOrItsOrder) {
  constexpr int64_t kMost = 70;
  std::vector<int64_t> all(kMost), mixed;
  std::iota(all.begin(), all.end(), 0);
  for (int64_t t = 0; t < kMost; ++t) mixed.push_back((t * 37 + 11) % kMost);
  for (const int64_t dim : {33, 96}) {
    for (const RowOperator& op : Operators(dim)) {
      const auto x = Rounded(in_, RandomFloats(seed_, kMost * op.width));
      const auto run = [&](const std::vector<int64_t>& order, size_t shift) {
        std::vector<float> rows(shift, -3);
        for (const int64_t t : order) {
          rows.insert(rows.end(), &x[t * op.width], &x[t * op.width] + op.width);
        }
        GuardedFloats out = Sevens(static_cast<int64_t>(shift) + std::ssize(order) * op.out_width);
        EXPECT_EQ(op.run(rows.data() + shift, std::ssize(order), out.data() + shift),
                  absl::OkStatus());
        EXPECT_TRUE(out.GuardsIntact());
        return Cut(out.values(), static_cast<int64_t>(shift), std::ssize(order) * op.out_width);
      };
      const auto whole = run(all, 0);
      for (const std::vector<int64_t>& order : {mixed, {0}, {69}, {7, 3}, {8, 8, 1, 40, 20}}) {
        const auto got = run(order, order.size() % 4);
        for (int64_t i = 0; i < std::ssize(order); ++i) {
          ExpectSame(Cut(got, i * op.out_width, op.out_width),
                     Cut(whole, order[i] * op.out_width, op.out_width),
                     op.name + " of row " + std::to_string(order[i]));
        }
      }
    }
  }
}

BATON_FOR_EACH_OP_CASE(ElementwiseTest, OpCases());
BATON_FOR_EACH_OP_CASE(RowsOfElementwiseTest, OpCases());

}  // namespace
}  // namespace baton
