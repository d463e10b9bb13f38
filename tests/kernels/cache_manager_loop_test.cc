// A cache manager's whole loop, as paged attention's small public implementations have it: blocks
// of 256, a prompt mask, an end of sequence at any step. The numbers are written by hand.
#include "common/kv_cache/block_manager.h"
#include "tests/kernels/kernel_fixture.h"

namespace baton {
namespace {

// A layer of 8 heads of 128 in bf16: a token takes 4,096 bytes.
constexpr KvLayerGroup kManagedLayer{
    .num_layers = 1, .num_kv_heads = 8, .k_dim = 128, .v_dim = 128, .dtype = DType::kBF16};
constexpr int64_t kTokenBytes = 4096;
constexpr int32_t kManagedBlock = 256;

// A pool of 16 blocks, and a cache. K of token p of sequence s is 1000 * s + p, V its negative.
class CacheManagerLoopTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(pool_.Audit(), ""); }

  void Write(int64_t s, int32_t first, const std::vector<int64_t>& slots) {
    std::vector<float> key, value;
    for (size_t i = 0; i < slots.size(); ++i) {
      key.insert(key.end(), 8, static_cast<float>(1000 * s + first + static_cast<int64_t>(i)));
      value.insert(value.end(), 8, -key.back());
    }
    const absl::Status status = kernels_->ReshapeAndCache({.key = key.data(),
                                                           .key_stride = 8,
                                                           .value = value.data(),
                                                           .value_stride = 8,
                                                           .slot_mapping = slots.data(),
                                                           .num_tokens = std::ssize(slots),
                                                           .k_cache = Plane(k_),
                                                           .v_cache = Plane(v_)});
    ASSERT_TRUE(status.ok()) << status;
  }

  std::vector<int64_t> Append(int64_t s, int32_t num_tokens) {
    const auto tokens = manager_.Append(s, num_tokens);
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    return tokens->slots;
  }

  // What the cache holds of a sequence, through its blocks.
  void ExpectTokens(int64_t s, int32_t num_tokens) {
    const std::vector<BlockId> blocks = manager_.Blocks(s);
    const std::vector<int32_t> table(blocks.begin(), blocks.end()), cu = {0, num_tokens};
    std::vector<float> k(num_tokens * 8), v(k);
    const absl::Status status =
        kernels_->UpdateKvCache({.append = {.k_cache = Plane(k_), .v_cache = Plane(v_)},
                                 .num_seqs = 1,
                                 .cu_seqlens_k = cu.data(),
                                 .block_table = table.data(),
                                 .max_blocks = std::ssize(table),
                                 .k_out = k.data(),
                                 .k_out_stride = 8,
                                 .v_out = v.data(),
                                 .v_out_stride = 8});
    ASSERT_TRUE(status.ok()) << status;
    for (int64_t p = 0; p < num_tokens; ++p) {
      ASSERT_EQ(k[p * 8 + 7], static_cast<float>(1000 * s + p));
      ASSERT_EQ(v[p * 8], -static_cast<float>(1000 * s + p));
    }
  }

  void ExpectState(int64_t available, int64_t empty_tokens) {
    EXPECT_EQ(pool_.num_available(), available);
    EXPECT_EQ(manager_.FragmentationBytes(kManagedLayer), empty_tokens * kTokenBytes);
  }

  static CachePlane Plane(std::vector<float>& memory) {
    return {.data = reinterpret_cast<std::byte*>(memory.data()),
            .layout = CacheLayout::kNhd,
            .num_blocks = 16,
            .num_heads = 1,
            .block_size = kManagedBlock,
            .dim = 8,
            .block_stride = kManagedBlock * 8};
  }

  std::unique_ptr<CpuKernels> kernels_ = MakeTestKernels("auto");
  BlockAllocator pool_{16, kManagedBlock, 1};
  BlockManager manager_{&pool_};
  std::vector<float> k_ = std::vector<float>(16 * kManagedBlock * 8, NAN);
  std::vector<float> v_ = k_;
};

