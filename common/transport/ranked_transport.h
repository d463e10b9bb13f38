#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/transport/kv_transport.h"
#include "common/transport/rank_legs.h"

namespace baton {

// The transports of a worker's ranks as one: the node's handoff is a leg into each rank of the
// receiver from each rank that has something for it (rank_legs.h). A handoff has begun with its
// first leg and ended with its last; it is OK if all legs are, and the first that fails aborts the
// others. Made before its children, which report to SinkOf(rank).
//
// It does one thing at a time: what a child reports while a call is handed to the legs waits until
// all have it. Whoever comes to it idle works off what comes meanwhile, so a call to a child, or to
// the node's sink, may happen on a child's thread.
class RankedTransport : public KvTransport {
 public:
  // `kv_heads`: of the whole model.
  RankedTransport(int32_t kv_heads, EventSink sink);
  // The children are gone, so all handoffs have ended.
  ~RankedTransport() override;

  EventSink SinkOf(int32_t rank);
  // One for each rank, in their order; before the first call.
  void SetRanks(std::vector<KvTransport*> ranks);
  // Before the first child is destroyed, and not from within a sink: no child is called any more.
  // Their endings are still told; new handoffs end at once.
  void Close();

  // Tickets are those of handoffs. Start goes by `receivers`.
  void Expect(ExpectArgs args) override;
  void Start(StartArgs args) override;
  void Push(PushArgs args) override;
  void Finish(FinishArgs args) override;
  void Abort(TicketId ticket) override;

  std::vector<OpenLeg> OpenLegs() const override;

  // Calls for a handoff that is unknown, ended or known already.
  int64_t ignored_calls() const;

 private:
  struct AbortCall {
    TicketId ticket;
  };
  struct ChildEvent {
    int32_t rank = 0;
    TransferEvent event;
  };
  using Item =
      std::variant<ExpectArgs, StartArgs, PushArgs, FinishArgs, AbortCall, ChildEvent>;

  // One side of a handoff.
  using Key = std::pair<TicketId, bool>;  // And whether it is the receiver's.
  struct Leg {
    int32_t rank = 0;  // Whose transport has it.
    TicketId ticket;
    bool operator==(const Leg&) const = default;
  };
  struct Handoff {
    std::vector<Leg> open;
    bool begun = false;
    bool giving_up = false;  // The legs were told to abort.
    bool has_first = false;
    TransferEvent end;  // What is known of it so far.
  };
  using Handoffs = std::map<Key, Handoff>;

  uint64_t Add(Item item);  // The number of the item, from 1.
  void Handle(ExpectArgs args);
  void Handle(StartArgs args);
  void Handle(PushArgs args);
  void Handle(FinishArgs args);
  void Handle(AbortCall call);
  void Handle(ChildEvent child);
  absl::Status CheckNew(TicketId ticket) const;
  absl::Status CheckReceivers(const std::vector<DataRank>& receivers) const;
  // False, counted: the handoff is known already.
  bool Open(const Key& key, std::vector<Leg> legs);
  void Refuse(const Key& key, absl::Status status);
  template <typename Args, typename Call>
  void TellLegs(Args args, Call call);
  void EndLeg(const Leg& leg, Handoff* handoff);
  static void Merge(TransferEvent event, Handoff* handoff);
  void GiveUp(Handoff* handoff);
  void Ignore();

  const int32_t kv_heads_;
  const EventSink sink_;
  std::vector<KvTransport*> ranks_;
  // Of whoever is working, who has mutex_ when legs come or go.
  Handoffs handoffs_;
  bool closing_ = false;

  mutable std::mutex mutex_;
  std::condition_variable idle_;
  std::deque<Item> items_;
  uint64_t num_added_ = 0;
  uint64_t num_handled_ = 0;
  bool busy_ = false;
  std::thread::id worker_;  // While busy.
  bool closed_ = false;
  int64_t ignored_calls_ = 0;
};

}  // namespace baton
