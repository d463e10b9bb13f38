#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/engine/call_table.h"
#include "common/engine/engine.h"
#include "common/engine/layer_progress.h"
#include "common/kv_cache/block_allocator.h"
#include "common/node/node.h"
#include "common/node/worker_mail.h"
#include "common/transport/kv_transport.h"

namespace baton {

struct PrefillNodeOptions {
  Incarnation incarnation = 0;
  EngineOptions engine;
  int32_t max_waiting = 1024;  // Calls accepted and not yet holding blocks.
  // KV whose handoff failed is kept this long for a Send.
  Duration keep_limit = std::chrono::seconds(10);
  // A Send waits this long for the transfer before it to end (T_abort).
  Duration abort_limit = std::chrono::seconds(2);
};

struct PrefillCounters : WorkerCounters {
  int64_t sends = 0;         // Send requests that were taken.
  int64_t kept_expired = 0;  // Finished prompts given up because no Send came in time.
};

// The logic of a prefill worker: admits prompts with all their blocks, computes them in chunks,
// pushes each layer's K/V as it is written, samples the first token. Its state table is in
// ARCHITECTURE.md. Everything passed by reference outlives it.
class PrefillNode : public Node<WorkerMail> {
 public:
  PrefillNode(const PrefillNodeOptions& options, const ModelInfo& model, BlockAllocator& allocator,
              ModelRunner& runner, KvTransport& transport, WorkerOutbox& outbox);

  void Handle(WorkerMail mail, Time now) override;
  void Step(Time now) override;
  Time NextDeadline() const override {
    return std::min(calls_.NextDeadline(), progress_.next_look());
  }

  WorkerStatus Status() const;
  WorkerAudit Audit(Time now) const {
    return calls_.Audit(options_.incarnation, now, transport_.OpenLegs());
  }
  const PrefillCounters& counters() const { return counters_; }
  // No call is live and no block is held.
  bool idle() const { return calls_.empty(); }

 private:
  // One Prefill call. Its limit is that of KV which is kept, or of a Send which waits.
  struct Entry : CallEntry {
    enum class State : uint8_t { kWaiting, kComputing, kSending, kKept, kEnding };
    static constexpr const char* kStateNames[] = {"WAITING", "COMPUTING", "SENDING", "KEPT",
                                                  "ENDING"};
    State state = State::kWaiting;
    std::optional<HandoffTarget> handoff;
    // A Send named `handoff`: its transfer starts when the prompt is computed and the transfer
    // before it has ended.
    bool send_due = false;
    int32_t num_tokens = 0;            // To be computed and sent.
    std::optional<TokenOutput> first;  // The token that was sampled.
    int32_t cached_tokens = 0;
  };
  using State = Entry::State;

  void OnOpened(PrefillOpened opened, Time now);
  void OnBroken(const CallBroken& broken);
  absl::Status Admissible(const PrefillRequest& request) const;
  void AdmitWaiting();
  bool Admit(Entry& entry);
  std::string WhyBad(const HandoffTarget& target, const Entry& entry) const;
  void OnSend(SendRequest request, Time now);
  void StartTransfer(Entry& entry, int32_t num_tokens);
  void StartSend(Entry& entry, Time now);
  void OnLayerDone(const LayerDone& done, Time now);
  void OnRowsDone(const RowsDone& done, Time now);
  void PushRows(const Entry& entry, int32_t layer, int32_t begin, int32_t end);
  void OnStepDone(StepDone done, Time now);
  void EmitScores(const Entry& entry, std::vector<PromptLogprob> logprobs);
  void OnPrefilled(Entry& entry, std::optional<TokenOutput> first, Time now);
  void Finish(const Entry& entry);
  void OnTransfer(const TransferEvent& event, Time now);
  void Keep(Entry& entry, Time now);
  // Gives the entry up: everything that may still touch its blocks is told to stop, and the entry
  // goes once all of it has.
  void End(Entry& entry);
  void EraseIfQuiet(Entry& entry);
  // Between two pieces of mail a call holds what its state says (ARCHITECTURE.md, section 6).
  void CheckHeld(const Entry& entry) const;

  PrefillNodeOptions options_;
  ModelInfo model_;
  BlockAllocator& allocator_;
  KvTransport& transport_;
  WorkerOutbox& outbox_;
  Engine engine_;

  CallTable<Entry> calls_;
  std::map<AgeKey, CallId> waiting_;
  absl::flat_hash_map<TicketId, CallId> tickets_;  // Of all targets and open transfers.
  bool draining_ = false;
  LayerProgress progress_;
  PrefillCounters counters_;
};

}  // namespace baton
