#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/cuda/decode_fixture.h"
#if !defined(BATON_CUDA_DEVICE)
#include "kernels/cuda/fp8_pairs.h"
#endif

namespace baton::cuda {
namespace {

constexpr Types kFp8Types[] = {{DType::kBF16, DType::kFp8E4M3},
                               {DType::kF16, DType::kFp8E5M2},
                               {DType::kF16, DType::kFp8E4M3},
                               {DType::kBF16, DType::kFp8E5M2}};

class DecodeSm90Fp8Test : public DecodeSm90Test {
 protected:
  // The types in turn.
  AttentionShapes Codes(int32_t dim, Lengths lengths) {
    return Shape(kFp8Types[num_codes_++ % 4], dim, std::move(lengths));
  }

 private:
  int num_codes_ = 0;
};

TEST_F(DecodeSm90Fp8Test, HasTheBitsOfTheFormForEveryGpuAtEveryLength) {
  const std::vector<int32_t> lengths = {1,  2,   0,   15,  16,   17,   63,  64,
                                        65, 129, 511, 512, 1023, 1025, 575, 1536};
  ExpectEqualBits(Codes(32, OneQueryEach(lengths)), "f32");
  ExpectEqualBits(Codes(128, OneQueryEach({600, 1, 0, 513})), "rounded",
                  {.ragged = true, .out = DType::kBF16});
}

TEST_F(DecodeSm90Fp8Test, TakesHeadsOfUpTo128WhoseRowsCopiesFetch) {
  for (const int32_t dim : {16, 48, 64, 80, 96, 112, 128}) {
    ExpectEqualBits(Codes(dim, OneQueryEach({65, 17, 530})), "dim " + std::to_string(dim));
  }
}

TEST_F(DecodeSm90Fp8Test, TakesBlocksOfEverySize) {
  for (const int32_t block_size : {1, 8, 24, 64, 100}) {
    AttentionShapes shape = Codes(block_size % 3 == 0 ? 128 : 64, OneQueryEach({70, 513, 31}));
    shape.block_size = block_size;
    ExpectEqualBits(shape, "blocks of " + std::to_string(block_size));
  }
}

TEST_F(DecodeSm90Fp8Test, SharesRowsAmongHeadsAndQueries) {
  ExpectEqualBits(Codes(64, {{8, 600}, {1, 70}, {0, 5}, {5, 3}, {2, 0}, {7, 512}, {3, 514}}),
                  "several queries");
  AttentionShapes shape = Codes(128, {{1, 1100}, {4, 600}, {1, 512}, {1, 40}, {1, 0}});
  shape.scores = {.softcap = 20, .window_left = 700};
  shape.alibi = shape.sinks = true;
  ExpectEqualBits(shape, "options of the scores");
}

TEST_F(DecodeSm90Fp8Test, FindsItsPartialsAmongManySequences) {
  Lengths lengths;
  for (int32_t s = 0; s < 75; ++s) {
    lengths.emplace_back(s % 11 == 3 ? 0 : 1, s % 7 == 0 ? 0 : s == 40 ? 1030 : s * 5 % 97);
  }
  ExpectEqualBits(Codes(32, lengths), "75 sequences");
}

TEST_F(DecodeSm90Fp8Test, GivesOneResultInEveryOrder) {
  for (const int32_t dim : {32, 128}) {
    AttentionProblem problem(Codes(dim, {{1, 1030}, {1, 0}, {3, 70}}), 3);
    const DeviceProblem device(problem);
    const Result expected = device.Run({.scratch = true});
    for (uint64_t seed = 1; seed <= 16; ++seed) {
      emulation::SetSeed(seed);
      ASSERT_EQ(device.Run({.scratch = true, .counters = true}), expected) << seed;
    }
  }
}

// An item without keys has no tile for which its warps would wait for each other.
TEST_F(DecodeSm90Fp8Test, LosesNoLaneWhereItemsAreDoneAtOnce) {
  AttentionProblem problem(Codes(32, OneQueryEach({0, 0, 0, 0, 0, 3})), 3);
  const DeviceProblem device(problem);
  const Result expected = device.Run({.scratch = true});
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    emulation::SetSeed(seed);
    ASSERT_EQ(device.Run({.scratch = true, .counters = true}), expected) << seed;
  }
}

// Items without keys are done at once, and their slots are soon needed again: not that of an item
// which only the converting warps have done.
TEST_F(DecodeSm90Fp8Test, KeepsAnItemUntilAllHaveDoneIt) {
  Lengths lengths(60, {1, 0});
  for (const int s : {0, 20, 40}) lengths[s].second = 70;
  AttentionProblem problem(Codes(32, lengths), 3);
  const DeviceProblem device(problem);
  const Result expected = device.Run({.scratch = true});
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    emulation::SetSeed(seed);
    ASSERT_EQ(device.Run({.scratch = true, .counters = true}), expected) << seed;
  }
}

