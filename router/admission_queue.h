#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/node/message.h"
#include "router/fair_queue.h"
#include "router/node_options.h"
#include "router/sequence.h"
#include "router/tenant_counters.h"
#include "router/wait_forecast.h"

namespace baton {

// Who waits for workers: requests that none of them has seen, counted against the caps, and queued
// sequences in order. One thread (the node's).
class AdmissionQueue {
 public:
  // `options` outlive this.
  explicit AdmissionQueue(const RouterNodeOptions& options) : options_(options) {}

  // INVALID_ARGUMENT, with the limit: an empty queue would not hold it either. RESOURCE_EXHAUSTED:
  // it would wait for too long, and says when trying again helps.
  absl::Status Check(const ValidRequest& body, Time now);
  // Where there is no room now: the request that goes for this one, the newest of the tenant that
  // fills most of the queue. Nothing if there is room, or if none goes for it.
  std::optional<uint64_t> GoesFor(const ValidRequest& body) const;
  // Whose next request finds no room whatever it is, and what Admit would say.
  struct Full {
    std::string tenant;
    absl::Status status;
  };
  std::optional<Full> IsFull(Time now);
  // Counts a request until the first of its sequences is taken, and as its tenant's until End.
  // RESOURCE_EXHAUSTED: there is no room now.
  absl::Status Admit(uint64_t request, const ValidRequest& body, Time now);
  // Nothing is done if it was not admitted.
  void End(uint64_t request);
  // So many tokens were computed for it, or fewer than none by what was counted too much.
  void Charge(uint64_t request, int64_t tokens);

  // The tenant of a request, from Admit to End.
  const TenantAccount* AccountOf(uint64_t request) const { return live_.at(request).account; }
  int64_t num_requests() const { return total_.requests; }
  // Of those: with a priority below 0, of 0, above.
  const std::array<int64_t, 3>& num_by_class() const { return num_by_class_; }
  int64_t num_tokens() const { return total_.tokens; }
  size_t num_tenants() const { return counters_.num_active(); }
  // All that workers take now was given to them; is there more?
  void OnTurn(bool is_backlogged, Time now) { forecast_.OnTurn(is_backlogged, now); }
  // A sequence has ended with so many tokens.
  void OnAnswer(int64_t tokens) { forecast_.OnAnswer(tokens); }

  // By whether it holds a side, which must not change while it is here.
  void Add(const SequenceState& sequence, Time now);
  // Nothing is done if it is not here.
  void Remove(const SequenceState& sequence);
  // Removes it: it goes to workers, and its request waits no more.
  void Take(const SequenceState& sequence, Time now);
  bool Contains(const SequenceState& sequence) const;
  // The first of those that hold a side, or the one behind `after`.
  std::optional<QueueKey> NextHolder(const std::optional<QueueKey>& after) const;
  // Those that hold nothing.
  FairQueue& waiting() { return waiting_; }

 private:
  struct Size {
    int64_t requests = 0;
    int64_t tokens = 0;  // Of prompts.
    int64_t bytes = 0;   // Of clients' bodies.
    void Add(const Size& other, int64_t times);
  };
  using CostByClass = std::map<int32_t, int64_t>;
  // What waits of one tenant.
  struct Backlog {
    Size size;
    CostByClass cost;
    std::set<uint64_t> requests;
    int32_t weight = 1;
    int64_t share = 0;  // As `by_share_` has it.
  };
  struct Request {
    TenantAccount* account = nullptr;
    bool waits = true;
    Size size;
    int32_t priority = 0;
    int64_t cost = 0;  // As WaitForecast counts.
  };

  static Size SizeOf(const ValidRequest& body);
  static int64_t CostAhead(const CostByClass& cost, int32_t priority);
  absl::Status CheckSize(const ValidRequest& body) const;
  bool Fits(const Size& total) const;
  int64_t ShareOf(const Size& size, int32_t weight) const;
  int64_t CostOf(const ValidRequest& body) const;
  std::optional<Duration> PredictedWait(const ValidRequest& body, Time now);
  absl::Status FullFor(const ValidRequest& body, Time now);
  void Count(uint64_t key, const Request& request, int64_t times);
  void Start(uint64_t request, Time now);

  const RouterNodeOptions& options_;
  TenantCounters counters_;
  WaitForecast forecast_;
  absl::flat_hash_map<uint64_t, Request> live_;
  Size total_;  // That waits.
  CostByClass cost_;
  std::array<int64_t, 3> num_by_class_{};
  std::map<std::string, Backlog> backlogs_;
  std::set<std::pair<int64_t, std::string>> by_share_;
  int64_t waiting_weight_ = 0;  // Of tenants with a backlog.
  FairQueue waiting_;
  std::set<QueueKey> holders_;
};

}  // namespace baton
