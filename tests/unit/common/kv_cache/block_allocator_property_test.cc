#include <algorithm>
#include <vector>

#include "common/base/random.h"
#include "common/kv_cache/block_allocator.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr int32_t kBlockSize = 4;
constexpr int32_t kNumBlocks = 24;
constexpr int32_t kUnwritten = -9;  // In place of a token that was never written.

// One holder of blocks, with what it wrote.
struct Holder {
  BlockTable table;
  std::vector<int32_t> tokens;
  std::string tenant;
  int32_t first_written = 0;  // Tokens before it were found, or are never here.
  bool receives = false;      // What a row leaves out of all tokens is never written.
  bool reserved = false;
  bool draining = false;
};

// Whose bytes a block holds.
struct Content {
  int32_t group = -1;
  std::vector<int32_t> tokens;
  bool operator==(const Content&) const = default;
};

std::vector<KvWindow> DrawWindows(Random& random) {
  const auto window = [&] {
    return KvWindow{.tokens = 1 + static_cast<int32_t>(random.Below(14)),
                    .spare = static_cast<int32_t>(random.Below(3)) * 3};
  };
  switch (random.Below(4)) {
    case 0:
      return {KvWindow{}};
    case 1:
      return {{.tokens = window().tokens}};
    case 2:
      return {KvWindow{}, window()};
    default:
      return {KvWindow{}, window(), KvWindow{}, window()};
  }
}

