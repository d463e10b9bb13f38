#include "router/routing/routing_policy.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

// Goes through all pairs of equal groups and keeps the lowest cost; ties to the lower worker.
template <typename PrefillCost, typename DecodeCost>
std::optional<Route> Cheapest(const RoutingSnapshot& snapshot, PrefillCost prefill_cost,
                              DecodeCost decode_cost) {
  std::optional<Route> best;
  std::tuple<double, double> best_cost;
  auto consider = [&](Route route, std::tuple<double, double> cost) {
    if (!best || cost < best_cost) {
      best = route;
      best_cost = cost;
    }
  };
  for (const Candidate& prefill : snapshot.prefill) {
    if (!snapshot.needs_decode) consider({prefill.worker, -1}, {prefill_cost(prefill), 0});
    for (const Candidate& decode : snapshot.decode) {
      if (decode.group != prefill.group) continue;
      const Route route{prefill.worker, decode.worker};
      if (std::ranges::find(snapshot.blamed, route) != snapshot.blamed.end()) continue;
      consider(route, {prefill_cost(prefill), decode_cost(decode)});
    }
  }
  return best;
}

double Load(const Candidate& decode) {
  return static_cast<double>(decode.pending_tokens) / static_cast<double>(decode.capacity_tokens);
}

// The prefill worker with the fewest tokens to compute, the decode worker with the emptiest pool.
class LeastLoaded : public RoutingPolicy {
 public:
  std::string_view name() const override { return "least_loaded"; }
  std::optional<Route> Choose(const RoutingSnapshot& snapshot) const override {
    return Cheapest(
        snapshot, [](const Candidate& c) { return static_cast<double>(c.pending_tokens); }, Load);
  }
};

// The prefill worker that will have computed this prompt first, counting what it has cached; the
// decode worker by load, where a cached prompt is worth the part of the pool that it would fill.
class PrefixAffinity : public RoutingPolicy {
 public:
  std::string_view name() const override { return "prefix_affinity"; }
  std::optional<Route> Choose(const RoutingSnapshot& snapshot) const override {
    return Cheapest(
        snapshot,
        [&](const Candidate& c) {
          return static_cast<double>(c.pending_tokens + snapshot.prompt_tokens - c.matched_tokens);
        },
        [](const Candidate& c) {
          return Load(c) -
                 static_cast<double>(c.matched_tokens) / static_cast<double>(c.capacity_tokens);
        });
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
