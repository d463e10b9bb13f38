// Several routers before the same workers, that know of each other only what workers tell: prompts
// are found in caches nearly as often as with one, all requests end, and tenants share alike.
#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/cluster.h"

namespace baton::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kRouters = 3;
#ifdef __SANITIZE_ADDRESS__
// There the memory is what is judged: rates of so few say nothing.
constexpr uint64_t kSeeds = 1;
constexpr uint64_t kCrampedSeeds = 1;
constexpr uint64_t kFairSeeds = 1;
constexpr bool kJudgesRates = false;
#else
constexpr uint64_t kSeeds = 8;
constexpr uint64_t kCrampedSeeds = 4;
constexpr uint64_t kFairSeeds = 2;
constexpr bool kJudgesRates = true;
#endif

constexpr double kLeast = 0.95;  // Of one router's finds, and of Jain's index.

// The k-th of n is drawn 1/k times as often as the first.
class Zipf {
 public:
  explicit Zipf(int n) {
    for (int k = 1; k <= n; ++k) sums_.push_back((k > 1 ? sums_.back() : 0) + 1.0 / k);
  }
  int Draw(Random& random) const {
    const auto at = std::ranges::upper_bound(sums_, random.Unit() * sums_.back());
    return static_cast<int>(std::min(at - sums_.begin(), std::ssize(sums_) - 1));
  }

 private:
  std::vector<double> sums_;
};

// ---- Prefixes ----------------------------------------------------------------------------------

constexpr int32_t kWorkers = 4;  // Of each role.
constexpr int32_t kBlockSize = 16;
constexpr int kFamilies = 80;           // Of prompts that begin alike,
constexpr int32_t kPrefixTokens = 128;  // for so long.
constexpr int kRequests = 600;
constexpr Duration kGap = milliseconds(40);  // On average, between two requests.

Scenario ManyPrefixes(int num_routers) {
  Scenario s;
  s.num_routers = num_routers;
  s.num_prefill = s.num_decode = kWorkers;
  s.prefill_block_size = s.decode_block_size = kBlockSize;
  // The pools of a role hold 60 and 80% of all prefixes, were each there once and nothing else.
  s.prefill_blocks = 96;
  s.decode_blocks = 128;
  s.chunk_tokens = 64;
  s.max_batch = 16;
  s.token_time = std::chrono::microseconds(300);
  s.max_length = 256;
  s.max_pending_prefill_tokens = 1024;
  s.max_directory_entries = 1024;
  return s;
}

// Of decode workers each holds two answers at a time, so routers often ask for what another has.
Scenario Cramped() {
  Scenario s = ManyPrefixes(kRouters);
  s.prefill_blocks = s.decode_blocks = 24;
  return s;
}

// Tokens of prompts that workers of a role computed, and those of them that they had cached.
struct Found {
  int64_t cached = 0;
  int64_t all = 0;
  void operator+=(const Found& other) {
    cached += other.cached;
    all += other.all;
  }
  double rate() const { return double(cached) / double(std::max<int64_t>(all, 1)); }
};

struct Finds {
  Found prefill, decode;
};

// The seed's requests, each to any of the routers.
class PrefixTrial {
 public:
  PrefixTrial(uint64_t seed, const Scenario& scenario)
      : cluster_(seed, scenario), drawn_(seed), routers_(Random::Mix(seed)) {
    for (int w = 0; w < 2 * kWorkers; ++w) {
      cluster_.worker(w).on_cached = [this, w](int32_t cached, int32_t tokens) {
        (w < kWorkers ? finds_.prefill : finds_.decode) += {cached, tokens};
      };
    }
    cluster_.StartAll();
    cluster_.RunUntil(Time(milliseconds(600)));
    Time at = cluster_.world().now();
    for (int i = 0; i < kRequests; ++i) {
      at += Duration(static_cast<int64_t>(2 * drawn_.Unit() * kGap.count()));
      const auto router = static_cast<int>(routers_.Below(scenario.num_routers));
      cluster_.world().At(at, [this, router, request = Draw()] {
        keys_.push_back(cluster_.clients().Submit(router, request));
      });
    }
    end_ = at;
  }
  // Nothing but what a cluster does on its own ends a wait.
  std::string Run() {
    cluster_.RunUntil(end_);
    cluster_.RunToQuiet();
    if (!cluster_.violation().empty()) return cluster_.violation();
    const auto is_ok = [this](uint64_t key) { return cluster_.clients().ended(key)->ok(); };
    return std::ranges::all_of(keys_, is_ok) ? "" : "a request failed";
  }
  const Finds& finds() const { return finds_; }
  int64_t num_refused() const { return cluster_.totals().routers.requeued; }

