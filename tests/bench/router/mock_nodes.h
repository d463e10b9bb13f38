#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "absl/container/flat_hash_map.h"
#include "common/node/node.h"
#include "common/node/worker_mail.h"

namespace baton::bench {

// Workers without a model: what they say comes at a given pace, so that only the router is
// measured. They speak as the shipped nodes do while nothing fails; of faults they know the end of
// a session: a sequence that returns goes on.

struct MockOptions {
  Incarnation incarnation = 0;
  Duration pace{};           // Of a decode step, which gives each running sequence a token.
  int32_t max_running = 0;   // Sequences of a decode worker; more are refused.
  Duration prompt_time{};    // Of a prompt at a prefill worker, one after another; 0 = at once.
};

class MockDecodeNode : public Node<DecodeMail> {
 public:
  MockDecodeNode(const MockOptions& options, WorkerOutbox& outbox)
      : options_(options), outbox_(outbox) {}

  void Handle(DecodeMail mail, Time now) override;
  void Step(Time now) override;
  Time NextDeadline() const override { return num_running_ > 0 ? next_step_ : kNever; }

  int32_t num_sequences() const { return static_cast<int32_t>(sequences_.size()); }

 private:
  struct Sequence {
    Attempt attempt = 1;
    int32_t position = 0;  // Of the next token.
    int32_t end = 0;       // Behind the last one.
    bool running = false;  // Its prompt has arrived.
  };

  void Open(const DecodeOpened& opened, Time now);
  void Begin(Sequence& sequence, Time now);
  void Arrive(const TransferEvent& event, Time now);
  void Forget(CallId call);
  // Says the next token of a call; true when that was the last one.
  bool EmitNext(CallId call, Sequence& sequence);

  const MockOptions options_;
  WorkerOutbox& outbox_;
  absl::flat_hash_map<CallId, Sequence> sequences_;
  int32_t num_running_ = 0;
  Time next_step_{};
};

class MockPrefillNode : public Node<PrefillMail> {
 public:
  // `arrived` carries the end of a handoff to the decode worker's mail.
  MockPrefillNode(const MockOptions& options, WorkerOutbox& outbox,
                  std::function<void(TransferEvent)> arrived)
      : options_(options), outbox_(outbox), arrived_(std::move(arrived)) {}

  void Handle(PrefillMail mail, Time now) override;
  void Step(Time now) override;
  Time NextDeadline() const override { return waiting_.empty() ? kNever : ready_at_; }

 private:
  void Answer(PrefillOpened& opened);

  const MockOptions options_;
  WorkerOutbox& outbox_;
  const std::function<void(TransferEvent)> arrived_;
  std::deque<PrefillOpened> waiting_;
  Time ready_at_{};  // When the first of them is computed.
};

// The ticket of a call of a MockDecodeNode.
TicketId TicketOf(CallId call);

}  // namespace baton::bench
