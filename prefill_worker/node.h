#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/engine/deadlines.h"
#include "common/engine/engine.h"
#include "common/kv_cache/block_allocator.h"
#include "common/node/node.h"
#include "common/transport/kv_transport.h"

namespace baton {

struct PrefillNodeOptions {
  Incarnation incarnation = 0;
  EngineOptions engine;
  int32_t max_waiting = 1024;  // Calls accepted and not yet holding blocks.
};

struct PrefillCounters {
  int64_t calls = 0;
  int64_t refused = 0;
  int64_t duplicates = 0;     // Calls for a (sequence, attempt) that is live.
  int64_t stale_mail = 0;     // Mail for something that has ended.
  int64_t prompt_tokens = 0;  // Of admitted prompts.
  int64_t cached_tokens = 0;  // Of those, found in the prefix cache.
  int64_t handoffs = 0;
  int64_t handoffs_failed = 0;
};

// The logic of a prefill worker: admits prompts with all their blocks, computes them in chunks,
// pushes each layer's K/V as it is written, samples the first token. Its state table is in
// ARCHITECTURE.md. Everything passed by reference outlives it.
class PrefillNode : public Node {
 public:
  PrefillNode(const PrefillNodeOptions& options, const ModelInfo& model, BlockAllocator& allocator,
              ModelRunner& runner, KvTransport& transport, WorkerOutbox& outbox);

  void Handle(Message message, Time now) override;
  void Step(Time now) override;
  Time NextDeadline() const override { return deadlines_.Next(); }

  WorkerStatus Status() const;
  const PrefillCounters& counters() const { return counters_; }
  // No call is live and no block is held.
  bool idle() const { return entries_.empty(); }

 private:
  enum class State : uint8_t { kWaiting, kComputing, kSending, kEnding };

  // One Prefill call.
  struct Entry {
    State state = State::kWaiting;
    CallId call = 0;
    Attempt attempt = 0;
    AgeKey age;
    Time deadline = kNever;
    std::optional<HandoffTarget> handoff;
    std::unique_ptr<Sequence> sequence;  // Null while the engine has it.
    bool in_engine = false;
    bool transfer_open = false;  // Start was called, kEnded has not come.
    std::vector<PromptLogprob> prompt_logprobs;
    int32_t cached_tokens = 0;
  };
  using LiveKey = std::pair<SequenceId, Attempt>;

  void OnOpened(PrefillOpened opened, Time now);
  absl::Status Admissible(const PrefillRequest& request) const;
  void AdmitWaiting();
  bool Admit(Entry& entry);
  void OnLayerDone(const LayerDone& done);
  void PushRows(const Entry& entry, int32_t layer, int32_t begin, int32_t end);
  void OnStepDone(StepDone done, Time now);
  void OnPrefilled(Entry& entry, std::optional<TokenOutput> first);
  void OnTransfer(const TransferEvent& event);
  // Gives the entry up: everything that may still touch its blocks is told to stop, and the entry
  // goes once all of it has.
  void End(Entry& entry);
  void EraseIfQuiet(Entry& entry);

  PrefillNodeOptions options_;
  ModelInfo model_;
  BlockAllocator& allocator_;
  KvTransport& transport_;
  WorkerOutbox& outbox_;
  Engine engine_;

  std::map<CallId, Entry> entries_;
  std::map<AgeKey, CallId> waiting_;
  std::map<LiveKey, CallId> live_;
  absl::flat_hash_map<TicketId, CallId> tickets_;  // Of all entries.
  Deadlines<CallId> deadlines_;
  bool draining_ = false;
  uint64_t progress_ = 0;
  PrefillCounters counters_;
};

}  // namespace baton
