#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/transport/kv_transport.h"
#include "common/transport/nccl/nccl_carrier.h"
#include "common/transport/tcp/connections.h"
#include "tests/sim/sim_gpu.h"
#include "tests/sim/sim_nccl.h"
#include "tests/sim/sim_stager.h"
#include "tests/sim/tag_memory.h"
#include "tests/sim/world.h"

namespace baton::sim {

class FabricPort;
class Pipe;

// The data network between all ranks of all workers: carries the bytes of the shipped socket
// transport, takes time, cuts them into pieces, damages, repeats and loses them.
class Fabric {
 public:
  Fabric(World& world, std::function<void(std::string)> violation)
      : world_(world), violation_(std::move(violation)) {}

  // From now on the pools of workers that start are reached by way of a stager.
  void StagePools() { staged_ = true; }
  // What the stagers have done.
  const SimStager::Totals& staged() const { return staged_totals_; }

  // And most of these workers have NCCL, of two versions.
  void UseNccl(uint64_t seed);
  // Nothing else goes wrong: then no handoff fails for want of progress.
  void OnlyNcclFails() { only_nccl_fails_ = true; }
  struct NcclTotals {
    int64_t received = 0;  // Batches.
    int64_t pairs_up = 0;
    int64_t pairs_failed = 0;
    int64_t pairs_stuck = 0;
    int64_t leaked_slots = 0;
    int64_t other_version = 0;  // Connections that were told so.
    NcclTotals& operator+=(const NcclTotals& other);
  };
  // Of processes that are gone, and of those that live.
  NcclTotals nccl() const;

  // What `from` sends does not reach `to` until then.
  void Block(Place from, Place to, Time until);
  void Slow(Place from, Place to, Duration extra, Time until);
  // Between any ranks of these columns.
  bool Blocked(int from, int to) const;
  void Heal();

  static std::string EndpointOf(Place place);

 private:
  friend class FabricPort;
  friend class Pipe;
  struct Path {
    Time blocked_until{};
    Duration extra{};
    Time slow_until{};
  };
  // When something that is sent now arrives, not before `last`.
  Time Arrival(Place from, Place to, Time last);
  FabricPort* Find(Place place) const;
  static std::optional<Place> PlaceOf(const std::string& endpoint);
  // Of the worker's NCCL; 0: none.
  int NcclVersionOf(Incarnation incarnation) const;
  nccl::Staging::Options NcclStagingOf(Incarnation incarnation, int rank) const;

  World& world_;
  std::function<void(std::string)> violation_;
  bool staged_ = false;
  SimStager::Totals staged_totals_;
  std::unique_ptr<SimNccl> nccl_;  // Null: none has it.
  uint64_t nccl_seed_ = 0;
  bool only_nccl_fails_ = false;
  NcclTotals nccl_totals_;
  std::map<std::pair<Place, Place>, Path> paths_;
  std::map<Place, FabricPort*> ports_;  // Of live workers.
  std::map<int, int> sizes_;            // Ranks of the worker at each column.
};

// One rank's transport, within one start of its host: the shipped connections, links, frames and
// ledger over simulated byte streams. Checks that nodes and transport keep the contract.
class FabricPort : public KvTransport, private Network {
 public:
  // Of the whole worker.
  struct Ranks {
    int size = 1;
    int32_t kv_heads = 1;
  };
  FabricPort(Fabric& fabric, Host& host, int rank, Ranks ranks, Incarnation incarnation,
             TagMemory& memory, const BlockEpochs& epochs, EventSink sink);
  ~FabricPort() override;

  // The key of the pair with that sender.
  PairKey KeyOf(Incarnation sender) const;

  void Expect(ExpectArgs args) override;
  void Start(StartArgs args) override;
  void Push(PushArgs args) override;
  void Finish(FinishArgs args) override;
  void Abort(TicketId ticket) override;

  // The blocks of every open ticket are held, and what was verified is its writer's no more.
  void Check();
  size_t num_open() const { return expected_.size() + sending_.size(); }
  // Of staging for NCCL.
  int64_t held_slots() const { return carrier_ == nullptr ? 0 : carrier_->counters().held_slots; }
  std::string DescribeNccl() const;

 private:
  friend class Fabric;
  friend class Pipe;
  struct Expected {
    ExpectArgs args;
    uint64_t serial = 0;
    bool damaged = false;  // A frame of it was, on its way.
    bool is_over_tcp = false;  // Some of it.
  };
  struct Sending {
    StartArgs args;
    uint64_t serial = 0;  // A replayed open starts an ended ticket again.
  };

  // Network.
  absl::StatusOr<std::unique_ptr<ByteStream>> Connect(const std::string& endpoint) override;
  bool Watch(uint64_t id, ByteStream& stream, const Interest& interest, bool is_new) override;
  void ExecuteCalls() override;

  void AddCall(TransportCall call);
  void TurnSoon();
  // A turn of the progress thread, in which `happens` happens.
  void Turn(absl::FunctionRef<void()> happens);
  // Its payload was, on its way, and has been read.
  void NoteDamaged(const FrameHeader& frame);
  void NoteData(TicketId ticket);
  void AddCarrier();
  Fabric::NcclTotals nccl() const;
  // After what has come over NCCL was announced, a block may move on.
  void OnNcclReceived();
  // Its ticket is open, and the pool has what it brings.
  bool HasLanded(const FrameHeader& frame) const;
  // A frame was acknowledged as being in the pool.
  void CheckLanded(const FrameHeader& frame);
  void CheckCarrier();
  void OnTransportEvent(TransferEvent event);
  void Tell(TransferEvent event);
  void CheckBytes(const StartArgs& args, int64_t bytes) const;
  void EndExpected(TransferEvent event);
  void NoteVerified(const ExpectArgs& args);
  template <typename Args>
  static int32_t FirstOf(const Args& args, const KvLayerGroup& group);
  template <typename Args>
  auto TouchedBy(const Args& args) const -> decltype(Args::blocks);
  void CheckEpochs();

  Fabric& fabric_;
  World& world_;
  Host& host_;
  Place place_;
  Ranks ranks_;
  TagMemory& memory_;
  const BlockEpochs& epochs_;
  EventSink sink_;
  std::deque<TransferEvent> untold_;  // Of which the sink hears next.
  std::vector<BlockRef> unsealed_;  // Full blocks that were verified: not sealed yet.
  std::map<TicketId, Expected> expected_;
  std::set<std::pair<BlockId, uint32_t>> promised_;  // Never twice to a writer.
  std::map<TicketId, Sending> sending_;
  uint64_t next_serial_ = 1;
  std::deque<TransportCall> calls_;
  bool turn_pending_ = false;
  Time wakeup_ = kNever;
  std::vector<std::shared_ptr<Pipe>> pipes_;  // That begin or end here.
  CounterBoard counters_;
  std::optional<SimStager> stager_;
  std::unique_ptr<SimGpu> gpu_;  // Null: it has no NCCL.
  std::unique_ptr<nccl::NcclCarrier> carrier_;
  int64_t told_down_ = 0;      // Pairs that go by TCP from now on.
  int64_t told_versions_ = 0;  // Of these: that never did otherwise.
  TcpOptions options_;
  std::unique_ptr<Connections> connections_;
};

}  // namespace baton::sim
