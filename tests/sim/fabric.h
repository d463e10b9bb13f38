#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/kv_cache/block_types.h"
#include "common/transport/kv_transport.h"
#include "tests/sim/tag_memory.h"
#include "tests/sim/world.h"

namespace baton::sim {

class FabricPort;

// The data network between all workers: moves tags instead of bytes, takes time, fails. Keeps the
// transport's contract and checks that the nodes keep theirs.
class Fabric {
 public:
  Fabric(World& world, std::function<void(std::string)> violation)
      : world_(world), violation_(std::move(violation)) {}

  // What column `from` sends does not reach column `to` until then.
  void Block(int from, int to, Time until);
  void Slow(int from, int to, Duration extra, Time until);
  bool Blocked(int from, int to) const;
  void Heal();
  // Nothing was heard of this stopped process for the keepalive time: its connections are reset.
  void Reset(int column);

 private:
  friend class FabricPort;
  struct Path {
    Time blocked_until{};
    Duration extra{};
    Time slow_until{};
  };
  // When something that is sent now arrives, not before `last`.
  Time Arrival(int from, int to, Time last);
  FabricPort* Find(Incarnation incarnation) const;

  World& world_;
  std::function<void(std::string)> violation_;
  std::map<std::pair<int, int>, Path> paths_;
  std::map<Incarnation, FabricPort*> ports_;  // Of live workers.
};

// One worker's transport, within one start of its host.
class FabricPort : public KvTransport {
 public:
  FabricPort(Fabric& fabric, Host& host, Incarnation incarnation, TagMemory& memory,
             const BlockGenerations& generations, EventSink sink);
  ~FabricPort() override;

  void Expect(ExpectArgs args) override;
  void Start(StartArgs args) override;
  void Push(PushArgs args) override;
  void Finish(FinishArgs args) override;
  void Abort(TicketId ticket) override;

  // The blocks of every open ticket are held.
  void Check() const;
  size_t num_open() const { return expected_.size() + sending_.size(); }

 private:
  friend class Fabric;
  struct Expected {
    ExpectArgs args;
    bool begun = false;
    std::vector<bool> missing;  // [layer * num_tokens + token]
  };
  struct Sending {
    StartArgs args;
    uint64_t serial = 0;   // A replayed open starts an ended ticket again.
    Time last_delivery{};  // Frames of one pair arrive in order.
    bool broken = false;   // Aborted, or its connection is: nothing more is sent.
  };
  struct Frame {
    PushArgs push;
    Incarnation sender = 0;
    std::vector<uint64_t> tags;
    bool corrupt = false;
  };

  void Send(const PushArgs& push, uint64_t serial, Time arrival);
  void Deliver(const Frame& frame);
  void DeliverFinal(const FinishArgs& finish, Incarnation sender);
  void Refuse(TicketId ticket, Incarnation sender);
  void Answer(TicketId ticket, Incarnation sender, absl::Status verdict);
  void Break(Sending& sending, Duration within, const std::string& why);
  void GiveUpAfter(Sending& sending, Time arrival);
  void EndReceiver(TicketId ticket, absl::Status status, TokenOutput first = {});
  void EndIfBegun(TicketId ticket, absl::Status status);
  void EndSender(TicketId ticket, absl::Status status);
  Sending* FindSending(TicketId ticket, uint64_t serial);
  Duration AbortDelay();

  Fabric& fabric_;
  World& world_;
  Host& host_;
  Incarnation incarnation_;
  TagMemory& memory_;
  const BlockGenerations& generations_;
  EventSink sink_;
  std::map<TicketId, Expected> expected_;
  std::set<std::pair<BlockId, uint32_t>> promised_;  // Never twice to a writer.
  std::map<TicketId, Sending> sending_;
  uint64_t next_serial_ = 1;
};

}  // namespace baton::sim
