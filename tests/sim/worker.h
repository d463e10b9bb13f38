#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "tests/sim/cluster.h"

namespace baton::sim {

// One worker process: its node with a fake runner, modelled memory and a port to the fabric.
class Cluster::Worker : private WorkerOutbox {
 public:
  struct Options {
    World* world = nullptr;
    Fabric* fabric = nullptr;
    const Faults* faults = nullptr;
    Incarnation incarnation = 0;
    int32_t num_blocks = 0;
    int32_t block_size = 0;
    int32_t chunk_tokens = 0;
    std::function<void(CallId, std::optional<WorkerEvent>, absl::Status)> from_worker;
    std::function<void(WorkerStatus)> report;
    std::function<void(std::string)> violation;
  };

  explicit Worker(Role role) : role_(role) {}
  ~Worker() override { Stop(); }

  void Start(Options options);
  // kill -9: everything it held is gone at once.
  void Stop();

  Role role() const { return role_; }
  bool up() const { return process_ != nullptr; }
  bool draining() const { return process_ != nullptr && process_->Status().draining; }
  bool idle() const {
    return process_->prefill ? process_->prefill->idle() : process_->decode->idle();
  }
  Incarnation incarnation() const { return incarnation_; }
  HelloInfo Hello() const;
  void Deliver(Message message);
  std::string Audit() const;
  // Blocks by state and load, for a failing trace.
  std::string Describe() const;
  std::string AuditQuiet() const;
  int64_t num_preemptions() const;
  int64_t num_revoked() const;

 private:
  struct Process {
    ModelInfo model;
    std::unique_ptr<BlockAllocator> allocator;
    std::unique_ptr<TagMemory> memory;
    std::unique_ptr<FakeRunner> runner;
    std::unique_ptr<FabricPort> port;
    std::unique_ptr<PrefillNode> prefill;
    std::unique_ptr<DecodeNode> decode;
    Time wakeup = kNever;
    Time next_report{};
    bool report_pending = false;
    std::set<CallId> late;    // Opened after the node was told to drain.
    std::set<CallId> broken;  // The node was told that nobody hears it any more.
    Node& node() const {
      return prefill ? static_cast<Node&>(*prefill) : static_cast<Node&>(*decode);
    }
    WorkerStatus Status() const { return prefill ? prefill->Status() : decode->Status(); }
  };

  // WorkerOutbox.
  void Send(CallId call, WorkerEvent event) override;
  void Close(CallId call, absl::Status status) override;

  void CheckAnswered(CallId call);
  void Step();
  void Report();
  void Heartbeat();
  // Runs later if this incarnation still lives.
  void Later(Time when, std::function<void()> run);

  Role role_;
  Options options_;
  Incarnation incarnation_ = 0;
  std::unique_ptr<Process> process_;
};

}  // namespace baton::sim
