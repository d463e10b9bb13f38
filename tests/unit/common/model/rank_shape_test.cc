#include "common/model/rank_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace baton {
namespace {

ModelConfig Llama1B() {
  return {.vocab_size = 128256,
          .hidden_size = 2048,
          .num_layers = 16,
          .num_heads = 32,
          .num_kv_heads = 8,
          .head_dim = 64,
          .ffn_size = 8192};
}

TEST(RankShapeTest, SegmentsAreTheMostThatDivide) {
  EXPECT_EQ(Segments(2048, 32), 8);
  EXPECT_EQ(Segments(8192, 8192), 8);
  EXPECT_EQ(Segments(768, 12), 4);   // Of 12 heads no 8.
  EXPECT_EQ(Segments(192, 6), 2);
  EXPECT_EQ(Segments(512, 512), 8);
  EXPECT_EQ(Segments(128, 8), 4);    // Of 32 at least.
  EXPECT_EQ(Segments(96, 8), 1);
  EXPECT_EQ(Segments(8 * 40, 8), 2);  // 8 heads of 40.
  EXPECT_EQ(Segments(2048, 7), 1);
}

TEST(RankShapeTest, HeadsOfRanksTileTheHeadsOrRepeatThem) {
  EXPECT_EQ(HeadsOf(0, 1, 6), (HeadRange{0, 6}));
  EXPECT_EQ(HeadsOf(1, 2, 6), (HeadRange{3, 3}));
  EXPECT_EQ(HeadsOf(3, 4, 8), (HeadRange{6, 2}));
  // Two heads on eight ranks: four ranks each, neighbours.
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(HeadsOf(rank, 8, 2), (HeadRange{rank / 4, 1}));
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(HeadsOf(rank, 4, 1), (HeadRange{0, 1}));
}

TEST(RankShapeTest, PartsOfAllRanksAreTheModel) {
  ModelConfig config = Llama1B();
  config.vocab_size = 211;
  for (const int size : {1, 2, 4, 8}) {
    ASSERT_TRUE(CheckRanks(config, size).ok());
    int32_t heads = 0, ffn = 0, ids = 0, o = 0, down = 0;
    for (int rank = 0; rank < size; ++rank) {
      const RankShape shape = ShardOf(config, rank, size);
      EXPECT_EQ(shape.rank, rank);
      EXPECT_EQ(shape.size, size);
      EXPECT_EQ(shape.first_token_id, ids);
      EXPECT_EQ(shape.first_token_id, rank * shape.ids_each);
      EXPECT_GT(shape.num_token_ids, 0);
      // The query heads of a rank see the KV heads that it holds.
      const int32_t group = config.num_heads / config.num_kv_heads;
      EXPECT_EQ(heads / group, shape.kv_heads.first);
      heads += shape.num_heads;
      EXPECT_EQ((heads - 1) / group, shape.kv_heads.first + shape.kv_heads.count - 1);
      ffn += shape.ffn_size;
      ids += shape.num_token_ids;
      o += shape.o_segments;
      down += shape.down_segments;
    }
    EXPECT_EQ(heads, 32);
    EXPECT_EQ(ffn, 8192);
    EXPECT_EQ(ids, 211);
    EXPECT_EQ(o, 8);
    EXPECT_EQ(down, 8);
  }
}

TEST(RankShapeTest, QueryHeadsMeetTheirKvHeadWhereItIsOnSeveralRanks) {
  ModelConfig config = Llama1B();
  config.num_kv_heads = 2;
  for (int rank = 0; rank < 8; ++rank) {
    const RankShape shape = ShardOf(config, rank, 8);
    EXPECT_EQ(shape.num_heads, 4);
    EXPECT_EQ(shape.kv_heads, (HeadRange{rank * 4 / 16, 1}));
  }
}

TEST(RankShapeTest, SizesThatDoNotDivideAreRefusedByFieldValueAndWhatIsAllowed) {
  const auto refusal = [](auto change, int size) {
    ModelConfig config = Llama1B();
    change(config);
    const absl::Status status = CheckRanks(config, size);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const auto nothing = [](ModelConfig&) {};
  EXPECT_EQ(refusal(nothing, 3), "tp = 3: this model allows 1, 2, 4, 8");
  EXPECT_EQ(refusal(nothing, 16), "tp = 16: this model allows 1, 2, 4, 8");
  EXPECT_EQ(refusal(nothing, 0), "tp = 0: this model allows 1, 2, 4, 8");
  EXPECT_EQ(refusal(nothing, -2), "tp = -2: this model allows 1, 2, 4, 8");
  EXPECT_EQ(refusal([](ModelConfig& c) { c.num_heads = c.num_kv_heads = 6; }, 4),
            "tp = 4: num_attention_heads = 6 is no multiple of it; this model allows 1, 2");
  // Rank 1's query heads would meet the KV head of others.
  EXPECT_EQ(refusal([](ModelConfig& c) { c.num_heads = 24, c.num_kv_heads = 6; }, 4),
            "tp = 4: num_key_value_heads = 6 is neither a multiple nor a divisor of it; this model "
            "allows 1, 2");
  EXPECT_EQ(refusal([](ModelConfig& c) { c.num_heads = c.num_kv_heads = 8, c.head_dim = 40; }, 4),
            "tp = 4: num_attention_heads x head_dim = 8 x 40 are no 4 parts of a multiple of 32; "
            "this model allows 1, 2");
  EXPECT_EQ(refusal([](ModelConfig& c) { c.ffn_size = 18944 / 4; }, 8),
            "tp = 8: intermediate_size = 4736 is no 8 parts of a multiple of 32; this model allows "
            "1, 2, 4");
  EXPECT_EQ(refusal([](ModelConfig& c) { c.vocab_size = 9; }, 8),
            "tp = 8: vocab_size = 9 leaves ranks without tokens; this model allows 1, 2");
}

}  // namespace
}  // namespace baton