 private:
  ValidRequest Draw() {
    ValidRequest request;
    Random family(1000 + families_.Draw(drawn_));
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < kPrefixTokens; ++i) {
      prompt.push_back(static_cast<int32_t>(family.Below(kVocab)));
    }
    for (uint64_t left = 4 + drawn_.Below(24); left > 0; --left) {
      prompt.push_back(static_cast<int32_t>(drawn_.Below(kVocab)));
    }
    request.prompts = {std::move(prompt)};
    request.sampling.seed = drawn_.Next();
    request.sampling.max_tokens = 4 + static_cast<int32_t>(drawn_.Below(12));
    request.sampling.ignore_eos = true;
    request.timeout = seconds(600);
    return request;
  }

  const Zipf families_{kFamilies};
  Cluster cluster_;
  Random drawn_;    // The requests, whoever takes them.
  Random routers_;  // Who takes them.
  Time end_{};
  std::vector<uint64_t> keys_;
  Finds finds_;
};

TEST(SeveralRoutersTest, PromptsAreFoundNearlyAsOftenAsByOne) {
  Finds one, three;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    for (const int num_routers : {1, kRouters}) {
      PrefixTrial trial(seed, ManyPrefixes(num_routers));
      ASSERT_EQ(trial.Run(), "") << num_routers << " routers";
      Finds& sum = num_routers == 1 ? one : three;
      sum.prefill += trial.finds().prefill;
      sum.decode += trial.finds().decode;
    }
  }
  std::printf("cached at prefill workers: %.1f%% with one router, %.1f%% with %d\n",
              100 * one.prefill.rate(), 100 * three.prefill.rate(), kRouters);
  std::printf("cached at decode workers: %.1f%% with one router, %.1f%% with %d\n",
              100 * one.decode.rate(), 100 * three.decode.rate(), kRouters);
  if (!kJudgesRates) return;
  EXPECT_GT(one.prefill.rate(), 0.3) << "there is something to find";
  EXPECT_LT(one.prefill.rate(), 0.7) << "and not everywhere";
  EXPECT_GE(three.prefill.rate(), kLeast * one.prefill.rate());
  EXPECT_GE(three.decode.rate(), kLeast * one.decode.rate());
}

TEST(SeveralRoutersTest, NoneWaitsForEverForWhatOthersReserve) {
  int64_t num_refused = 0;
  for (uint64_t seed = 1; seed <= kCrampedSeeds; ++seed) {
    SCOPED_TRACE(seed);
    PrefixTrial trial(seed, Cramped());
    ASSERT_EQ(trial.Run(), "");
    num_refused += trial.num_refused();
  }
  std::printf("%ld refusals for want of room, and all requests ended well\n", num_refused);
  EXPECT_GT(num_refused, static_cast<int64_t>(100 * kCrampedSeeds));
}

// ---- Tenants -----------------------------------------------------------------------------------

constexpr int kTenants = 10;
constexpr int kFlood = 3;  // The first asks as the first three of Zipf's law together.
constexpr Duration kDemandGap = std::chrono::microseconds(2500);
constexpr Duration kFull = seconds(4);  // Until all queues are.
constexpr Duration kShared = seconds(12);
constexpr Duration kLook = milliseconds(50);

// Prompts take all that two prefill workers can, and several times as many come.
Scenario Saturated() {
  Scenario s;
  s.num_routers = kRouters;
  s.num_prefill = s.num_decode = 2;
  s.prefill_block_size = s.decode_block_size = kBlockSize;
  s.prefill_blocks = s.decode_blocks = 200;
  s.chunk_tokens = 64;
  s.max_batch = 16;
  s.token_time = std::chrono::microseconds(500);
  s.max_pending_prefill_tokens = 1024;
  // Never met, but with it requests may fail: who would wait for too long is refused.
  s.faults[static_cast<size_t>(Fault::kStepError)] = 1e-12;
  return s;
}

// Ten tenants of one weight ask all routers for more than there is.
class FairTrial {
 public:
  explicit FairTrial(uint64_t seed) : cluster_(seed, Saturated()), drawn_(seed) {
    always_waits_.fill(true);
    cluster_.clients().on_token = [this](uint64_t key) { OnToken(key); };
    for (int r = 0; r < kRouters; ++r) {
      cluster_.router(r).on_call = [this](int32_t, const std::vector<int32_t>& tokens) {
        asked_.at(by_prompt_.at(tokens)).has_begun = true;
      };
    }
    cluster_.StartAll();
    cluster_.RunUntil(Time(milliseconds(600)));
    begin_ = cluster_.world().now() + kFull;
    end_ = begin_ + kShared;
    for (Time at = cluster_.world().now(); at < end_;) {
      at += Duration(static_cast<int64_t>(2 * drawn_.Unit() * kDemandGap.count()));
      cluster_.world().At(at, [this] { Submit(); });
    }
    for (Time at = begin_; at < end_; at += kLook) {
      cluster_.world().At(at, [this] { Look(); });
    }
  }
  std::string Run() {
    cluster_.RunUntil(end_);
    cluster_.RunToQuiet();
    if (!cluster_.violation().empty()) return cluster_.violation();
    for (const auto& [key, asked] : asked_) {
      const absl::Status& status = *cluster_.clients().ended(key);
      if (!status.ok() && !absl::IsResourceExhausted(status)) return status.ToString();
    }
    return "";
  }

