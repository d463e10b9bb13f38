#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "common/kv_cache/block_types.h"
#include "common/transport/kv_transport.h"
#include "tests/sim/fake_model.h"
#include "tests/sim/world.h"

namespace baton::sim {

class FabricPort;

// The data network between all workers: moves tags instead of bytes, takes time, fails. Keeps the
// transport's contract and checks that the nodes keep theirs.
class Fabric {
 public:
  Fabric(World& world, const Faults& faults, std::function<void(std::string)> violation)
      : world_(world), faults_(faults), violation_(std::move(violation)) {}

 private:
  friend class FabricPort;
  World& world_;
  const Faults& faults_;
  std::function<void(std::string)> violation_;
  std::map<Incarnation, FabricPort*> ports_;  // Of live workers.
};

// One worker's transport.
class FabricPort : public KvTransport {
 public:
  FabricPort(Fabric& fabric, Incarnation incarnation, TagMemory& memory,
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
  struct Expected {
    ExpectArgs args;
    bool begun = false;
    int64_t missing = 0;  // Layer-tokens still to come.
  };
  struct Sending {
    StartArgs args;
    uint64_t serial = 0;   // A replayed open starts an ended ticket again.
    Time last_delivery{};  // Frames of one pair arrive in order.
    bool aborted = false;
  };

  void Deliver(const PushArgs& push, const StartArgs& start, std::vector<uint64_t> tags);
  void DeliverFinal(const FinishArgs& finish, const StartArgs& start);
  void EndReceiver(TicketId ticket, absl::Status status, TokenOutput first = {});
  void EndSender(TicketId ticket, absl::Status status);
  Sending* FindSending(TicketId ticket, uint64_t serial);
  Time Arrival(Sending& sending);
  // Runs at `when` if this port still lives.
  void Later(Time when, std::function<void()> run);

  Fabric& fabric_;
  Incarnation incarnation_;
  TagMemory& memory_;
  const BlockGenerations& generations_;
  EventSink sink_;
  std::map<TicketId, Expected> expected_;
  std::set<std::pair<BlockId, uint32_t>> promised_;  // Never twice to a writer.
  std::map<TicketId, Sending> sending_;
  uint64_t next_serial_ = 1;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace baton::sim
