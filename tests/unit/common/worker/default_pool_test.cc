#include "common/worker/default_pool.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

ModelConfig Model(int32_t num_kv_heads) {
  ModelConfig model;
  model.num_layers = 3;
  model.windows = {0, 0, 0};
  model.num_heads = 8;
  model.num_kv_heads = num_kv_heads;
  model.head_dim = 32;
  model.hidden_size = 256;
  model.ffn_size = 512;
  model.vocab_size = 1000;
  return model;
}

TEST(DefaultPoolTest, ABlockHasBytesInThePoolOfEachRankThatHoldsAHead) {
  // K and V of 3 layers, 16 tokens, 32 values of 2 bytes: of one head.
  constexpr int64_t kHead = 2 * 3 * 16 * 32 * 2;
  for (const int tp : {1, 2, 4}) {
    EXPECT_EQ(EntryBytesOfRanks(Model(4), tp, DType::kBF16, 16), 4 * kHead) << tp;
  }
  EXPECT_EQ(EntryBytesOfRanks(Model(4), 8, DType::kBF16, 16), 8 * kHead);
  EXPECT_EQ(EntryBytesOfRanks(Model(1), 4, DType::kBF16, 16), 4 * kHead);
  EXPECT_EQ(EntryBytesOfRanks(Model(1), 4, DType::kF32, 8), 4 * kHead);
}

TEST(DefaultPoolTest, OfLayersInGroupsAnEntryIsABlockOfEach) {
  ModelConfig model = Model(4);
  constexpr int64_t kLayer = 2 * 4 * 16 * 32 * 2;
  model.windows = {100, 0, 100};  // Three groups of one.
  EXPECT_EQ(EntryBytesOfRanks(model, 1, DType::kBF16, 16), 3 * kLayer);
  model.num_layers = 26;  // As Gemma 3 1B's: seven groups of four slots, two of them empty.
  model.windows.clear();
  for (int i = 1; i <= 26; ++i) model.windows.push_back(i % 6 == 0 ? 0 : 100);
  EXPECT_EQ(EntryBytesOfRanks(model, 1, DType::kBF16, 16), 28 * kLayer);
}

TEST(DefaultPoolTest, HoldsSomeOfTheLongestSequencesWithinItsBytesButOneAtLeast) {
  EXPECT_EQ(DefaultNumBlocks(1000, 16, 100, int64_t{1} << 40), 32 * 7);
  EXPECT_EQ(DefaultNumBlocks(1000, 16, 100, 100'999), 100);
  EXPECT_EQ(DefaultNumBlocks(2000, 16, 100, 100'999), 50);
  EXPECT_EQ(DefaultNumBlocks(1000, 16, 100, 6'999), 7);
  EXPECT_EQ(DefaultNumBlocks(1000, 16, 100, 0), 7);
}

}  // namespace
}  // namespace baton
