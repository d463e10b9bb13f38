// Where prompts go that workers have cached, as far as the router knows.
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "router/node.h"
#include "tests/unit/router/router_harness.h"

namespace baton {
namespace {

// Workers 0 and 1 prefill, 2 and 3 decode.
class PrefixesTest : public RouterHarness {
 protected:
  static constexpr int32_t kLength = 2 * PrefixDirectory::kChunkTokens;

  struct Pair {
    int32_t prefill = 0;
    int32_t decode = 0;
    bool operator==(const Pair&) const = default;
  };

  void SetUp() override {
    roles_ = {Role::kPrefill, Role::kPrefill, Role::kDecode, Role::kDecode};
    node_ = std::make_unique<RouterNode>(
        RouterNodeOptions{.incarnation = 1, .hang_limit = kNoLimit}, roles_,
        MakeRoutingPolicy("prefix_affinity").value(), outbox_);
    for (int32_t worker = 0; worker < 4; ++worker) Start(worker);
  }
  // As another process.
  void Start(int32_t worker) {
    incarnations_[worker] = next_incarnation_++;
    Up(worker, incarnations_[worker]);
  }
  // Where the prompt is given to. It is cancelled before a worker has said a word of it.
  Pair Ask() {
    Submit(++key_, Request(kLength, 20));
    const Pair pair = Last();
    Handle(ClientCancel{key_});
    return pair;
  }
  Pair Last() const {
    const Incarnation prefill = outbox_.decode_requests.back().prefill;
    return {.prefill = prefill == incarnations_[0] ? 0 : 1,
            .decode = outbox_.decodes.back().worker};
  }
  // A pair computes it, which is not the one that it would be given to with nothing cached.
  Pair ComputeElsewhere() {
    const Pair first = Ask();
    for (int32_t worker : {first.prefill, first.decode}) {
      Handle(WorkerDown{.worker = worker, .reason = "away"});
    }
    Submit(++key_, Request(kLength, 20));
    Reserved(decode_call());
    Prefilled(prefill_call(), kLength, 50);
    const Pair pair = Last();
    Handle(ClientCancel{key_});
    for (int32_t worker : {first.prefill, first.decode}) Up(worker, incarnations_[worker]);
    EXPECT_NE(pair.prefill, first.prefill);
    EXPECT_NE(pair.decode, first.decode);
    return pair;
  }

  uint64_t key_ = 0;
  Incarnation next_incarnation_ = kFirstIncarnation;
  std::vector<Incarnation> incarnations_{0, 0, 0, 0};
};

TEST_F(PrefixesTest, APromptGoesWhereItIsCached) {
  const Pair pair = ComputeElsewhere();
  EXPECT_EQ(Ask(), pair);
  EXPECT_EQ(Ask(), pair);
}

// By what a new process is called it would be given the prompt half of the time.
TEST_F(PrefixesTest, ANewProcessHasNothingCached) {
  const Pair pair = ComputeElsewhere();
  std::set<int32_t> prefills, decodes;
  for (int restart = 0; restart < 20; ++restart) {
    Start(pair.prefill);
    Start(pair.decode);
    const Pair next = Ask();
    prefills.insert(next.prefill);
    decodes.insert(next.decode);
  }
  EXPECT_EQ(prefills, (std::set<int32_t>{0, 1}));
  EXPECT_EQ(decodes, (std::set<int32_t>{2, 3}));
}

TEST_F(PrefixesTest, AProcessThatIsConnectedAnewHasWhatItHad) {
  const Pair pair = ComputeElsewhere();
  for (int32_t worker : {pair.prefill, pair.decode}) {
    Handle(WorkerDown{.worker = worker, .reason = "cut"});
    Up(worker, incarnations_[worker]);
  }
  EXPECT_EQ(Ask(), pair);
}

}  // namespace
}  // namespace baton
