#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/numeric/int128.h"

namespace baton {

// In tokens of a tenant of weight 1, times 1,024: no run is long enough for it to overflow.
using VirtualCounter = absl::int128;

// A tenant that has live requests.
struct TenantAccount {
  std::string name;
  uint64_t id = 0;      // Ascends with each return.
  int32_t weight = 1;   // Of its newest request.
  int64_t live = 0;     // Requests that wait or run.
  VirtualCounter counter = 0;  // What was computed for it, by weight: the least is served next.
  VirtualCounter listed = 0;   // At most `counter`; where TenantCounters has it.
};

// Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024):
// each tenant is charged for what is computed for it, in tokens by its weight. One that returns is
// lifted to the least of those with live requests, so that neither a newcomer nor who was away
// starves the others; what it owes beyond that is remembered. One thread (the node's).
class TenantCounters {
 public:
  static constexpr int32_t kMaxWeight = 1000;
  static constexpr size_t kMaxRemembered = 4096;

  // One more live request. `weight` is brought within 1 and kMaxWeight.
  TenantAccount& Join(const std::string& name, int32_t weight);
  // One less; after the last the account is gone.
  void Part(TenantAccount& account);
  // Fewer than none are given back.
  void Charge(TenantAccount& account, int64_t tokens);

  size_t num_active() const { return active_.size(); }

 private:
  // Of the active; the floor if there are none.
  VirtualCounter Least();
  void List(TenantAccount& account);
  void Remember(const TenantAccount& account);
  void ForgetUpTo(VirtualCounter counter);

  absl::flat_hash_map<std::string, std::unique_ptr<TenantAccount>> active_;
  // Active ones, as listed, and by id.
  std::set<std::tuple<VirtualCounter, uint64_t, TenantAccount*>> by_counter_;
  VirtualCounter floor_ = 0;  // The highest Least() so far.
  // Counters above the floor of tenants without live requests.
  absl::flat_hash_map<std::string, VirtualCounter> debts_;
  std::set<std::pair<VirtualCounter, std::string>> debts_by_counter_;
  uint64_t next_id_ = 1;
};

}  // namespace baton