  // Of those who had requests waiting at every router at every look: what was computed for each,
  // and how many requests they made.
  std::vector<double> served() const { return OfWaiting(served_); }
  std::vector<double> demand() const { return OfWaiting(demand_); }

 private:
  struct Asked {
    int tenant = 0;
    int router = 0;
    int64_t prompt_tokens = 0;
    bool has_begun = false;  // A worker was asked.
    bool answered = false;
  };
  using ByTenant = std::array<double, kTenants>;

  void Submit() {
    Asked asked{.tenant = std::max(0, tenants_.Draw(drawn_) - kFlood + 1),
                .router = static_cast<int>(drawn_.Below(kRouters))};
    ValidRequest request;
    std::vector<int32_t> prompt;
    for (uint64_t left = 8 + drawn_.Below(40); left > 0; --left) {
      prompt.push_back(static_cast<int32_t>(drawn_.Below(kVocab)));
    }
    asked.prompt_tokens = static_cast<int64_t>(prompt.size());
    request.prompts = {std::move(prompt)};
    request.tenant = std::string(1, static_cast<char>('a' + asked.tenant));
    request.sampling.seed = drawn_.Next();
    request.sampling.max_tokens = 2 + static_cast<int32_t>(drawn_.Below(14));
    request.sampling.ignore_eos = true;
    request.timeout = seconds(600);
    ++demand_[asked.tenant];
    const uint64_t key = cluster_.clients().Submit(asked.router, request);
    by_prompt_[request.prompts[0]] = key;
    asked_[key] = asked;
  }
  // As the routers' counters: an answer's tokens count twice.
  void OnToken(uint64_t key) {
    Asked& asked = asked_.at(key);
    const bool is_first = !std::exchange(asked.answered, true);
    const Time now = cluster_.world().now();
    if (now < begin_ || now >= end_) return;
    served_[asked.tenant] += static_cast<double>(is_first ? asked.prompt_tokens : 0) + 2;
  }
  void Look() {
    std::array<std::array<int, kRouters>, kTenants> waiting{};
    for (const auto& [key, asked] : asked_) {
      const bool waits = !asked.has_begun && cluster_.clients().ended(key) == nullptr;
      waiting[asked.tenant][asked.router] += waits ? 1 : 0;
    }
    for (int t = 0; t < kTenants; ++t) {
      always_waits_[t] = always_waits_[t] && std::ranges::min(waiting[t]) > 0;
    }
  }
  std::vector<double> OfWaiting(const ByTenant& all) const {
    std::vector<double> some;
    for (int t = 0; t < kTenants; ++t) {
      if (always_waits_[t]) some.push_back(all[t]);
    }
    return some;
  }

  const Zipf tenants_{kTenants + kFlood - 1};
  Cluster cluster_;
  Random drawn_;
  Time begin_{}, end_{};
  std::map<uint64_t, Asked> asked_;
  std::map<std::vector<int32_t>, uint64_t> by_prompt_;  // No two are the same.
  ByTenant served_{}, demand_{};
  std::array<bool, kTenants> always_waits_{};
};

// 1: all have the same; 1/n: one has everything.
double Jain(const std::vector<double>& shares) {
  double sum = 0;
  double squares = 0;
  for (const double share : shares) {
    sum += share;
    squares += share * share;
  }
  return sum * sum / (double(shares.size()) * squares);
}

TEST(SeveralRoutersTest, TenantsShareAlikeWhatAllOfThemWaitFor) {
  for (uint64_t seed = 1; seed <= kFairSeeds; ++seed) {
    SCOPED_TRACE(seed);
    FairTrial trial(seed);
    ASSERT_EQ(trial.Run(), "");
    const std::vector<double> served = trial.served();
    ASSERT_GE(served.size(), size_t{kTenants} - 2);
    const auto [least, most] = std::ranges::minmax(served);
    std::printf(
        "%zu tenants that always waited: %.0f to %.0f tokens, Jain's index %.4f; of what "
        "they asked %.2f\n",
        served.size(), least, most, Jain(served), Jain(trial.demand()));
    if (!kJudgesRates) continue;
    EXPECT_GE(Jain(served), kLeast);
    EXPECT_LT(Jain(trial.demand()), 0.6) << "they ask for the same";
  }
}

}  // namespace
}  // namespace baton::sim
