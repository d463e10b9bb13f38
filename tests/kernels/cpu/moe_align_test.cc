#include "kernels/cpu/moe_align.h"

#include "tests/kernels/fuzz_fixture.h"

namespace baton {
namespace {

struct Aligned {
  std::vector<int32_t> order, positions, offsets;
};

constexpr int32_t kCanary = -77;

// On all devices.
class MoeAlignTest : public testing::TestWithParam<std::string> {
 protected:
  Aligned Align(const std::vector<int32_t>& ids, int64_t top_k, int64_t experts,
                const std::vector<int32_t>& map = {}, int64_t local = -1);

 private:
  std::unique_ptr<CpuKernels> kernels_ = MakeFuzzed(GetParam());
};

// With a canary at either end of each output.
Aligned MoeAlignTest::Align(const std::vector<int32_t>& ids, int64_t top_k, int64_t experts,
                            const std::vector<int32_t>& map, int64_t local) {
  const int64_t rows = std::ssize(ids);
  local = local < 0 ? experts : local;
  std::vector<int32_t> order(rows + 2, kCanary), positions = order, offsets(local + 3, kCanary);
  const absl::Status status =
      kernels_->MoeAlign({.expert_ids = ids.data(),
                          .num_tokens = rows / top_k,
                          .top_k = top_k,
                          .num_experts = experts,
                          .expert_map = map.empty() ? nullptr : map.data(),
                          .num_local_experts = local,
                          .row_order = order.data() + 1,
                          .row_positions = positions.data() + 1,
                          .expert_offsets = offsets.data() + 1});
  EXPECT_TRUE(status.ok()) << status;
  for (auto* v : {&order, &positions, &offsets}) {
    EXPECT_TRUE(v->front() == kCanary && v->back() == kCanary);
    v->erase(v->begin());
    v->pop_back();
  }
  return {order, positions, offsets};
}

// The example of vLLM's moe_align_block_size, with blocks of 1.
TEST_P(MoeAlignTest, SortsTheExampleOfTheFieldsDocumentation) {
  const Aligned got = Align({2, 3, 4, 1, 2, 4, 1, 3, 4, 1, 2, 3}, 3, 5);
  EXPECT_EQ(got.order, (std::vector<int32_t>{3, 6, 9, 0, 4, 10, 1, 7, 11, 2, 5, 8}));
  EXPECT_EQ(got.offsets, (std::vector<int32_t>{0, 0, 3, 6, 9, 12}));
  EXPECT_EQ(got.positions, (std::vector<int32_t>{3, 6, 9, 0, 4, 10, 1, 7, 11, 2, 5, 8}));
}

TEST_P(MoeAlignTest, LeavesOutPaddingAndExpertsOfOtherRanks) {
  const Aligned got = Align({3, 0, -1, 2, 1, 3}, 2, 4, {-1, 1, -1, 0}, 2);
  EXPECT_EQ(got.order, (std::vector<int32_t>{0, 5, 4, -1, -1, -1}));
  EXPECT_EQ(got.positions, (std::vector<int32_t>{0, -1, -1, -1, 2, 1}));
  EXPECT_EQ(got.offsets, (std::vector<int32_t>{0, 2, 3}));
}

TEST_P(MoeAlignTest, NoTokensAndNoLocalExpertsAreLegal) {
  EXPECT_EQ(Align({}, 2, 3).offsets, (std::vector<int32_t>{0, 0, 0, 0}));
  const Aligned got = Align({1, 0}, 1, 2, {-1, -1}, 0);
  EXPECT_EQ(got.offsets, (std::vector<int32_t>{0}));
  EXPECT_EQ(got.positions, (std::vector<int32_t>{-1, -1}));
}

TEST_P(MoeAlignTest, IsAStableSortOfRandomChoices) {
  for (uint64_t seed = 1; seed < 30; ++seed) {
    Random random(seed);
    const auto experts = static_cast<int32_t>(1 + random.Below(seed % 3 == 0 ? 1024 : 9));
    std::vector<int32_t> ids(4 * random.Below(100));
    for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(experts + 1)) - 1;
    const Aligned got = Align(ids, 4, experts);
    std::vector<int32_t> want;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= 0) want.push_back(static_cast<int32_t>(i));
    }
    std::stable_sort(want.begin(), want.end(), [&](int a, int b) { return ids[a] < ids[b]; });
    ASSERT_EQ(got.offsets[experts], std::ssize(want));
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got.order[i], want[i]);
      ASSERT_EQ(got.positions[want[i]], static_cast<int32_t>(i));
      const int32_t e = ids[want[i]];
      ASSERT_TRUE(got.offsets[e] <= static_cast<int32_t>(i) &&
                  static_cast<int32_t>(i) < got.offsets[e + 1]);
    }
  }
}

BATON_FOR_EACH_FUZZED(MoeAlignTest);

}  // namespace
}  // namespace baton
