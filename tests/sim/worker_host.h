#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/transport/ranked_transport.h"
#include "decode_worker/node.h"
#include "prefill_worker/node.h"
#include "tests/sim/control_net.h"
#include "tests/sim/fabric.h"
#include "tests/sim/fake_model.h"
#include "tests/sim/worker_ledger.h"

namespace baton::sim {

// One worker process: the node that ships, with a fake runner, modelled memory and a port to the
// data network. Checks the node's outbox and, after each event, its blocks.
class WorkerHost : public Host, public NetWorker, private WorkerOutbox {
 public:
  struct Options {
    Role role = Role::kPrefill;
    int32_t index = 0;  // In the routers' list.
    int32_t num_blocks = 0;
    int32_t block_size = 0;
    int32_t chunk_tokens = 0;
    int32_t max_batch = 0;
    FakeArch arch;
    int32_t max_length = kMaxLength;
    int tp = 1;  // Ranks.
    int32_t max_waiting = 0;
    int32_t finish_together = 0;
    int32_t swap_blocks = 0;
    int32_t steps_in_flight = 1;
    Duration follow_up_lead{};
    Duration token_time{};
    uint64_t upgrades = 0;  // As Scenario.
    std::function<void(std::string)> violation;
    std::function<void(SequenceId)> cancel;  // Its client gives up.
  };
  // What the checks count over all incarnations.
  struct Totals {
    int64_t preemptions = 0;
    int64_t swaps = 0;
    int64_t blocks_swapped_in = 0;
    int64_t revoked = 0;
    int64_t rebinds = 0;
    int64_t sends = 0;
    int64_t computed_here = 0;
    int64_t joined = 0;
    int64_t parked = 0;
    int64_t resumed = 0;
    int64_t handoffs_failed = 0;
    WorkerLedger::Totals economy;
    Totals& operator+=(const Totals& other);
  };

  WorkerHost(World& world, Trace& trace, Fabric& fabric, ControlNet& net, int column,
             Options options);
  ~WorkerHost() override { Kill(); }

  void Start();
  // kill -9: everything it held is gone at once.
  void Kill();
  // Ends what is left of an orderly restart: its calls are closed, then it exits.
  void CloseCalls();

  Host& host() override { return *this; }
  void Deliver(AnyWorkerMail mail) override;
  HelloInfo Hello() const override;
  std::string Audit() override;
  std::string AuditQuiet();
  std::string DescribeState() const;

  Role role() const { return options_.role; }
  int32_t index() const { return options_.index; }
  int tp() const { return options_.tp; }
  bool idle() const {
    return process_->prefill ? process_->prefill->idle() : process_->decode->idle();
  }
  bool computing() const { return up() && process_->Status().computing; }
  bool draining() const { return up() && draining_; }
  bool stalled() const { return up() && process_->runner->stalled(); }
  FakeRunner& runner() { return *process_->runner; }
  // Called with what a call's prompt had in the cache, and its length.
  std::function<void(int32_t cached_tokens, int32_t tokens)> on_cached;
  Totals totals() const;

 private:
  struct LiveCall {
    SequenceId sequence;
    Time deadline{};  // By its own clock.
  };
  struct Process {
    ModelInfo model;
    std::unique_ptr<BlockAllocator> allocator;
    FakeRunner::Memories memories;  // By rank.
    std::unique_ptr<FakeRunner> runner;
    std::unique_ptr<RankedTransport> transport;
    std::vector<std::unique_ptr<FabricPort>> ports;  // Its legs', by rank.
    bool dying = false;
    std::unique_ptr<PrefillNode> prefill;
    std::unique_ptr<DecodeNode> decode;
    FakeRunner::Memories host_memories;  // Of the decode node's pool there, by rank.
    std::unique_ptr<WorkerLedger> ledger;
    int64_t blocks_swapped_in = 0;
    Time wakeup = kNever;
    bool step_pending = false;
    bool cancels_moving = false;
    bool report_pending = false;
    Time next_report{};
    uint64_t report_serial = 0;
    uint64_t next_ticket = 1;
    std::map<CallId, LiveCall> live;
    std::map<SequenceId, int32_t> live_sequences;  // Calls of each.
    absl::flat_hash_set<CallId> late;              // Opened after the node was told to drain.
    absl::flat_hash_set<CallId> broken;  // The node was told that nobody hears it any more.
    absl::flat_hash_set<uint64_t> known_prefixes;  // Of tokens that a tenant sent here.
    std::map<std::string, Time> held_since;        // Of states with a limit.
    template <typename Act>
    auto WithNode(Act act) const {
      return prefill ? act(*prefill) : act(*decode);
    }
    void Handle(AnyWorkerMail mail, Time now) const {
      const auto hand = [now](auto& node, auto& one) {
        if constexpr (requires { node.Handle(std::move(one), now); }) {
          node.Handle(std::move(one), now);
        } else {
          BATON_CHECK(false);  // No router sends it, and no worker's edge takes it.
        }
      };
      WithNode([&](auto& node) { std::visit([&](auto& one) { hand(node, one); }, mail); });
    }
    size_t num_open() const {
      size_t sum = 0;
      for (const auto& port : ports) sum += port->num_open();
      return sum;
    }
    void PoisonFree() {
      for (const auto& memory : memories) memory->PoisonFree();
      for (const auto& memory : host_memories) memory->PoisonFree();
    }
    WorkerStatus Status() const { return prefill ? prefill->Status() : decode->Status(); }
  };

  // WorkerOutbox.
  void Emit(CallId call, WorkerEvent event) override;
  void Close(CallId call, absl::Status status) override;

  void MakeNode();
  FakeRunner::Memories MakeMemories(const BlockAllocator& allocator) const;
  void MakePorts();
  std::vector<DataRank> DataRanks() const;
  void MakeLedger(const BlockAllocator* host_pool);
  void OnOpened(CallId call, const SequenceId& sequence, Duration timeout);
  void LearnPrefixes(const std::string& tenant, const std::vector<int32_t>& tokens);
  void CheckCacheHit(CallId call, int32_t cached_tokens);
  void OnStepStart(const StepPlan& plan);
  void EndLive(CallId call);
  void Step();
  void ReportSoon();
  void Report();
  // What a state with a limit holds is given up in time; no block is without an owner.
  std::string AuditHolds();
  std::string AuditLedger(const WorkerAudit& audit);

  Trace& trace_;
  Fabric& fabric_;
  ControlNet& net_;
  Options options_;
  Incarnation incarnation_ = 0;
  bool draining_ = false;
  Totals past_;
  std::map<CallId, std::vector<uint64_t>> prefixes_of_call_;
  std::unique_ptr<Process> process_;
};

}  // namespace baton::sim
