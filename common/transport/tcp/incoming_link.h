#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "common/transport/handshake.h"
#include "common/transport/receive_ledger.h"
#include "common/transport/tcp/frame_stream.h"
#include "common/transport/tcp/link.h"
#include "common/transport/transport_options.h"

namespace baton {

// The receiving end of a data connection: authenticates the sender, then lets the ledger judge
// every frame before its payload is read, or before it is written if it comes beside the
// connection. Progress thread only.
class IncomingLink : public Link, private PayloadCarrier::End {
 public:
  struct Options {
    const TransportOptions* transport = nullptr;
    FrameStream::Options stream;
    ReceiveLedger* ledger = nullptr;
    CounterBoard* counters = nullptr;
    Time handshake_deadline = kNever;
    // How often a sender whose part is whole hears that those of others are not. Each time restarts
    // its deadline, whose bound is then theirs.
    Duration reminder_interval = std::chrono::milliseconds(250);
    // A frame came for a ticket the ledger does not know. The call that expects it may still be in
    // the queue: the node made it before the sender heard of the ticket.
    std::function<void()> on_unknown_ticket;
    // The sender proved who it is; an older connection of the same rank has to go.
    std::function<void(IncomingLink*)> on_authenticated;
  };

  IncomingLink(std::unique_ptr<ByteStream> bytes, const Options& options);

  absl::StatusOr<PayloadPlan> OnHeader(const FrameHeader& header) override;
  absl::Status OnFrame(const ReceivedFrame& frame) override;
  std::optional<OutgoingFrame> NextFrame() override { return std::nullopt; }
  absl::Status OnReady(bool readable, bool writable, Time now) override;
  absl::Status OnTimer(Time now) override;
  Time NextDeadline() const override;
  void OnClosed(const absl::Status& status) override;
  FrameStream& stream() override { return stream_; }
  bool wants_slot() const override { return waiting_.has_value(); }

  // The ticket has ended: nothing of it is written any more, and a sender that has sent of it hears
  // how, once that is final.
  void OnTicketEnded(TicketId ticket, bool verified);

  // None (incarnation 0) until authenticated.
  ReceiveLedger::Sender sender() const {
    if (state_ != State::kReady) return {};
    return {hello_.sender, hello_.sender_place};
  }

  // The node gave the ticket up, or the ledger did: tell the sender.
  void SendAbort(TicketId ticket, AbortCode code);

  // Another connection of the same rank took over: closing this one ends no ticket of that one.
  void Supersede(const absl::Status& status);

 private:
  enum class State : uint8_t { kHello, kProof, kReady };

  // A data frame that is whole and good, of a pool with a stager; its body is the stream's.
  struct StagedFrame {
    FrameHeader header;
    std::span<const std::byte> body;
  };

  // PayloadCarrier::End.
  void Say(std::vector<std::byte> word) override;
  void OnCarried(std::span<const CarriedFrame>) override {}
  void OnLost(std::span<const CarriedFrame>) override {}
  std::optional<std::vector<PoolPiece>> Admit(const FrameHeader& header) override;
  void Commit(const FrameHeader& header) override;
  void OnSpoiled(const FrameHeader& header) override;

  PayloadCarrier* carrier() const { return options_.transport->carrier; }
  absl::Status OnWord(const ReceivedFrame& frame);
  // The ledger's word on a data frame; the sender has been told of a refusal.
  ReceiveLedger::Admission Judge(const FrameHeader& header);
  absl::Status OnHello(const ReceivedFrame& frame);
  absl::Status OnProof(const ReceivedFrame& frame);
  absl::Status OnData(const ReceivedFrame& frame);
  absl::Status OnFinal(const ReceivedFrame& frame);
  // And there is news for an ack.
  void CommitData(const FrameHeader& header);
  // False: no slot is free.
  bool Launch(const StagedFrame& frame);
  absl::Status LaunchWaiting();
  bool IsLanding(TicketId ticket) const;
  absl::Status SendVerdicts();
  absl::Status FailTicket(TicketId ticket, AbortCode code);
  // Says why and lets the connection close once that is written.
  absl::Status RefuseHandshake(AbortCode code);
  absl::Status Malformed(std::string_view what);
  absl::Status SendAcks();

  const Options options_;
  FrameStream stream_;
  State state_ = State::kHello;
  Hello hello_;
  Challenge challenge_;
  absl::Status overflow_;          // Of the queue, noticed outside a method that can tell.
  TicketId last_refused_;          // Answered once per run of frames.
  std::vector<TicketId> unacked_;  // Tickets with news for an ack.
  std::vector<PoolPiece> pieces_;        // Of the data frame that is read, with a stager.
  std::optional<StagedFrame> waiting_;   // For a slot; the stream is paused.
  std::set<TicketId> open_;              // This rank has sent of them, and they have not ended.
  std::set<TicketId> finished_;          // Of these, with its final frame; others' are missing.
  Time next_reminder_ = kNever;
  Time now_{};                           // Of the call in progress.
  TicketId judged_;                      // Whose frame the ledger judges; its answer is not theirs.
  std::vector<TicketId> verdicts_;       // Verified, perhaps still landing.
  bool superseded_ = false;
  uint64_t peer_version_ = 0;
  std::optional<PayloadCarrier::LinkId> link_id_;
};

}  // namespace baton
