#include <vector>

#include "common/base/random.h"
#include "common/kv_cache/block_allocator.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr int32_t kBlockSize = 4;

// One holder of blocks, with what it wrote.
struct Holder {
  BlockTable table;
  std::vector<int32_t> tokens;
  std::string tenant;
  bool reserved = false;
  bool draining = false;
};

// Random operations on one pool beside a model of what each block holds. The memory is modelled as
// the tokens that were last written to a block: what a match gives must hold the tokens asked for.
class Pool {
 public:
  explicit Pool(uint64_t seed) : random_(seed), allocator_(12, kBlockSize, seed), memory_(12) {}

  void Act() {
    const uint64_t action = random_.Below(8);
    if (holders_.empty() || action <= 1) return Open();
    const size_t i = random_.Below(holders_.size());
    Holder& holder = holders_[i];
    if (action == 2 || action == 3) {
      Write(holder);
    } else if (action == 4 && !holder.draining) {
      allocator_.MarkDraining(holder.table);
      holder.draining = true;
    } else if (action == 5 && !holder.draining) {
      const auto passed = static_cast<int32_t>(random_.Below(holder.table.num_sealed() + 1));
      allocator_.ReleaseFront(holder.table, passed);
      ASSERT_GE(holder.table.num_passed(), passed);
    } else if (action >= 6) {
      holders_.erase(holders_.begin() + static_cast<int64_t>(i));
    }
  }

  // Counts, lists and index agree, and what the model knows agrees with the states.
  void Check() {
    ASSERT_EQ(allocator_.Audit(), "");
    ASSERT_EQ(allocator_.counts().total(), 12);
    std::vector<int32_t> held(12);
    for (const Holder& holder : holders_) {
      for (int32_t b = 0; b < holder.table.size(); ++b) {
        const BlockId id = holder.table.blocks()[b];
        ASSERT_EQ(id == -1, b < holder.table.num_passed());
        if (id == -1) continue;
        ++held[id];
        const BlockState state = allocator_.state(id);
        ASSERT_NE(state, BlockState::kFree);
        ASSERT_NE(state, BlockState::kCached);
        if (b >= holder.table.num_sealed()) continue;
        // Sealed: nobody has written to it since.
        const auto first = holder.tokens.begin() + b * kBlockSize;
        ASSERT_EQ(memory_[id], std::vector<int32_t>(first, first + kBlockSize));
      }
    }
    for (BlockId id = 0; id < 12; ++id) {
      const BlockState state = allocator_.state(id);
      ASSERT_EQ(held[id] == 0, state == BlockState::kFree || state == BlockState::kCached);
      if (state == BlockState::kReserved || state == BlockState::kFilling) {
        ASSERT_EQ(held[id], 1);
      }
    }
  }

 private:
  void Open() {
    Holder holder;
    holder.tenant = random_.Below(3) == 0 ? "b" : "a";
    // Few distinct prompts, so that most are found again.
    Random prompt(random_.Below(3));
    const uint64_t length = 1 + random_.Below(20);
    for (uint64_t i = 0; i < length; ++i) {
      holder.tokens.push_back(static_cast<int32_t>(prompt.Below(2)));
    }
    const int32_t num_tokens = static_cast<int32_t>(length);
    holder.table = allocator_.Match(holder.tenant, holder.tokens, num_tokens - 1);
    holder.reserved = random_.Below(2) == 0;
    if (random_.Below(4) == 0) {
      holder.table.Release();
      allocator_.SkipFront(holder.table,
                           static_cast<int32_t>(random_.Below(length / kBlockSize + 1)));
    }
    const int32_t missing = allocator_.BlocksFor(num_tokens) - holder.table.size();
    const int32_t available = allocator_.num_available();
    const bool grown = allocator_.Grow(holder.table, missing, holder.reserved);
    ASSERT_EQ(grown, missing <= available);
    if (!grown) return;
    for (int32_t b = holder.table.num_passed(); b < holder.table.num_sealed(); ++b) {
      const auto first = holder.tokens.begin() + b * kBlockSize;
      ASSERT_EQ(memory_[holder.table.blocks()[b]], std::vector<int32_t>(first, first + kBlockSize));
    }
    holders_.push_back(std::move(holder));
  }

  // Writes all tokens and seals.
  void Write(Holder& holder) {
    if (holder.draining) return;
    if (holder.reserved) allocator_.MarkFilling(holder.table);
    holder.reserved = false;
    for (int32_t b = holder.table.num_sealed(); b < holder.table.size(); ++b) {
      ASSERT_EQ(allocator_.state(holder.table.blocks()[b]), BlockState::kFilling);
      const size_t end = std::min(holder.tokens.size(), size_t{kBlockSize} * (b + 1));
      memory_[holder.table.blocks()[b]].assign(holder.tokens.begin() + b * kBlockSize,
                                               holder.tokens.begin() + static_cast<int64_t>(end));
    }
    allocator_.Seal(holder.table, holder.tenant, holder.tokens);
    ASSERT_EQ(holder.table.num_sealed(), static_cast<int32_t>(holder.tokens.size()) / kBlockSize);
  }

  Random random_;
  BlockAllocator allocator_;
  std::vector<std::vector<int32_t>> memory_;
  std::vector<Holder> holders_;
};

TEST(BlockAllocatorPropertyTest, RandomOperationsKeepEveryBlockAccountedFor) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Pool pool(seed);
    for (int step = 0; step < 200; ++step) {
      pool.Act();
      pool.Check();
      ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace baton
