#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "common/transport/handshake.h"
#include "common/transport/tcp/frame_stream.h"
#include "common/transport/tcp/link.h"
#include "common/transport/transport_options.h"

namespace baton {

// The sending end of a data connection: authenticates both ways, then turns the node's pushes, in
// their order, into frames whenever the socket takes more. With a carrier frames go beside the
// connection while it takes them. Owns the tickets that go over it and ends each once. Progress
// thread only.
class OutgoingLink : public Link, private PayloadCarrier::End {
 public:
  struct Options {
    TransportOptions transport;  // Its sink is told of every ending.
    FrameStream::Options stream;
    CounterBoard* counters = nullptr;
    Incarnation receiver = 0;
    RankPlace receiver_place;
    PairKey key{};
    Duration handshake_timeout{};
    Duration min_progress_timeout{};  // Of a ticket with something outstanding.
  };

  OutgoingLink(std::unique_ptr<ByteStream> bytes, const Options& options, Time now);

  // The ticket is new to this transport and its arguments are checked. One that cannot go over this
  // connection ends at once.
  void Start(StartArgs args);
  void Push(const PushArgs& args, Time now);
  void Finish(FinishArgs args, Time now);
  void Abort(TicketId ticket);
  bool Has(TicketId ticket) const { return tickets_.contains(ticket); }
  bool idle() const { return tickets_.empty(); }
  Incarnation receiver() const { return options_.receiver; }
  RankPlace receiver_place() const { return options_.receiver_place; }

  absl::StatusOr<PayloadPlan> OnHeader(const FrameHeader& header) override;
  absl::Status OnFrame(const ReceivedFrame& frame) override;
  std::optional<OutgoingFrame> NextFrame() override;
  absl::Status OnReady(bool readable, bool writable, Time now) override;
  absl::Status OnTimer(Time now) override;
  Time NextDeadline() const override;
  void OnClosed(const absl::Status& status) override;
  FrameStream& stream() override { return stream_; }

  bool wants_slot() const override { return wants_slot_; }

  bool connecting() const { return state_ == State::kConnecting; }

 private:
  enum class State : uint8_t { kConnecting, kChallenge, kAccepted, kReady };
  using Work = std::variant<PushArgs, FinishArgs>;
  struct Ticket {
    StartArgs args;
    int64_t queued = 0;      // Pushes and finish of which a frame has not left yet.
    int64_t sent_bytes = 0;  // Handed to the stream.
    int64_t acked_bytes = 0;
    bool final_sent = false;  // Waits for kVerified.
    int64_t carried = 0;        // Frames with the carrier, or lost by it and not sent since.
    int64_t carried_bytes = 0;  // That arrived.
    std::optional<FinishArgs> finish;  // Waits for them.
    Time armed_at{};          // When the deadline was set.
    Time deadline = kNever;
    bool outstanding() const {
      return queued > 0 || final_sent || sent_bytes > acked_bytes || carried > 0;
    }
  };
  using Tickets = std::map<TicketId, Ticket>;
  // A data frame whose payload is on its way from the stager.
  struct StagedFrame {
    FrameHeader header;
    std::shared_ptr<GatheredBytes> gathered;
    bool last = false;  // Of its push.
    bool was_carried = false;  // And lost: it is not of a push at the front.
  };

  absl::Status SendHello();
  absl::Status OnChallenge(const ReceivedFrame& frame);
  absl::Status OnAck(const FrameHeader& header);
  absl::Status OnWord(const ReceivedFrame& frame);
  // They wait for their turn on this connection, and it moves.
  void ArmWaiting();

  // PayloadCarrier::End.
  void Say(std::vector<std::byte> word) override;
  void OnCarried(std::span<const CarriedFrame> frames) override;
  void OnLost(std::span<const CarriedFrame> frames) override;
  std::optional<std::vector<PoolPiece>> Admit(const FrameHeader&) override { return std::nullopt; }
  void Commit(const FrameHeader&) override {}
  void OnSpoiled(const FrameHeader&) override {}

  PayloadCarrier* carrier() const { return options_.transport.carrier; }
  // New frames go beside the connection, now or when there is room.
  bool Carries() const;
  void CarryFrames();
  std::vector<CarriedFrame> TakeBatch();
  // What both pools make of a frame.
  size_t MostPieces(const CarriedFrame& frame) const;
  // False: there is no push at the front of the work, and frames_ is empty.
  bool PlanFront();
  std::vector<PoolPiece> PiecesOf(const StartArgs& args, const FrameRange& range) const;
  void Announce(Tickets::iterator it, Work work);
  std::optional<OutgoingFrame> NextDataFrame();
  // Launches the gather of the next data frame. False: as many as may be are ahead, or no slot is
  // free.
  bool StageNext();
  std::optional<OutgoingFrame> NextStaged();
  // The next data frame's range is taken. True: it was the last of its push, which is done with.
  bool TakeRange();
  // As StageNext, of a frame that the carrier lost.
  bool StageLost();
  bool Stage(StagedFrame frame);
  // Of the finish at the front; none: it waits, or its ticket has ended.
  std::optional<OutgoingFrame> FinishFront();
  // Of a ticket that waits for frames no more.
  std::optional<OutgoingFrame> LateFinal();
  std::optional<OutgoingFrame> FinalFrame(const FinishArgs& args);
  // No byte of the ticket's blocks is read after it; `tell` the receiver unless kNone.
  void End(Tickets::iterator it, absl::Status status, AbortCode tell);
  void DropWork(TicketId ticket);
  void Arm(Ticket* ticket) const;
  void NoteProgress(int64_t bytes);

  const Options options_;
  FrameStream stream_;
  State state_ = State::kConnecting;
  Time handshake_deadline_;
  Time now_;  // Of the call in progress.
  Hello hello_;
  PoolShape receiver_pool_;
  Tickets tickets_;
  std::deque<Work> work_;           // In the order of the node's calls.
  std::vector<FrameRange> frames_;  // Of the push at the front, from next_frame_ on.
  size_t next_frame_ = 0;
  std::deque<StagedFrame> staged_;  // With a stager; before all of work_.
  std::deque<FrameHeader> lost_;  // By the carrier, of live tickets; before all of these.
  int num_late_ = 0;              // Tickets with a finish that waits.
  std::optional<PayloadCarrier::LinkId> link_id_;
  uint64_t peer_version_ = 0;
  bool wants_slot_ = false;  // In this OnReady, as the next.
  bool got_slot_ = false;
  double seconds_per_byte_ = 0;  // Moving mean over acknowledged bytes.
  Time last_progress_{};
  Time last_heard_{};  // Any frame of the receiver.
  absl::Status overflow_;
};

}  // namespace baton