// Prompts of 250, 256 and 300 tokens. From position 250 on every step gives each sequence a token:
// one of its prompt, which has its place, or a new one. They end at positions 260, 301 and 513.
TEST_F(CacheManagerLoopTest, FromPromptsOverFullBlocksToTheEndOfEverySequence) {
  const int32_t prompts[] = {250, 256, 300}, ends[] = {260, 301, 513};
  for (int64_t s = 0; s < 3; ++s) Write(s, 0, Append(s, prompts[s]));
  // 1, 1 and 2 blocks, of which 6, 0 and 212 tokens are empty.
  ExpectState(12, 6 + 0 + 212);
  for (int32_t p = 250; p <= 513; ++p) {
    SCOPED_TRACE(p);
    for (int64_t s = 0; s < 3; ++s) {
      if (p < prompts[s] || p > ends[s]) continue;
      if (p == ends[s]) {
        ExpectTokens(s, p);
        ASSERT_TRUE(manager_.End(s).ok());
        continue;
      }
      const std::vector<BlockId> before = manager_.Blocks(s);
      const std::vector<int64_t> slots = Append(s, 1);
      const std::vector<BlockId> after = manager_.Blocks(s);
      // A new block exactly when the last one is full.
      EXPECT_EQ(after.size(), before.size() + (p == 256 || p == 512 ? 1 : 0));
      EXPECT_EQ(slots, (std::vector<int64_t>{after.back() * int64_t{256} + p % 256}));
      Write(s, p, slots);
    }
    if (p == 255) ExpectState(12, 0 + 0 + 212);
    if (p == 256) ExpectState(10, 255 + 255 + 212);
    if (p == 260) ExpectState(12, 251 + 212);
    if (p == 300) ExpectState(12, 211 + 211);
    if (p == 301) ExpectState(14, 210);
    if (p == 511) ExpectState(14, 0);
    if (p == 512) ExpectState(13, 255);
  }
  ExpectState(16, 0);
}

// With room for the longest prompt each, 3 * 2 blocks instead of 1 + 1 + 2: until position 300
// nothing is taken, and behind it all go on as before.
TEST_F(CacheManagerLoopTest, ReservingByThePaddedLengthTakesBlocksThatNobodyFills) {
  const int32_t prompts[] = {250, 256, 300};
  std::vector<int64_t> reserved[3];
  for (int64_t s = 0; s < 3; ++s) {
    reserved[s] = Append(s, 300);
    Write(s, 0, {reserved[s].begin(), reserved[s].begin() + prompts[s]});
  }
  // What is reserved counts as held: 512 - 300 tokens are empty in each.
  ExpectState(10, 3 * 212);
  for (int32_t p = 250; p < 513; ++p) {
    for (int64_t s = 0; s < 3; ++s) {
      if (p < prompts[s]) continue;
      Write(s, p, p < 300 ? std::vector<int64_t>{reserved[s][p]} : Append(s, 1));
    }
    if (p < 300) ExpectState(10, 3 * 212);
    if (p == 511) ExpectState(10, 0);
  }
  ExpectState(7, 3 * 255);
  for (int64_t s = 0; s < 3; ++s) {
    ExpectTokens(s, 513);
    ASSERT_TRUE(manager_.End(s).ok());
  }
  ExpectState(16, 0);
}

// 16 blocks are 4,096 tokens: who needs one more gets none, and nobody has lost any.
TEST_F(CacheManagerLoopTest, AFullPoolRefusesAndServesAgainAfterAnEnd) {
  for (int64_t s = 0; s < 4; ++s) Append(s, 1024);
  ExpectState(0, 0);
  EXPECT_EQ(manager_.Append(2, 1).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(manager_.num_tokens(2), 1024);
  ASSERT_TRUE(manager_.End(0).ok());
  EXPECT_EQ(Append(2, 1).size(), 1);
  ExpectState(3, 255);
  for (int64_t s = 1; s < 4; ++s) ASSERT_TRUE(manager_.End(s).ok());
}

}  // namespace
}  // namespace baton
