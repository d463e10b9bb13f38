#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/engine/worker_node.h"
#include "common/kv_cache/block_allocator.h"
#include "common/node/worker_mail.h"
#include "common/transport/kv_transport.h"

namespace baton {

struct PrefillNodeOptions {
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

// One Prefill call. Its limit is that of KV which is kept, or of a Send which waits.
struct PrefillEntry : CallEntry {
  enum class State : uint8_t { kWaiting, kComputing, kSending, kKept, kEnding };
  static constexpr const char* kStateNames[] = {"WAITING", "COMPUTING", "SENDING", "KEPT",
                                                "ENDING"};
  static constexpr bool kReceives = false;
  State state = State::kWaiting;
  std::optional<HandoffTarget> handoff;
  // A Send named `handoff`: its transfer starts when the prompt is computed and the transfer
  // before it has ended.
  bool send_due = false;
  int32_t num_tokens = 0;            // To be computed and sent.
  std::optional<TokenOutput> first;  // The token that was sampled.
  int32_t cached_tokens = 0;
};

extern template class WorkerNode<PrefillEntry, PrefillMail, PrefillCounters>;

// The logic of a prefill worker: admits prompts with all their blocks, computes them in chunks,
// pushes each layer's K/V as it is written, samples the first token. Its state table is in
// ARCHITECTURE.md.
class PrefillNode : public WorkerNode<PrefillEntry, PrefillMail, PrefillCounters> {
 public:
  PrefillNode(const WorkerParts& parts, const PrefillNodeOptions& options);

  void Handle(PrefillMail mail, Time now) override;
  void Step(Time now) override;
  WorkerStatus Status() const override;

 private:
  using Entry = PrefillEntry;

  void OnOpened(PrefillOpened opened, Time now);
  absl::Status Admissible(const PrefillRequest& request) const;
  void AdmitWaiting();
  bool Admit(Entry& entry);
  std::string WhyBad(const HandoffTarget& target, const Entry& entry) const;
  void OnSend(SendRequest request, Time now);
  void StartTransfer(Entry& entry, int32_t num_tokens);
  void StartSend(Entry& entry, Time now);
  void OnLayerDone(const LayerDone& done, Time now);
  void PushRows(const Entry& entry, int32_t layer, int32_t begin, int32_t end);
  void OnProgress(Entry& entry, SequenceProgress& progress, Time now) override;
  void OnPrefilled(Entry& entry, std::optional<TokenOutput> first, Time now);
  void Finish(const Entry& entry);
  void OnTransferBegun(Entry&) override { ++counters_.stale_mail; }
  void OnTransferEnded(Entry& entry, const TransferEvent& event, Time now) override;
  void Keep(Entry& entry, Time now);
  void Leave(const Entry& entry) override { waiting_.erase(entry.age); }
  void Forget(const Entry& entry) override;
  void CheckState(const Entry& entry) const override;

  const PrefillNodeOptions options_;
  const size_t max_running_;
  std::map<AgeKey, CallId> waiting_;
};

}  // namespace baton
