// Several routers before the same workers, that know of each other only what workers tell: prefixes
// are found nearly as often as with one router.
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "common/base/random.h"
#include "gtest/gtest.h"
#include "router/routing/prefix_directory.h"
#include "router/worker_directory.h"

namespace baton {
namespace {

constexpr int32_t kWorkers = 8;  // Half of them prefill.
constexpr int32_t kPrefixes = 4000;
constexpr int32_t kPrefixTokens = 512;
constexpr int32_t kPromptTokens = 576;
constexpr int32_t kRequests = 20000;
constexpr int32_t kAtATime = 4;       // Requests that run.
constexpr int32_t kStatusEvery = 10;  // Requests from status to status.
constexpr size_t kCacheChunks = 20000;  // Of a worker: half of all prefixes.

// What a worker has cached, least recently used goes first.
class Cache {
 public:
  // Leading tokens that were there; now the whole prompt is.
  int32_t Use(const std::vector<uint64_t>& hashes) {
    int32_t hit = 0;
    bool is_leading = true;
    for (uint64_t hash : hashes) {
      is_leading = is_leading && used_.contains(hash);
      hit += is_leading ? PrefixDirectory::kChunkTokens : 0;
      used_[hash] = ++clock_;
      order_.emplace_back(hash, clock_);
    }
    while (used_.size() > kCacheChunks) {
      const auto [hash, when] = order_.front();
      order_.pop_front();
      if (used_.at(hash) == when) used_.erase(hash);
    }
    while (used_.find(order_.front().first) == used_.end() ||
           used_.at(order_.front().first) != order_.front().second) {
      order_.pop_front();
    }
    return hit;
  }

 private:
  int64_t clock_ = 0;
  std::unordered_map<uint64_t, int64_t> used_;
  std::deque<std::pair<uint64_t, int64_t>> order_;
};

struct Router {
  static constexpr Duration kLong = std::chrono::seconds(1000);
  Router() : directory(Roles(), kLong, kLong), prefixes(1 << 16) {
    for (int32_t w = 0; w < kWorkers; ++w) {
      directory.OnUp(w,
                     {.role = Roles()[w],
                      .incarnation = 1000u + w,
                      .block_size = 16,
                      .num_blocks = 2000,
                      .max_model_len = 1000},
                     Time());
    }
  }
  static std::vector<Role> Roles() {
    std::vector<Role> roles(kWorkers, Role::kPrefill);
    std::fill(roles.begin() + kWorkers / 2, roles.end(), Role::kDecode);
    return roles;
  }
  Route Choose(const std::vector<uint64_t>& hashes) {
    RoutingSnapshot snapshot = directory.Snapshot(
        {.prompt_tokens = kPromptTokens, .total_tokens = 600}, 1 << 20, Time());
    snapshot.prefix = PrefixDirectory::KeyOf(hashes);
    for (auto* side : {&snapshot.prefill, &snapshot.decode}) {
      for (Candidate& c : *side) c.matched_tokens = prefixes.MatchedTokens(hashes, c.worker);
    }
    return *policy->Choose(snapshot);
  }

  WorkerDirectory directory;
  PrefixDirectory prefixes;
  std::unique_ptr<RoutingPolicy> policy = *MakeRoutingPolicy("prefix_affinity");
};

// Share of the prompts' tokens that prefill workers had.
double HitRate(int num_routers) {
  Random random(7);
  std::vector<std::unique_ptr<Router>> routers;
  for (int i = 0; i < num_routers; ++i) routers.push_back(std::make_unique<Router>());
  std::vector<Cache> caches(kWorkers);
  std::vector<int64_t> queued(kWorkers, 0);
  std::deque<std::pair<Router*, SequenceState::Side>> running;
  int64_t hits = 0;
  for (int32_t i = 0; i < kRequests; ++i) {
    // Each prefix a few times, so that most routers have not seen it before.
    const auto prefix = static_cast<int32_t>(random.Below(kPrefixes));
    std::vector<int32_t> tokens(kPromptTokens, i);  // What follows the prefix is new.
    std::fill_n(tokens.begin(), kPrefixTokens, 1000000 + prefix);
    const auto hashes = PrefixDirectory::Hashes("t", tokens);
    Router& router = *routers[random.Below(num_routers)];
    const Route route = router.Choose(hashes);
    const int32_t hit = caches[route.prefill].Use(hashes);
    hits += hit;
    router.prefixes.Add(hashes, route.prefill);
    SequenceState::Side side;
    router.directory.Take(side, route.prefill, kPromptTokens);
    queued[route.prefill] += kPromptTokens;
    running.emplace_back(&router, side);
    if (static_cast<int32_t>(running.size()) > kAtATime) {
      auto [owner, done] = running.front();
      running.pop_front();
      queued[done.worker] -= kPromptTokens;
      owner->directory.Release(done);
    }
    if (i % kStatusEvery != 0) continue;
    for (auto& each : routers) {
      for (int32_t w = 0; w < kWorkers; ++w) {
        each->directory.OnStatus(w, {.incarnation = 1000u + w, .queued_tokens = queued[w]}, Time());
      }
    }
  }
  return static_cast<double>(hits) / (static_cast<double>(kRequests) * kPromptTokens);
}

TEST(SeveralRoutersTest, FindPrefixesNearlyAsOftenAsOne) {
  const double one = HitRate(1);
  EXPECT_GT(one, 0.4) << "there is something to find";
  EXPECT_LT(one, 0.7) << "and not everywhere";
  EXPECT_GE(HitRate(3), 0.95 * one) << one;
}

}  // namespace
}  // namespace baton
