#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/kv_cache/block_allocator.h"
#include "common/node/node.h"
#include "decode_worker/node.h"
#include "prefill_worker/node.h"
#include "router/node.h"
#include "tests/sim/fabric.h"
#include "tests/sim/fake_model.h"
#include "tests/sim/world.h"

namespace baton::sim {

// What a seed draws.
struct Scenario {
  int32_t num_prefill = 1;
  int32_t num_decode = 1;
  int32_t prefill_blocks = 64;
  int32_t decode_blocks = 64;
  int32_t prefill_block_size = 4;
  int32_t decode_block_size = 4;
  int32_t chunk_tokens = 8;
  int32_t num_requests = 20;
  std::string policy = "prefix_affinity";
  double cancel_rate = 0;
  double deadline_rate = 0;
  double crash_rate = 0;  // Per request that is submitted.
  double drain_rate = 0;  // Also.
  Faults faults;
};
Scenario DrawScenario(uint64_t seed);

// A router, workers and clients in one thread and virtual time; the nodes are the ones that ship.
// After every event: blocks are conserved, no block has two writers, a client sees each position
// once and in order with the fault-free token, no request ends twice, a cache hit is the tenant's
// own.
class Cluster : private RouterOutbox {
 public:
  Cluster(uint64_t seed, const Scenario& scenario);
  ~Cluster() override;

  // Runs to the end: all requests submitted with faults on, then healed, then quiet.
  // Empty, or what was violated, with the trace's tail.
  std::string Run();

  int64_t num_events() const { return world_.num_events(); }
  int64_t num_ok() const { return num_ok_; }
  int64_t num_failed() const { return num_failed_; }
  int64_t num_preemptions() const { return num_preemptions_; }
  int64_t num_revoked() const { return num_revoked_; }
  const RouterCounters& router_counters() const { return router_->counters(); }
  uint64_t trace_digest() const { return trace_digest_; }

 private:
  class Worker;
  struct Client {
    ValidRequest request;
    std::vector<std::vector<int32_t>> expected;  // Per choice.
    std::vector<size_t> seen;                    // Tokens seen per choice.
    std::vector<bool> finished;
    std::vector<bool> scored;  // Per prompt.
    bool cancelled = false;
    std::optional<absl::Status> ended;
  };
  struct Call {
    int32_t worker = 0;
    Incarnation incarnation = 0;
    CallId worker_call = 0;
    std::string tenant;
    std::vector<int32_t> prompt;
    std::vector<int32_t> answered;  // Decode: prompt and fault-free answer.
    bool closed_for_router = false;
    bool closed_for_worker = false;
    Time last_to_router{};  // A stream keeps its order.
    Time last_to_worker{};
  };

  // RouterOutbox.
  void OpenDecode(CallId call, int32_t worker, DecodeRequest request) override;
  void OpenPrefill(CallId call, int32_t worker, PrefillRequest request) override;
  void Rebind(CallId call, RebindRequest request) override;
  void Send(CallId call, SendRequest request) override;
  void Cancel(CallId call) override;
  void Emit(uint64_t request, ClientEvent event) override;

  template <typename Opened, typename Request>
  void Open(CallId call, int32_t worker, Request request);
  // A worker's word on a call.
  void FromWorker(int32_t worker, CallId worker_call, std::optional<WorkerEvent> event,
                  absl::Status status);
  void Tell(CallId call, Message message);
  void BreakCall(CallId call);
  void CloseForRouter(CallId call, absl::Status status, Time at);
  void ToRouter(Message message);
  void StepRouter();
  ValidRequest DrawRequest();
  uint64_t Submit(const ValidRequest& request);
  void SubmitDrawn();
  void Crash(int32_t worker);
  void Drain(int32_t worker);
  void StopWhenIdle(int32_t worker, Incarnation drained);
  void StartWorker(int32_t worker);
  Duration MessageDelay();
  void OnClientTokens(Client& client, const ChoiceTokens& tokens);
  void OnSnapshot(const RoutingSnapshot& snapshot);
  // What a worker says it had cached was sent there by the same tenant before.
  void CheckCacheHit(const Call& call, int32_t cached_tokens);
  void Probe();
  void Check();
  void CheckQuiet();
  void Violation(const std::string& what);
  void Trace(const std::string& line);

  Scenario scenario_;
  World world_;
  Faults faults_;  // Live rates; zeroed when healed.
  Fabric fabric_;
  std::unique_ptr<RouterNode> router_;
  Time router_wakeup_ = kNever;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::map<CallId, Call> calls_;
  std::map<std::pair<Incarnation, CallId>, CallId> by_worker_call_;
  std::map<uint64_t, Client> clients_;
  uint64_t next_request_ = 1;
  CallId next_worker_call_ = 1;
  uint64_t next_incarnation_ = 1000;
  std::string violation_;
  bool is_probe_ = false;
  std::deque<std::string> trace_;
  uint64_t trace_digest_ = 0;
  int64_t num_ok_ = 0;
  int64_t num_failed_ = 0;
  int64_t num_preemptions_ = 0;
  int64_t num_revoked_ = 0;
};

}  // namespace baton::sim
