#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/node/node_thread.h"
#include "common/rpc/worker_links.h"
#include "router/frontend.h"
#include "router/node.h"
#include "router/readiness.h"
#include "router/routing/routing_policy.h"

namespace baton {

struct RouterServiceOptions {
  RouterNodeOptions node;
  std::vector<WorkerAddress> workers;  // There from the start and never forgotten.
  const ClusterTls* tls = nullptr;     // To them; null: plaintext. Outlives the service.
  size_t max_offered_requests = 4096;  // Submitted and not yet seen by the node.
  Duration most_turn = kMostTurn;      // See Alive.
  // Events that wait to be told to clients. When there are so many, further tokens of a choice join
  // those of it that wait; if the first has waited for so long then, no request is taken.
  size_t max_deliveries = 16384;
  Duration max_delivery_wait = std::chrono::seconds(1);
};

// The router's node with the thread that drives it and its links to workers: what the HTTP and
// gRPC edges see as RouterFrontend. Also keeps readiness.
class RouterService : public RouterFrontend {
 public:
  RouterService(RouterServiceOptions options, std::unique_ptr<RoutingPolicy> policy);
  ~RouterService() override;  // Stops.

  struct Hooks {
    // Told of each change of Ready(), on the node's thread; may be empty.
    std::function<void(bool ready)> on_ready;
    // Runs a task soon and in order on the thread that calls the sinks, or returns false: no more.
    // Empty: the node's thread calls them. What is left there runs before Stop is called.
    std::function<bool(std::function<void()> task)> deliver;
  };
  void Start(Hooks hooks);

  absl::StatusOr<uint64_t> Submit(ValidRequest request,
                                  std::shared_ptr<ResponseSink> sink) override;
  absl::Status CheckRoom(const std::string& tenant) const override;
  void Cancel(uint64_t request) override;
  void StopChoice(uint64_t request, int32_t choice) override;
  RouterView View() const override;
  std::string NumericsId() const override;
  absl::StatusOr<RouterAudit> Audit() override;
  bool Alive() const override;
  // What was proven before its node stood still says nothing.
  bool Ready() const override;
  RouterCounters counters() const;

  // Workers that come and go, from Start on.
  WorkerSet* workers() { return &links_; }

  // Ready() is false from now on. Requests go on.
  void BeginDrain() { readiness_->Close(); }

  // Ends what still runs with UNAVAILABLE, closes all links, joins. Idempotent.
  void Stop();

 private:
  // The node's outbox: calls go to the links, events to the sinks.
  class Outbox;
  class DrivenNode;
  struct Listener;
  void Emit(uint64_t request, ClientEvent event);
  bool JoinWaiting(Listener& listener, ChoiceTokens& tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndTurn(Time now);
  void Deliver() noexcept;
  bool DeliverSome() noexcept;
  Duration StandsFor() const;
  void PublishSoon(Time now);
  void Publish(Time now);

  const RouterServiceOptions options_;
  NodeThread<RouterMail> thread_;
  WorkerLinks links_;
  const std::unique_ptr<RouterOutbox> outbox_;
  RouterNode node_;
  const std::unique_ptr<Node<RouterMail>> driven_node_;
  // The node's thread's: when the workers were published last, and are to be again.
  Time published_at_{};
  Time publish_due_ = kNever;
  std::shared_ptr<Readiness> readiness_;
  Hooks hooks_;  // Since Start.

  mutable absl::Mutex mutex_;
  RouterView view_ ABSL_GUARDED_BY(mutex_);
  std::string numerics_id_ ABSL_GUARDED_BY(mutex_);  // Of view_.
  RouterCounters counters_ ABSL_GUARDED_BY(mutex_);
  std::optional<AdmissionQueue::Full> full_ ABSL_GUARDED_BY(mutex_);
  struct Listener {
    std::shared_ptr<ResponseSink> sink;
    absl::InlinedVector<uint64_t, 1> last_tokens;  // By choice: the number of that delivery.
  };
  absl::flat_hash_map<uint64_t, Listener> listeners_ ABSL_GUARDED_BY(mutex_);
  struct Delivery {
    std::shared_ptr<ResponseSink> sink;
    ClientEvent event;
    Time since{};
  };
  std::deque<Delivery> deliveries_ ABSL_GUARDED_BY(mutex_);  // Of turns that have not been told.
  uint64_t next_delivery_ ABSL_GUARDED_BY(mutex_) = 1;       // The number of the first of them.
  bool is_delivering_ ABSL_GUARDED_BY(mutex_) = false;       // DeliverSome will run, or does.
  Time told_last_ ABSL_GUARDED_BY(mutex_){};                 // Or began to wait for its thread.
  uint64_t last_request_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton
