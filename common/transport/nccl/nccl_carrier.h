#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/transport/nccl/communicators.h"
#include "common/transport/nccl/nccl_library.h"
#include "common/transport/nccl/receiving_batches.h"
#include "common/transport/nccl/sending_batches.h"
#include "common/transport/nccl/staging.h"
#include "common/transport/nccl/words.h"
#include "common/transport/payload_carrier.h"

namespace baton::nccl {

// Since the carrier was made. `stuck` aborts never returned.
struct CarrierCounters {
  int64_t pairs_up = 0;      // Communicators that could be used.
  int64_t pairs_failed = 0;  // That came to an end, or to nothing, with their connection alive.
  int64_t pairs_condemned = 0;  // Of these: the peer said what it must not say.
  int64_t pairs_stuck = 0;
  int64_t leaked_slots = 0;
  int64_t held_slots = 0;  // Now, by batches.
  // Connections now, by what carries their payload.
  int64_t links_over_nccl = 0;
  int64_t links_over_tcp = 0;
};

// Of a connection, for operators.
struct LinkState {
  std::string peer;
  int version = 0;      // Of the peer's NCCL; 0: none.
  bool sends = false;   // This end does.
  bool is_up = false;   // K/V goes over NCCL.
  std::string why;      // It does not, or not all of it.
};

// PayloadCarrier by NCCL: a communicator for each connection between two ranks, and batches of
// frames that cross by way of staging slots, the only memory that NCCL touches. What is said and
// launched when is sending_batches.h and receiving_batches.h; here are words, deadlines, and what a
// failure costs: the communicator, never the connection. Nothing waits but for limits of this
// process's own running.
class NcclCarrier : public PayloadCarrier {
 public:
  struct Options {
    Staging::Options staging;
    Communicators::Options limits;  // Scaled by time_scale, as all here.
    double time_scale = 1;
    // Beside 10 x expected: without an ack or another sign of what has to come.
    Duration progress_limit = std::chrono::seconds(1);
    // Told when a connection's K/V goes another way than before, and why; `up`: over NCCL, but for
    // what `why` says.
    std::function<void(const std::string& peer, bool up, const std::string& why)> on_path;
    Staging::OnLost on_lost;  // A device; ends the process.
    std::function<Time()> now = SteadyNow;
  };

  // Before the device's first step. Device and cache outlive it. UNIMPLEMENTED of a device that no
  // library knows; errors of the allocation.
  static absl::StatusOr<std::unique_ptr<NcclCarrier>> Create(
      std::shared_ptr<const Library> library, Device& device, const KvCache& cache,
      Options options);

  uint64_t version() const override { return CarrierVersion(library_->version()); }
  LinkId Open(End* end, const Peer& peer) override;
  void Close(LinkId link) override;
  absl::Status OnWord(LinkId link, std::span<const std::byte> word) override;
  Room RoomFor(LinkId link) const override;
  Limits LimitsFor(LinkId link) const override;
  void Carry(LinkId link, std::vector<CarriedFrame> frames) override;
  void OnTicketEnded(const BlockStager::Work& work) override;
  int Busy(const BlockStager::Work& work) const override { return staging_->Busy(work); }
  void Turn(Time now) override;
  bool busy() const override;
  Time NextDeadline() const override;
  void Shutdown() override;

  // Any thread.
  CarrierCounters counters() const;
  std::vector<LinkState> links() const;

 private:
  // A connection.
  struct Link {
    End* end = nullptr;
    Peer peer;
    PairId pair = -1;    // Of its present communicator.
    uint32_t epoch = 0;  // And what it is called.
    BatchLimits limits;  // Of both sides, once the peer is up; before, of this side.
    bool is_up = false;        // Ours.
    bool is_peer_up = false;
    bool never = false;        // No other communicator comes.
    std::deque<Time> failures;  // Within the last minute.
    Time next_offer = kNever;  // Receiver: of an id.
    Duration waited{};  // For the peer, without a sign of progress.
    Duration silent{};  // Receiver: since it said something about batches.
    std::string why;    // Frames go over the connection, or some; empty: none does.
  };
  // A communicator, from its begin until nothing of it is under way.
  struct Pair {
    LinkId link = -1;  // None: it is given up.
    bool receives = false;
    bool was_up = false;  // The batches know it.
    bool is_aborted = false;
  };
  struct Sent {
    LinkId link = -1;
    std::vector<CarriedFrame> frames;
    FrameSet ended;  // Their tickets have: they are not read any more.
  };
  struct Received {
    std::vector<FrameHeader> frames;
    FrameSet ended;          // Their tickets have: they must not be written any more.
    uint32_t grant = 0;      // That is out and has not been used; 0: none.
    Duration granted_for{};
  };

  NcclCarrier(std::shared_ptr<const Library> library, Device& device, Options options);

  // Null: its connection has closed, or has given it up.
  Link* LinkOf(PairId pair);
  void Say(const Link& link, Word word);
  bool CanCarry(const Link& link) const;
  BatchLimits own_limits() const;

  // Communicators.
  // Its present one, of which nothing is known to the peer yet.
  PairId BeginPair(LinkId id, Link* link);
  void Offer(LinkId id, Link* link);
  absl::Status OnId(LinkId id, Link* link, const Word& word);
  void OnUp(PairId pair, Link* link);
  void TellIfUp(Link* link);
  void TellPath(Link* link, bool up, const std::string& why);
  void PublishLinks();
  // The present communicator is given up, and frames go over the connection; another one comes
  // later, unless failures are many. Not amid Do.
  void Drop(Link* link, const std::string& why, bool tell);
  void Detach(Link* link);
  // No connection of this rank uses NCCL from now on.
  void GiveUp();
  void OnEvent(const Communicators::Event& event);

  // Batches.
  absl::Status OnBatchWord(Link* link, Word word);
  void OnAnnounce(Link* link, BatchKey key, Word word);
  void OnBatchWordOfSender(Link* link, BatchKey key, Word word);
  void OnBatchWordOfReceiver(BatchKey key, const Word& word);
  // In the order of the calls: what an action brings about is done behind those before it.
  void Do(const Actions& actions);
  void DoOne(const Action& action);
  void SayOf(const Action& action);
  void Gather(const Action& action);
  void Scatter(const Action& action);
  void StartSum(const Action& action);
  void OnLanded(Staging::Landed landed);
  void EndSent(const Action& action);

  // Deadlines.
  Duration Scaled(Duration d) const;
  Duration LimitOf(PairId pair) const;
  void WatchBatches(Link* link, Duration running);
  void WatchLink(Link* link, Duration running);
  void WatchGrants(Duration running);

  const std::shared_ptr<const Library> library_;
  const Options options_;
  std::unique_ptr<Staging> staging_;
  Communicators communicators_;
  SendingBatches sending_;
  ReceivingBatches receiving_;
  std::map<LinkId, Link> links_;
  std::map<PairId, Pair> pairs_;
  std::map<BatchKey, Sent> sent_;
  std::map<BatchKey, Received> received_;
  std::deque<Action> todo_;
  bool is_doing_ = false;
  LinkId next_link_ = 0;
  PairId next_pair_ = 0;
  Time now_{};
  std::atomic<int64_t> pairs_up_ = 0;
  std::atomic<int64_t> pairs_failed_ = 0;
  std::atomic<int64_t> pairs_condemned_ = 0;
  std::atomic<int64_t> pairs_stuck_ = 0;
  std::atomic<int64_t> leaked_slots_ = 0;
  std::atomic<int64_t> held_slots_ = 0;
  std::atomic<int64_t> links_over_nccl_ = 0;
  std::atomic<int64_t> links_over_tcp_ = 0;
  bool has_news_ = false;  // Of paths.
  mutable std::mutex mutex_;
  std::vector<LinkState> published_;  // Under it.
};

}  // namespace baton::nccl