// What one key's V is, is the result: of every code, at every place in a row, by either form.
TEST_F(DecodeSm90Fp8Test, EveryCodeIsItsValue) {
  for (const Types types : kFp8Types) {
    AttentionShapes shape = Shape(types, 128, OneQueryEach({1, 1, 1, 1, 1, 1, 1, 1}));
    shape.heads = 1;
    shape.kv_heads = 1;
    shape.kv_scale = 0;
    AttentionProblem problem(shape, 5);
    std::ranges::fill(problem.k_cache, std::byte{0});
    std::vector<int> codes;
    for (int s = 0; s < 8; ++s) {
      const int64_t row =
          int64_t{problem.table[s * problem.max_blocks]} * shape.block_size * shape.dim;
      for (int d = 0; d < 128; ++d) {
        codes.push_back((128 * (s % 2) + d * (s + s % 2 + 1)) % 256);
        problem.v_cache[row + d] = static_cast<std::byte>(codes.back());
      }
    }
    const DeviceProblem device(problem);
    for (const bool counters : {false, true}) {
      const std::vector<float> out = device.Run({.scratch = true, .counters = counters}).out;
      ASSERT_EQ(out.size(), codes.size());
      for (size_t i = 0; i < out.size(); ++i) {
        const auto expected = static_cast<float>(DecodeFp8(types.kv, codes[i]));
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(out[i])) << codes[i];
        } else {
          ASSERT_EQ(out[i], expected) << codes[i];
        }
      }
    }
  }
}

TEST_F(DecodeSm90Fp8Test, IsForRowsThatCopiesFetch) {
  const auto takes = [](auto change) {
    float scratch[1];
    uint32_t counters[3];
    alignas(16) std::byte data[1];
    CachePlane cache{.data = data,
                     .dtype = DType::kFp8E4M3,
                     .num_blocks = 1,
                     .num_heads = 1,
                     .block_size = 8,
                     .dim = 128,
                     .block_stride = 1024};
    attention::Problem problem{.q = {nullptr, DType::kBF16},
                               .num_heads = 16,
                               .num_seqs = 3,
                               .max_query_len = 1,
                               .k_cache = cache,
                               .v_cache = cache,
                               .scratch = scratch};
    change(problem);
    return IsDecodeOfSm90(problem, {.counters = counters});
  };
  EXPECT_TRUE(takes([](auto&) {}));
  EXPECT_TRUE(takes([](auto& p) { p.k_cache.dtype = p.v_cache.dtype = DType::kFp8E5M2; }));
  EXPECT_FALSE(takes([](auto& p) { p.k_cache.dim = p.v_cache.dim = 136; }));
  EXPECT_FALSE(takes([](auto& p) { p.k_cache.dim = p.v_cache.dim = 72; }));
  EXPECT_TRUE(takes([](auto& p) {
    p.k_cache.dim = p.v_cache.dim = 72;
    p.k_cache.token_stride = p.v_cache.token_stride = 80;
  }));
  EXPECT_FALSE(takes([](auto& p) { p.v_cache.data += 8; }));
  EXPECT_FALSE(takes([](auto& p) { p.k_cache.head_stride = 1032; }));
  EXPECT_FALSE(takes([](auto& p) { p.v_cache.block_stride += 8; }));
}

#if !defined(BATON_CUDA_DEVICE)
template <typename Code, typename T>
void ExpectWidened() {
  for (uint32_t code = 0; code < 256; ++code) {
    const uint32_t wide = FromFloat<T>(ToFloat(Code{static_cast<uint8_t>(code)})).bits;
    for (int place = 0; place < 4; ++place) {
      // The others are each finite, and the greatest.
      const uint32_t others = 0x7b7b7b7bu ^ 0x80u << 8 * ((place + 1) % 4);
      const uint32_t four = (others & ~(0xffu << 8 * place)) | code << 8 * place;
      const bool is_finite = NotFinite<Code, T>(four) == 0;
      EXPECT_EQ(is_finite, std::isfinite(ToFloat(Code{static_cast<uint8_t>(code)}))) << code;
      const uint2 any = WidenAnyFour<Code, T>(four);
      EXPECT_EQ((place < 2 ? any.x : any.y) >> 16 * (place % 2) & 0xffff, wide) << code;
      if (!is_finite) continue;
      const uint2 pairs = WidenFour<Code, T>(four);
      EXPECT_EQ(pairs.x, any.x) << code << " at " << place;
      EXPECT_EQ(pairs.y, any.y) << code << " at " << place;
    }
  }
}

TEST(Fp8PairsTest, AreElementsOfTheOtherType) {
  ExpectWidened<Fp8E4M3, Bf16>();
  ExpectWidened<Fp8E4M3, F16>();
  ExpectWidened<Fp8E5M2, Bf16>();
  ExpectWidened<Fp8E5M2, F16>();
}
#endif

}  // namespace
}  // namespace baton::cuda
