#include "common/kv_cache/block_manager.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

// One layer of two heads of 64 in bf16: a token takes 2 * 64 * 2 * 2 bytes.
constexpr KvLayerGroup kLayer{
    .num_layers = 1, .num_kv_heads = 2, .k_dim = 64, .v_dim = 64, .dtype = DType::kBF16};

class BlockManagerTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(pool_.Audit(), ""); }
  BlockManager::NewTokens Append(int64_t sequence, int32_t num_tokens) {
    auto tokens = manager_.Append(sequence, num_tokens);
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    return *std::move(tokens);
  }

  BlockAllocator pool_{8, 256, 1};
  BlockManager manager_{&pool_};
};

TEST_F(BlockManagerTest, ASequenceTakesABlockExactlyWhenItsLastIsFull) {
  EXPECT_EQ(Append(1, 255).slots.size(), 255);
  EXPECT_EQ(manager_.Blocks(1).size(), 1);
  const int64_t last = Append(1, 1).slots.front();
  EXPECT_EQ(last, manager_.Blocks(1)[0] * 256 + 255);
  EXPECT_EQ(manager_.Blocks(1).size(), 1);
  const int64_t next = Append(1, 1).slots.front();
  ASSERT_EQ(manager_.Blocks(1).size(), 2);
  EXPECT_EQ(next, manager_.Blocks(1)[1] * 256);
  EXPECT_EQ(manager_.num_tokens(1), 257);
}

TEST_F(BlockManagerTest, BlocksAreFreeWhenTheirSequenceEnds) {
  Append(1, 600);
  Append(2, 256);
  EXPECT_EQ(pool_.num_available(), 4);
  EXPECT_TRUE(manager_.End(1).ok());
  EXPECT_EQ(pool_.num_available(), 7);
  EXPECT_EQ(manager_.End(1).code(), absl::StatusCode::kNotFound);
}

TEST_F(BlockManagerTest, FragmentationIsTheEmptyRestOfEachLastBlockInBytesOfALayer) {
  EXPECT_EQ(manager_.FragmentationBytes(kLayer), 0);
  Append(1, 100);
  Append(2, 256);
  Append(3, 257);
  EXPECT_EQ(manager_.FragmentationBytes(kLayer), ((256 - 100) + 0 + (256 - 1)) * 2 * 64 * 2 * 2);
  Append(1, 156);
  EXPECT_EQ(manager_.FragmentationBytes(kLayer), (256 - 1) * 2 * 64 * 2 * 2);
  EXPECT_TRUE(manager_.End(3).ok());
  EXPECT_EQ(manager_.FragmentationBytes(kLayer), 0);
}

TEST_F(BlockManagerTest, ASequenceNeverGrowsBeyondWhatItsLengthCanCount) {
  EXPECT_EQ(manager_.Append(1, -1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Append(1, 0).slots.empty());
  Append(1, 10);
  EXPECT_EQ(manager_.Append(1, INT32_MAX - 9).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(manager_.Append(1, INT32_MAX - 10).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(manager_.num_tokens(1), 10);
  ASSERT_TRUE(manager_.Fork(1, 2).ok());
  EXPECT_FALSE(Append(2, 0).copy.has_value());  // It wrote nothing.
  EXPECT_EQ(manager_.Blocks(1), manager_.Blocks(2));
}

TEST_F(BlockManagerTest, AForkSharesAllBlocksUntilOneSideWrites) {
  Append(1, 300);
  ASSERT_TRUE(manager_.Fork(1, 2).ok());
  ASSERT_TRUE(manager_.Fork(1, 3).ok());
  EXPECT_EQ(manager_.Blocks(2), manager_.Blocks(1));
  EXPECT_EQ(pool_.num_available(), 6);
  // The shared rest is there once.
  EXPECT_EQ(manager_.FragmentationBytes(kLayer), (512 - 300) * 2 * 64 * 2 * 2);
  const BlockId shared = manager_.Blocks(1)[1];

  const BlockManager::NewTokens second = Append(2, 1);
  ASSERT_TRUE(second.copy.has_value());
  EXPECT_EQ(second.copy->source, shared);
  EXPECT_EQ(second.copy->destination, manager_.Blocks(2)[1]);
  EXPECT_EQ(second.slots, std::vector<int64_t>{manager_.Blocks(2)[1] * 256 + 300 - 256});
  EXPECT_TRUE(Append(1, 1).copy.has_value());
  // The last holder writes in place.
  EXPECT_FALSE(Append(3, 1).copy.has_value());
  EXPECT_EQ(manager_.Blocks(3)[1], shared);
  EXPECT_EQ(pool_.num_available(), 4);
  for (const int64_t sequence : {1, 2}) {
    EXPECT_EQ(manager_.Blocks(sequence)[0], manager_.Blocks(3)[0]);
  }
  for (const int64_t sequence : {1, 2, 3}) EXPECT_TRUE(manager_.End(sequence).ok());
  EXPECT_EQ(pool_.num_available(), 8);
}

TEST_F(BlockManagerTest, AForkAtABlockBoundaryNeedsNoCopy) {
  Append(1, 512);
  ASSERT_TRUE(manager_.Fork(1, 2).ok());
  EXPECT_FALSE(Append(2, 3).copy.has_value());
  EXPECT_FALSE(Append(1, 3).copy.has_value());
  EXPECT_EQ(manager_.Blocks(1)[1], manager_.Blocks(2)[1]);
  EXPECT_NE(manager_.Blocks(1)[2], manager_.Blocks(2)[2]);
}

TEST_F(BlockManagerTest, ARefusalSaysWhatIsMissingAndChangesNothing) {
  Append(1, 8 * 256 - 1);
  ASSERT_TRUE(manager_.Fork(1, 2).ok());
  const std::vector<BlockId> blocks = manager_.Blocks(2);
  const absl::Status full = manager_.Append(2, 1).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(full.message(),
            "sequence 2 needs 1 blocks for 1 more tokens, 0 are free: end a sequence or make the "
            "pool larger");
  EXPECT_EQ(manager_.Append(3, 1).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(manager_.End(3).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(manager_.Blocks(2), blocks);
  EXPECT_EQ(manager_.num_tokens(2), 8 * 256 - 1);
  EXPECT_EQ(manager_.Append(1, -1).status().message(),
            "num_tokens = -1: must be in [0, 2147481600]");
  EXPECT_EQ(manager_.Fork(7, 8).code(), absl::StatusCode::kNotFound);
  EXPECT_DEATH((void)manager_.Blocks(7), "check failed");
  EXPECT_EQ(manager_.Fork(1, 2).code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace baton
