#include "kernels/api/sample_args.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <set>


namespace baton {
namespace {

TEST(MakeSampleRowTest, OffIsZero) {
  const SampleRow row = MakeSampleRow({.temperature = 0}, 3);
  EXPECT_EQ(row.scale, 0);
  EXPECT_EQ(row.top_p, 0u);
  EXPECT_EQ(row.least_weight, 0u);
  EXPECT_EQ(row.top_k, 0);
  EXPECT_EQ(row.num_top, -1);
  EXPECT_EQ(row.repetition, 1);
}

TEST(MakeSampleRowTest, SharesAreExactAndNeverOffByRounding) {
  EXPECT_EQ(MakeSampleRow({.top_p = 0.5f}, 0).top_p, uint64_t{1} << 62);
  EXPECT_EQ(MakeSampleRow({.top_p = 1 - 0x1p-24f}, 0).top_p, (uint64_t{1} << 63) - (1ull << 39));
  // Below a unit: the likeliest token alone.
  EXPECT_EQ(MakeSampleRow({.top_p = FLT_MIN}, 0).top_p, 1u);
  EXPECT_EQ(MakeSampleRow({.min_p = 1}, 0).least_weight, kWeightOne);
  EXPECT_EQ(MakeSampleRow({.min_p = 0x1p-45f}, 0).least_weight, 1u);  // A half, away from zero.
}

TEST(MakeSampleRowTest, ScaleIsOneDivisionInDouble) {
  const float temperature = 0.7f;
  EXPECT_EQ(MakeSampleRow({.temperature = temperature}, 0).scale,
            0x1.71547652b82fep+0 / static_cast<double>(temperature));
}

TEST(MakeSampleRowTest, KeysDifferBySeedChoiceAndPosition) {
  std::set<uint64_t> keys;
  for (const uint64_t seed : {0, 1, 2}) {
    for (const uint32_t choice : {0, 1, 2}) {
      for (const int32_t position : {0, 1, 2}) {
        keys.insert(MakeSampleRow({.seed = seed, .choice = choice}, position).key);
      }
    }
  }
  EXPECT_EQ(keys.size(), 27u);
  EXPECT_EQ(MakeSampleRow({.seed = 5, .choice = 1}, 9).key,
            MakeSampleRow({.temperature = 0, .seed = 5, .choice = 1}, 9).key);
}

TEST(MakeSampleRowTest, PenaltiesAndCountsAreThoseOfTheParameters) {
  const SampleRow row = MakeSampleRow({.top_k = 7,
                                       .repetition_penalty = 1.5f,
                                       .frequency_penalty = -0.25f,
                                       .presence_penalty = 2,
                                       .num_logprobs = 4},
                                      0);
  EXPECT_EQ(row.top_k, 7);
  EXPECT_EQ(row.num_top, 4);
  EXPECT_EQ(row.repetition, 1.5f);
  EXPECT_EQ(row.frequency, -0.25f);
  EXPECT_EQ(row.presence, 2);
}

}  // namespace
}  // namespace baton
