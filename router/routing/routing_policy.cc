#include "router/routing/routing_policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace baton {
namespace {

// Compared from left to right; the lowest wins, ties go to the lower worker.
using Cost = std::array<double, 3>;
using Costs = std::vector<Cost>;  // Of candidates, in their order.

// Each prefill worker with the cheapest decode worker that it pairs with; of these the one with the
// cheapest prefill worker. Where no prefill worker is there, the cheapest decode worker.
std::optional<Route> Cheapest(const RoutingSnapshot& snapshot, const Costs& prefill_costs,
                              const Costs& decode_costs) {
  std::vector<size_t> by_cost(snapshot.decode.size());
  std::iota(by_cost.begin(), by_cost.end(), size_t{0});
  std::ranges::stable_sort(by_cost, {}, [&](size_t i) { return decode_costs[i]; });
  if (snapshot.alone) {
    if (by_cost.empty()) return std::nullopt;
    return Route{.decode = snapshot.decode[by_cost.front()].worker};
  }
  std::optional<Route> best;
  std::tuple<double, Cost, Cost> best_cost;
  for (size_t p = 0; p < snapshot.prefill.size(); ++p) {
    const Candidate& prefill = snapshot.prefill[p];
    const auto pairs = [&](size_t d) {
      const Route route{prefill.worker, snapshot.decode[d].worker};
      return snapshot.decode[d].pair == prefill.pair &&
             std::ranges::find(snapshot.blamed, route) == snapshot.blamed.end();
    };
    const auto decode = std::ranges::find_if(by_cost, pairs);
    if (snapshot.needs_decode && decode == by_cost.end()) continue;
    // Beside some prefill workers there may be no decode worker with room: first of all these.
    const Cost decode_cost = snapshot.needs_decode ? decode_costs[*decode] : Cost{};
    const std::tuple cost{decode_cost[0], prefill_costs[p], decode_cost};
    if (best && cost >= best_cost) continue;
    best = {prefill.worker, snapshot.needs_decode ? snapshot.decode[*decode].worker : -1};
    best_cost = cost;
  }
  return best;
}

// Seconds until the prefill worker has computed so many tokens more, where rates are known. One
// that has told none yet counts as the slowest that has.
std::vector<double> Queues(const RoutingSnapshot& snapshot, bool with_prompt) {
  int64_t slowest = std::numeric_limits<int64_t>::max();
  for (const Candidate& c : snapshot.prefill) {
    if (c.tokens_per_s > 0) slowest = std::min(slowest, c.tokens_per_s);
  }
  if (slowest == std::numeric_limits<int64_t>::max()) slowest = 1;
  std::vector<double> queues;
  for (const Candidate& c : snapshot.prefill) {
    const int64_t own = with_prompt ? snapshot.prompt_tokens - c.matched_tokens : 0;
    const int64_t rate = c.tokens_per_s > 0 ? c.tokens_per_s : slowest;
    queues.push_back(static_cast<double>(c.pending_tokens + own) / static_cast<double>(rate));
  }
  return queues;
}

std::vector<double> Loads(const RoutingSnapshot& snapshot) {
  std::vector<double> loads;
  for (const Candidate& c : snapshot.decode) {
    loads.push_back(static_cast<double>(c.pending_tokens) / static_cast<double>(c.capacity_tokens));
  }
  return loads;
}

// 1 when it would refuse the prompt, as far as is known.
double LacksRoom(const RoutingSnapshot& snapshot, const Candidate& decode) {
  return decode.free_tokens < snapshot.prompt_tokens - decode.matched_tokens ? 1 : 0;
}

// The prefill worker that will have computed what it was given first, the decode worker with the
// emptiest pool.
class LeastLoaded : public RoutingPolicy {
 public:
  std::string_view name() const override { return "least_loaded"; }
  std::optional<Route> Choose(const RoutingSnapshot& snapshot) const override {
    Costs prefill;
    for (double seconds : Queues(snapshot, /*with_prompt=*/false)) prefill.push_back({seconds});
    Costs decode;
    const std::vector<double> loads = Loads(snapshot);
    for (size_t i = 0; i < loads.size(); ++i) {
      decode.push_back({LacksRoom(snapshot, snapshot.decode[i]), loads[i]});
    }
    return Cheapest(snapshot, prefill, decode);
  }
};

// The prefill worker that will have computed this prompt first, counting what it has cached; the
// decode worker by load, where a cached prompt is worth the part of the pool that it would fill.
// A prompt that nobody has cached, as far as this router knows, goes where all routers send it.
class PrefixAffinity : public RoutingPolicy {
 public:
  std::string_view name() const override { return "prefix_affinity"; }
  std::optional<Route> Choose(const RoutingSnapshot& snapshot) const override {
    return Cheapest(snapshot, PrefillCosts(snapshot), DecodeCosts(snapshot));
  }

 private:
  // Workers below so many times the mean load take cold prefixes by hash.
  static constexpr double kMostLoad = 1.25;

  static bool IsCold(const RoutingSnapshot& snapshot, const std::vector<Candidate>& side) {
    const auto matches = [](const Candidate& c) { return c.matched_tokens > 0; };
    return snapshot.prefix != 0 && std::ranges::none_of(side, matches);
  }

  // Rendezvous hashing: a worker that comes or goes moves the prefixes of no others. In [0, 1).
  static double Rank(uint64_t prefix, uint64_t incarnation) {
    return std::ldexp(static_cast<double>(XXH3_64bits_withSeed(&incarnation, 8, prefix) >> 11),
                      -53);
  }

  // By rank among those that are not loaded much more than the others, then by load.
  static Costs ColdCosts(uint64_t prefix, const std::vector<Candidate>& side,
                         const std::vector<double>& loads) {
    const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
    const double most = kMostLoad * sum / static_cast<double>(loads.size());
    Costs costs;
    for (size_t i = 0; i < side.size(); ++i) {
      const bool is_loaded = loads[i] > most;
      costs.push_back({0, is_loaded ? loads[i] : 0,
                       is_loaded ? 0 : -Rank(prefix, side[i].incarnation)});
    }
    return costs;
  }

  static Costs PrefillCosts(const RoutingSnapshot& snapshot) {
    if (IsCold(snapshot, snapshot.prefill)) {
      return ColdCosts(snapshot.prefix, snapshot.prefill, Queues(snapshot, false));
    }
    Costs costs;
    for (double seconds : Queues(snapshot, /*with_prompt=*/true)) costs.push_back({seconds});
    return costs;
  }

  static Costs DecodeCosts(const RoutingSnapshot& snapshot) {
    const std::vector<double> loads = Loads(snapshot);
    Costs costs;
    if (IsCold(snapshot, snapshot.decode)) {
      costs = ColdCosts(snapshot.prefix, snapshot.decode, loads);
    } else {
      for (size_t i = 0; i < loads.size(); ++i) {
        const Candidate& c = snapshot.decode[i];
        const auto matched = static_cast<double>(c.matched_tokens);
        costs.push_back({0, loads[i] - matched / static_cast<double>(c.capacity_tokens)});
      }
    }
    for (size_t i = 0; i < costs.size(); ++i) costs[i][0] = LacksRoom(snapshot, snapshot.decode[i]);
    return costs;
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<RoutingPolicy>> MakeRoutingPolicy(std::string_view name) {
  if (name == "least_loaded") return std::make_unique<LeastLoaded>();
  if (name == "prefix_affinity") return std::make_unique<PrefixAffinity>();
  return absl::InvalidArgumentError(
      absl::StrCat("policy is '", std::string(name), "'; allowed: least_loaded, prefix_affinity"));
}

}  // namespace baton
