#include "tests/sim/fabric.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/transport/pair_key.h"
#include "tests/sim/pipe.h"

namespace baton::sim {

// ---- Paths -------------------------------------------------------------------------------------

void Fabric::Block(Place from, Place to, Time until) {
  Path& path = paths_[{from, to}];
  path.blocked_until = std::max(path.blocked_until, until);
}

void Fabric::Slow(Place from, Place to, Duration extra, Time until) {
  Path& path = paths_[{from, to}];
  path.extra = extra;
  path.slow_until = until;
}

bool Fabric::Blocked(int from, int to) const {
  return std::ranges::any_of(paths_, [&](const auto& item) {
    const auto& [places, path] = item;
    return places.first.column == from && places.second.column == to &&
           path.blocked_until > world_.now();
  });
}

void Fabric::Heal() {
  paths_.clear();
  for (const auto& [place, port] : ports_) {
    for (const std::shared_ptr<Pipe>& pipe : port->pipes_) pipe->Heal();
  }
}

Time Fabric::Arrival(Place from, Place to, Time last) {
  Time arrival = world_.now() + world_.Micros(20, 3000);
  if (auto it = paths_.find({from, to}); it != paths_.end()) {
    if (it->second.slow_until > world_.now()) arrival += it->second.extra;
    arrival = std::max(arrival, it->second.blocked_until + Duration(1));
  }
  return std::max(arrival, last + Duration(1));
}

FabricPort* Fabric::Find(Place place) const {
  auto it = ports_.find(place);
  return it == ports_.end() ? nullptr : it->second;
}

std::string Fabric::EndpointOf(Place place) {
  return absl::StrCat("127.0.", place.rank, ".", place.column, ":1");
}

std::optional<Place> Fabric::PlaceOf(const std::string& endpoint) {
  const std::vector<std::string> parts = absl::StrSplit(endpoint, absl::ByAnyChar(".:"));
  Place place;
  if (parts.size() != 5 || !absl::SimpleAtoi(parts[2], &place.rank) ||
      !absl::SimpleAtoi(parts[3], &place.column)) {
    return std::nullopt;
  }
  return place;
}

// ---- One rank's end --------------------------------------------------------------------------

FabricPort::FabricPort(Fabric& fabric, Host& host, int rank, Ranks ranks, Incarnation incarnation,
                       TagMemory& memory, const BlockEpochs& epochs, EventSink sink)
    : fabric_(fabric),
      world_(fabric.world_),
      host_(host),
      place_{host.column(), rank},
      ranks_(ranks),
      memory_(memory),
      epochs_(epochs),
      sink_(std::move(sink)) {
  options_.transport = {.incarnation = incarnation,
                        .cache = &memory.cache(),
                        .epochs = &epochs,
                        .sink = [this](TransferEvent e) { OnTransportEvent(std::move(e)); },
                        .place = {rank, ranks.size},
                        .kv_heads = ranks.kv_heads};
  for (size_t i = 0; i < options_.transport.secret.size(); ++i) {
    options_.transport.secret[i] = static_cast<uint8_t>(Random::Mix(incarnation + i));
  }
  if (fabric_.staged_) {
    stager_.emplace(world_, host_, memory_, &fabric_.staged_totals_, [this] { TurnSoon(); });
    options_.transport.stager = &*stager_;
  }
  AddCarrier();
  connections_ = std::make_unique<Connections>(options_, &counters_, static_cast<Network*>(this));
  fabric_.ports_[place_] = this;
  fabric_.sizes_[place_.column] = ranks.size;
}

// Peers see the connections end, behind what was on its way.
FabricPort::~FabricPort() {
  fabric_.ports_.erase(place_);
  fabric_.nccl_totals_ += nccl();
  connections_.reset();
  carrier_.reset();
  if (gpu_ != nullptr) fabric_.nccl_->GpuDied(gpu_.get());
  for (const std::shared_ptr<Pipe>& pipe : pipes_) pipe->PortDied(this);
  for (TransferEvent& event : untold_) sink_(std::move(event));
  const absl::Status gone = absl::CancelledError("the process is gone");
  for (const auto& [ticket, expected] : expected_) {
    sink_({.ticket = ticket, .receiver = true, .status = gone});
  }
  for (const auto& [ticket, sending] : sending_) sink_({.ticket = ticket, .status = gone});
}

PairKey FabricPort::KeyOf(Incarnation sender) const {
  return DerivePairKey(options_.transport.secret, sender, options_.transport.incarnation);
}

// A handoff's first token in a group of layers.
template <typename Args>
int32_t FabricPort::FirstOf(const Args& args, const KvLayerGroup& group) {
  return std::max(args.first_token, TokensLeftOut(group, args.num_tokens));
}

// The blocks that a handoff writes or reads.
template <typename Args>
auto FabricPort::TouchedBy(const Args& args) const -> decltype(Args::blocks) {
  const KvLayout& layout = memory_.cache().layout();
  decltype(Args::blocks) touched;
  for (int32_t g = 0; g < NumGroups(layout); ++g) {
    const auto row = RowOf(layout, g, args.blocks);
    const size_t first = FirstOf(args, layout.groups[g]) / layout.block_size;
    for (size_t b = first; b < row.size(); ++b) touched.push_back(row[b]);
  }
  return touched;
}

// ---- What the node asks for --------------------------------------------------------------------

void FabricPort::Expect(ExpectArgs args) {
  const TicketId ticket = args.ticket;
  const std::vector<BlockRef> touched = TouchedBy(args);
  for (const BlockRef& ref : touched) {
    memory_.Poison(ref.block, 0);
    memory_.Promise(ref);
    if (!promised_.insert({ref.block, ref.epoch}).second) {
      fabric_.violation_("I2: one epoch of a block is promised to two writers");
    }
  }
  if (!expected_.emplace(ticket, Expected{.args = args, .serial = next_serial_++}).second) {
    fabric_.violation_("Expect with a ticket that is open");
  }
  if (!touched.empty() && world_.Hit(Fault::kStaleBlock)) memory_.Overtake(touched.back().block);
  AddCall(std::move(args));
}

void FabricPort::Start(StartArgs args) {
  for (const BlockId block : TouchedBy(args)) memory_.Lend(block);
  if (!sending_.emplace(args.ticket, Sending{.args = args, .serial = next_serial_++}).second) {
    fabric_.violation_("Start with a ticket that is open");
  }
  AddCall(std::move(args));
}

void FabricPort::Push(PushArgs args) {
  auto it = sending_.find(args.ticket);
  if (it != sending_.end() && args.first_token + args.num_tokens > it->second.args.num_tokens) {
    fabric_.violation_("a push beyond the tokens of its transfer");
  }
  AddCall(args);
}

void FabricPort::Finish(FinishArgs args) { AddCall(std::move(args)); }

void FabricPort::Abort(TicketId ticket) {
  if (!world_.Hit(Fault::kSlowAbort)) return AddCall(AbortArgs{ticket});
  // The progress thread is busy; by then the ticket may be that of another open.
  const auto serial = [this, ticket]() -> uint64_t {
    if (auto it = expected_.find(ticket); it != expected_.end()) return it->second.serial;
    if (auto it = sending_.find(ticket); it != sending_.end()) return it->second.serial;
    return 0;
  };
  host_.After(world_.Micros(1000, 4000000), [this, ticket, serial, meant = serial()] {
    if (serial() == meant) AddCall(AbortArgs{ticket});
  });
}

void FabricPort::AddCall(TransportCall call) {
  calls_.push_back(std::move(call));
  TurnSoon();
}

void FabricPort::TurnSoon() {
  if (std::exchange(turn_pending_, true)) return;
  host_.After(world_.Micros(1, 200), [this] {
    turn_pending_ = false;
    Turn([] {});
  });
}

// ---- The progress thread -----------------------------------------------------------------------

void FabricPort::Turn(absl::FunctionRef<void()> happens) {
  if (gpu_ != nullptr) gpu_->Watch(host_.LocalNow());
  connections_->BeginTurn(host_.LocalNow());
  ExecuteCalls();
  happens();
  connections_->EndTurn();
  for (const std::shared_ptr<Pipe>& pipe : pipes_) pipe->Flush(pipe->side_of(this));
  // Without a stager each turn reads all there is.
  for (size_t i = 0; stager_.has_value() && i < pipes_.size(); ++i) {
    pipes_[i]->ReadOn(pipes_[i]->side_of(this));
  }
  std::erase_if(pipes_, [](const std::shared_ptr<Pipe>& pipe) { return pipe->is_dead(); });
  const Time next = connections_->NextDeadline();
  if (next == kNever) return;
  const Time when = std::max(host_.ToWorld(next), world_.now());
  if (when >= wakeup_) return;
  wakeup_ = when;
  host_.At(when, [this, when] {
    if (wakeup_ != when) return;
    wakeup_ = kNever;
    Turn([] {});
  });
}

void FabricPort::ExecuteCalls() {
  while (!calls_.empty()) {
    TransportCall call = std::move(calls_.front());
    calls_.pop_front();
    connections_->Execute(std::move(call));
  }
}

absl::StatusOr<std::unique_ptr<ByteStream>> FabricPort::Connect(const std::string& endpoint) {
  const std::optional<Place> to = Fabric::PlaceOf(endpoint);
  if (!to) return absl::InvalidArgumentError("no such worker");
  auto pipe = std::make_shared<Pipe>(fabric_, this, *to);
  pipes_.push_back(pipe);
  auto stream = Pipe::StreamOf(pipe, 0);
  pipe->Connect();
  return stream;
}

bool FabricPort::Watch(uint64_t id, ByteStream& stream, const Interest& interest, bool is_new) {
  (void)is_new;
  Pipe::WatchStream(stream, id, interest.read, interest.write);
  return true;
}

// ---- What the transport tells ------------------------------------------------------------------

// What came over NCCL comes again if its ack was lost with the communicator: that is not read. If
// something of the ticket is still landing, nobody can tell from here whether it is that.
void FabricPort::NoteDamaged(const FrameHeader& frame) {
  const BlockStager::Work work{frame.ticket, /*receiver=*/true};
  if (carrier_ != nullptr && frame.type == FrameType::kData &&
      (HasLanded(frame) || carrier_->Busy(work) > 0)) {
    return;
  }
  if (auto it = expected_.find(frame.ticket); it != expected_.end()) it->second.damaged = true;
}

void FabricPort::NoteData(TicketId ticket) {
  if (auto it = expected_.find(ticket); it != expected_.end()) it->second.is_over_tcp = true;
}

// In an event of its own, as from the transport's thread.
void FabricPort::Tell(TransferEvent event) {
  untold_.push_back(std::move(event));
  host_.At(world_.now(), [this] {
    TransferEvent next = std::move(untold_.front());
    untold_.pop_front();
    sink_(std::move(next));
  });
}

void FabricPort::OnTransportEvent(TransferEvent event) {
  if (event.kind == TransferEvent::Kind::kBegun) return Tell(std::move(event));
  world_.Mark();
  if (event.receiver) return EndExpected(std::move(event));
  auto it = sending_.find(event.ticket);
  if (it == sending_.end()) return fabric_.violation_("a transfer ends twice");
  const StartArgs& args = it->second.args;
  if (event.status.ok()) CheckBytes(args, event.bytes);
  if (fabric_.only_nccl_fails_ && absl::IsDeadlineExceeded(event.status)) {
    fabric_.violation_("NCCL: a handoff is lost with its communicator");
  }
  for (const BlockId block : TouchedBy(args)) memory_.EndLoan(block);
  sending_.erase(it);
  Tell(std::move(event));
}

// Each byte that the receiver lacks was sent once, by the one rank that owes it.
void FabricPort::CheckBytes(const StartArgs& args, int64_t bytes) const {
  const std::optional<Place> to = Fabric::PlaceOf(args.endpoint);
  const int64_t heads = NumHeadsSent(place_.rank, ranks_.size, to->rank,
                                     fabric_.sizes_.at(to->column), ranks_.kv_heads);
  if (heads == 0) fabric_.violation_("economy: a rank sends to one that lacks nothing of it");
  int64_t wanted = 0;
  const KvLayout& layout = memory_.cache().layout();
  for (int32_t layer = 0; layer < NumLayers(layout); ++layer) {
    wanted += heads * 2 * 8 * (args.num_tokens - FirstOf(args, GroupOfLayer(layout, layer)));
  }
  if (bytes == wanted) return;
  fabric_.violation_(absl::StrCat("economy: a handoff sends ", bytes,
                                  " bytes and the receiver lacks ", wanted));
}

void FabricPort::EndExpected(TransferEvent event) {
  auto it = expected_.find(event.ticket);
  if (it == expected_.end()) return fabric_.violation_("a transfer ends twice");
  const ExpectArgs args = std::move(it->second.args);
  const bool verified = event.status.ok();
  if (verified && it->second.damaged) fabric_.violation_("I9: a damaged frame was accepted");
  expected_.erase(it);
  for (const BlockRef& ref : TouchedBy(args)) memory_.EndPromise(ref.block);
  if (verified) NoteVerified(args);
  Tell(std::move(event));
}

void FabricPort::NoteVerified(const ExpectArgs& args) {
  const KvLayout& layout = memory_.cache().layout();
  const int32_t block_size = memory_.block_size();
  for (int32_t layer = 0; layer < NumLayers(layout); ++layer) {
    const LayerPlace place = PlaceOf(layout, layer);
    const auto row = RowOf(layout, place.group, args.blocks);
    const int32_t first = FirstOf(args, layout.groups[place.group]);
    for (int32_t p = first; p < args.num_tokens; ++p) {
      memory_.Verify(layer, row[p / block_size].block, p % block_size);
    }
    if (place.slot > 0) continue;
    for (int32_t b = first / block_size; b < args.num_tokens / block_size; ++b) {
      unsealed_.push_back(row[b]);
    }
  }
}

void FabricPort::CheckEpochs() {
  std::erase_if(unsealed_, [this](const BlockRef& ref) {
    if (epochs_.at(ref.block).load() != ref.epoch) return true;
    if (!memory_.IsSealed(ref.block)) return false;
    fabric_.violation_("I2: a verified block still has the epoch of its writer");
    return true;
  });
}

void FabricPort::Check() {
  CheckEpochs();
  CheckCarrier();
  for (const auto& [ticket, sending] : sending_) {
    for (const BlockId block : TouchedBy(sending.args)) {
      memory_.CheckHeld(block, "a transfer that reads it");
    }
  }
  for (const auto& [ticket, expected] : expected_) {
    for (const BlockRef& ref : expected.args.blocks) {
      if (ref.block >= 0) memory_.CheckHeld(ref.block, "a transfer that writes it");
    }
  }
}

}  // namespace baton::sim