// Random operations on one pool beside a model of what each block holds. The memory is modelled as
// the tokens that were last written to a block: what a match gives must hold the tokens asked for.
class Pool {
 public:
  explicit Pool(uint64_t seed)
      : random_(seed),
        windows_(DrawWindows(random_)),
        allocator_(kNumBlocks, kBlockSize, seed, windows_),
        memory_(kNumBlocks) {}

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
      Pass(holder);
    } else if (action >= 6) {
      holders_.erase(holders_.begin() + static_cast<int64_t>(i));
    }
  }

  // Counts, lists and index agree, and what the model knows agrees with the states.
  void Check() {
    ASSERT_EQ(allocator_.Audit(), "");
    ASSERT_EQ(allocator_.counts().total(), kNumBlocks);
    std::vector<int32_t> held(kNumBlocks);
    for (const Holder& holder : holders_) CheckHolder(holder, held);
    for (BlockId id = 0; id < kNumBlocks; ++id) {
      const BlockState state = allocator_.state(id);
      ASSERT_EQ(held[id] == 0, state == BlockState::kFree || state == BlockState::kCached);
      if (state == BlockState::kReserved || state == BlockState::kFilling) {
        ASSERT_EQ(held[id], 1);
      }
    }
  }
  int64_t num_partly_found() const { return num_partly_found_; }

 private:
  int32_t NumGroups() const { return static_cast<int32_t>(windows_.size()); }

  // The entry's tokens from `first` on.
  static Content ContentOf(const Holder& holder, int32_t group, int32_t entry, int32_t first = 0) {
    Content content{.group = group};
    const int32_t end = std::min<int32_t>(std::ssize(holder.tokens), kBlockSize * (entry + 1));
    for (int32_t t = kBlockSize * entry; t < end; ++t) {
      content.tokens.push_back(t < first ? kUnwritten : holder.tokens[t]);
    }
    return content;
  }

  // What the group's writer brings of the holder's tokens.
  int32_t FirstWritten(const Holder& holder, int32_t group) const {
    const auto num_tokens = static_cast<int32_t>(holder.tokens.size());
    const int32_t left_out = holder.receives ? TokensLeftOut(windows_[group], num_tokens) : 0;
    return std::max(holder.first_written, left_out);
  }

  void CheckHolder(const Holder& holder, std::vector<int32_t>& held) {
    int32_t num_held = 0;
    for (int32_t g = 0; g < NumGroups(); ++g) {
      for (int32_t b = 0; b < holder.table.size(); ++b) {
        const BlockId id = holder.table.blocks(g)[b];
        ASSERT_EQ(id == -1, b < holder.table.num_passed(g));
        if (id == -1) continue;
        ++held[id];
        ++num_held;
        const BlockState state = allocator_.state(id);
        ASSERT_NE(state, BlockState::kFree);
        ASSERT_NE(state, BlockState::kCached);
        if (b >= holder.table.num_sealed()) continue;
        // Sealed: nobody has written to it since. What was found has all of its tokens.
        const bool was_found = b * kBlockSize < holder.first_written;
        ASSERT_EQ(memory_[id], ContentOf(holder, g, b, was_found ? 0 : FirstWritten(holder, g)));
      }
    }
    ASSERT_EQ(holder.table.num_held(), num_held);
  }

  // Each row has what serves the purpose.
  void CheckFound(const Holder& holder, MatchFor purpose) {
    const int32_t found = holder.table.num_sealed() * kBlockSize;
    const auto num_tokens = static_cast<int32_t>(holder.tokens.size());
    for (int32_t g = 0; g < NumGroups(); ++g) {
      const int32_t left_out = TokensLeftOut(windows_[g], num_tokens);
      for (int32_t t = 0; t < found; ++t) {
        const int32_t b = t / kBlockSize;
        const bool is_seen = t >= TokensBehindWindow(windows_[g].tokens, found);
        bool is_needed = is_seen;
        if (purpose == MatchFor::kSend) is_needed = is_seen || t >= left_out;
        if (purpose == MatchFor::kReceive) is_needed = is_seen && t >= left_out;
        if (is_needed) ASSERT_GE(b, holder.table.num_passed(g)) << "group " << g;
        if (b < holder.table.num_passed(g)) continue;
        ASSERT_EQ(memory_[holder.table.blocks(g)[b]], ContentOf(holder, g, b)) << "group " << g;
      }
      if (holder.table.num_passed(g) > 0) ++num_partly_found_;
    }
  }

  void Open() {
    Holder holder;
    holder.tenant = random_.Below(3) == 0 ? "b" : "a";
    // Few distinct prompts, so that most are found again.
    Random prompt(random_.Below(3));
    const uint64_t length = 1 + random_.Below(28);
    for (uint64_t i = 0; i < length; ++i) {
      holder.tokens.push_back(static_cast<int32_t>(prompt.Below(2)));
    }
    const auto num_tokens = static_cast<int32_t>(length);
    const auto purpose = static_cast<MatchFor>(random_.Below(3));
    holder.receives = purpose == MatchFor::kReceive;
    holder.table = allocator_.Match(holder.tenant, holder.tokens, num_tokens - 1, purpose);
    CheckFound(holder, purpose);
    if (testing::Test::HasFatalFailure()) return;
    holder.reserved = random_.Below(2) == 0;
    const int32_t found = holder.table.num_sealed() * kBlockSize;
    const int32_t passes = holder.receives ? num_tokens : found;
    if (purpose != MatchFor::kSend) allocator_.Pass(holder.table, passes);
    holder.first_written = holder.table.num_passed(0) > holder.table.size() ? 0 : found;
    const int32_t missing = allocator_.BlocksFor(num_tokens) - holder.table.size();
    const int32_t available = allocator_.num_available();
    const int32_t wanted = allocator_.BlocksToGrow(holder.table, missing);
    const bool grown = allocator_.Grow(holder.table, missing, holder.reserved);
    ASSERT_EQ(grown, wanted <= available);
    ASSERT_EQ(allocator_.num_available(), available - (grown ? wanted : 0));
    if (grown) holders_.push_back(std::move(holder));
  }

  void Pass(Holder& holder) {
    const auto computed =
        static_cast<int32_t>(random_.Below(int64_t{holder.table.num_sealed()} * kBlockSize + 1));
    allocator_.Pass(holder.table, computed);
    for (int32_t g = 0; g < NumGroups(); ++g) {
      ASSERT_GE(holder.table.num_passed(g), TokensLeftOut(windows_[g], computed) / kBlockSize);
    }
  }

  // Writes all tokens and seals.
  void Write(Holder& holder) {
    if (holder.draining) return;
    if (holder.reserved) allocator_.MarkFilling(holder.table);
    holder.reserved = false;
    for (int32_t g = 0; g < NumGroups(); ++g) {
      const int32_t first = std::max(holder.table.num_sealed(), holder.table.num_passed(g));
      for (int32_t b = first; b < holder.table.size(); ++b) {
        const BlockId id = holder.table.blocks(g)[b];
        ASSERT_EQ(allocator_.state(id), BlockState::kFilling);
        memory_[id] = ContentOf(holder, g, b, FirstWritten(holder, g));
      }
    }
    allocator_.Seal(holder.table, holder.tenant, holder.tokens);
    ASSERT_EQ(holder.table.num_sealed(), static_cast<int32_t>(holder.tokens.size()) / kBlockSize);
  }

  Random random_;
  std::vector<KvWindow> windows_;
  BlockAllocator allocator_;
  std::vector<Content> memory_;
  std::vector<Holder> holders_;
  int64_t num_partly_found_ = 0;
};

TEST(BlockAllocatorPropertyTest, RandomOperationsKeepEveryBlockAccountedFor) {
  int64_t partly_found = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    Pool pool(seed);
    for (int step = 0; step < 200; ++step) {
      pool.Act();
      pool.Check();
      ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed << ", step " << step;
    }
    partly_found += pool.num_partly_found();
  }
  EXPECT_GT(partly_found, 1000);
}

}  // namespace
}  // namespace baton
