#include "tests/sim/fabric.h"

#include <algorithm>
#include <utility>

namespace baton::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

// ---- Paths -------------------------------------------------------------------------------------

void Fabric::Block(int from, int to, Time until) {
  Path& path = paths_[{from, to}];
  path.blocked_until = std::max(path.blocked_until, until);
}

void Fabric::Slow(int from, int to, Duration extra, Time until) {
  Path& path = paths_[{from, to}];
  path.extra = extra;
  path.slow_until = until;
}

bool Fabric::Blocked(int from, int to) const {
  auto it = paths_.find({from, to});
  return it != paths_.end() && it->second.blocked_until > world_.now();
}

void Fabric::Heal() { paths_.clear(); }

Time Fabric::Arrival(int from, int to, Time last) {
  Time arrival = world_.now() + world_.Micros(20, 3000);
  if (auto it = paths_.find({from, to}); it != paths_.end()) {
    if (it->second.slow_until > world_.now()) arrival += it->second.extra;
    arrival = std::max(arrival, it->second.blocked_until + Duration(1));
  }
  return std::max(arrival, last + Duration(1));
}

FabricPort* Fabric::Find(Incarnation incarnation) const {
  auto it = ports_.find(incarnation);
  return it == ports_.end() ? nullptr : it->second;
}

void Fabric::Reset(int column) {
  const absl::Status lost = absl::UnavailableError("the peer does not answer");
  auto is_there = [&](Incarnation incarnation) {
    const FabricPort* port = Find(incarnation);
    return port != nullptr && port->host_.column() == column;
  };
  for (auto& [incarnation, port] : ports_) {
    const bool own = port->host_.column() == column;
    for (auto& [ticket, sending] : port->sending_) {
      if (!own && !is_there(sending.args.receiver)) continue;
      sending.broken = true;
      port->host_.After(world_.Micros(0, 300000),
                        [port = port, ticket = ticket, lost] { port->EndSender(ticket, lost); });
    }
    for (auto& [ticket, expected] : port->expected_) {
      if (!own && !is_there(expected.args.sender)) continue;
      port->host_.After(world_.Micros(0, 300000),
                        [port = port, ticket = ticket, lost] { port->EndIfBegun(ticket, lost); });
    }
  }
}

// ---- One worker's end --------------------------------------------------------------------------

FabricPort::FabricPort(Fabric& fabric, Host& host, Incarnation incarnation, TagMemory& memory,
                       const BlockGenerations& generations, EventSink sink)
    : fabric_(fabric),
      world_(fabric.world_),
      host_(host),
      incarnation_(incarnation),
      memory_(memory),
      generations_(generations),
      sink_(std::move(sink)) {
  fabric_.ports_[incarnation] = this;
}

// Peers see the connection break, behind what was on its way.
FabricPort::~FabricPort() {
  fabric_.ports_.erase(incarnation_);
  const absl::Status lost = absl::UnavailableError("connection lost");
  for (auto& [ticket, sending] : sending_) {
    FabricPort* port = fabric_.Find(sending.args.receiver);
    if (port == nullptr) continue;
    const Time at = fabric_.Arrival(host_.column(), port->host_.column(), sending.last_delivery);
    port->host_.At(std::min(at, std::max(sending.last_delivery + Duration(1),
                                         world_.now() + milliseconds(2500))),
                   [port, ticket = ticket, lost] { port->EndIfBegun(ticket, lost); });
  }
  for (auto& [other, port] : fabric_.ports_) {
    for (auto& [ticket, sending] : port->sending_) {
      if (sending.args.receiver != incarnation_) continue;
      port->host_.After(world_.Micros(100, 2000),
                        [port = port, ticket = ticket, lost] { port->EndSender(ticket, lost); });
    }
  }
}

void FabricPort::Expect(ExpectArgs args) {
  const TicketId ticket = args.ticket;
  Expected expected{.args = std::move(args)};
  expected.missing.assign(size_t{kLayers} * expected.args.num_tokens, true);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (int32_t token = 0; token < expected.args.first_token; ++token) {
      expected.missing[layer * expected.args.num_tokens + token] = false;
    }
  }
  const int32_t block_size = memory_.block_size();
  for (size_t b = expected.args.first_token / block_size; b < expected.args.blocks.size(); ++b) {
    const BlockRef ref = expected.args.blocks[b];
    memory_.Poison(ref.block, 0);
    memory_.Promise(ref.block);
    if (!promised_.insert({ref.block, ref.generation}).second) {
      fabric_.violation_("I2: one generation of a block is promised to two writers");
    }
  }
  if (!expected_.emplace(ticket, std::move(expected)).second) {
    fabric_.violation_("Expect with a ticket that is open");
  }
}

void FabricPort::Start(StartArgs args) {
  const TicketId ticket = args.ticket;
  if (!sending_.emplace(ticket, Sending{.args = std::move(args), .serial = next_serial_++})
           .second) {
    fabric_.violation_("Start with a ticket that is open");
  }
}

FabricPort::Sending* FabricPort::FindSending(TicketId ticket, uint64_t serial) {
  auto it = sending_.find(ticket);
  return it != sending_.end() && it->second.serial == serial ? &it->second : nullptr;
}

// Both sides find out, each in its own time.
void FabricPort::Break(Sending& sending, Duration within, const std::string& why) {
  sending.broken = true;
  const TicketId ticket = sending.args.ticket;
  const int64_t most = std::max<int64_t>(100, within / std::chrono::microseconds(1));
  host_.After(world_.Micros(100, most),
              [this, ticket, why] { EndSender(ticket, absl::UnavailableError(why)); });
  FabricPort* peer = fabric_.Find(sending.args.receiver);
  if (peer == nullptr) return;
  const Time at =
      std::max(world_.now() + world_.Micros(100, most), sending.last_delivery + Duration(1));
  peer->host_.At(at,
                 [peer, ticket, why] { peer->EndIfBegun(ticket, absl::UnavailableError(why)); });
}

// No acknowledgement comes for so long that both sides give up.
void FabricPort::GiveUpAfter(Sending& sending, Time arrival) {
  const Duration limit = milliseconds(1200);
  if (arrival <= world_.now() + limit) return;
  sending.broken = true;
  const TicketId ticket = sending.args.ticket;
  const absl::Status late = absl::DeadlineExceededError("the transfer does not move");
  host_.After(limit, [this, ticket, late] { EndSender(ticket, late); });
  FabricPort* peer = fabric_.Find(sending.args.receiver);
  if (peer == nullptr) return;
  peer->host_.After(limit + world_.Micros(0, 500000),
                    [peer, ticket, late] { peer->EndIfBegun(ticket, late); });
  // And again once what is held up has come through.
  peer->host_.At(arrival + milliseconds(1),
                 [peer, ticket, late] { peer->EndIfBegun(ticket, late); });
}

void FabricPort::Push(PushArgs push) {
  auto it = sending_.find(push.ticket);
  if (it == sending_.end() || it->second.broken) return;
  Sending& sending = it->second;
  if (push.first_token + push.num_tokens > sending.args.num_tokens) {
    fabric_.violation_("a push beyond the tokens of its transfer");
  }
  if (world_.Hit(Fault::kBreakTransfer)) {
    return Break(sending, milliseconds(500), "injected transfer failure");
  }
  FabricPort* peer = fabric_.Find(sending.args.receiver);
  if (peer == nullptr) return Break(sending, milliseconds(2), "no such receiver");
  const Time arrival = fabric_.Arrival(host_.column(), peer->host_.column(), sending.last_delivery);
  sending.last_delivery = arrival;
  GiveUpAfter(sending, arrival);
  // The bytes are read while the frame is on its way: when it leaves the sender.
  const Time leaves = world_.now() + std::min<Duration>((arrival - world_.now()) / 2, seconds(1));
  host_.At(leaves, [this, push, arrival, serial = sending.serial] { Send(push, serial, arrival); });
}

void FabricPort::Send(const PushArgs& push, uint64_t serial, Time arrival) {
  const Sending* sending = FindSending(push.ticket, serial);
  if (sending == nullptr) return;
  Frame frame{.push = push, .sender = incarnation_};
  for (int32_t i = 0; i < push.num_tokens; ++i) {
    frame.tags.push_back(memory_.ReadToken(push.layer, sending->args.blocks, push.first_token + i));
  }
  // An abort does not stop what is on its way.
  if (sending->broken && world_.plan == nullptr && world_.Chance(0.5)) return;
  FabricPort* port = fabric_.Find(sending->args.receiver);
  if (port == nullptr) return;
  if (world_.Hit(Fault::kCorruptFrame)) {
    frame.corrupt = true;
    frame.tags[0] = Random::Mix(frame.tags[0]);
  }
  port->host_.At(arrival, [port, frame = std::move(frame)] { port->Deliver(frame); });
}

// The sender hears of it.
void FabricPort::Answer(TicketId ticket, Incarnation sender, absl::Status verdict) {
  FabricPort* port = fabric_.Find(sender);
  if (port == nullptr) return;
  if (world_.Hit(Fault::kLoseAck)) verdict = absl::UnavailableError("connection lost");
  const Time arrival = fabric_.Arrival(host_.column(), port->host_.column(), {});
  auto it = port->sending_.find(ticket);
  if (it == port->sending_.end()) return;
  const Time give_up = world_.now() + milliseconds(1200);
  if (arrival > give_up) verdict = absl::DeadlineExceededError("the transfer does not move");
  port->host_.At(std::min(arrival, give_up),
                 [port, ticket, verdict] { port->EndSender(ticket, verdict); });
}

void FabricPort::Refuse(TicketId ticket, Incarnation sender) {
  Answer(ticket, sender, absl::AbortedError("the receiver refused the ticket"));
}

void FabricPort::Deliver(const Frame& frame) {
  world_.Mark();
  const PushArgs& push = frame.push;
  auto it = expected_.find(push.ticket);
  // Refused before a byte is read.
  if (it == expected_.end() || it->second.args.sender != frame.sender) {
    return Refuse(push.ticket, frame.sender);
  }
  Expected& expected = it->second;
  if (!expected.begun) {
    expected.begun = true;
    sink_({.kind = TransferEvent::Kind::kBegun, .ticket = push.ticket, .receiver = true});
    it = expected_.find(push.ticket);
    if (it == expected_.end()) return;
  }
  for (int32_t i = 0; i < push.num_tokens; ++i) {
    const int32_t position = push.first_token + i;
    const BlockRef ref = expected.args.blocks.at(position / memory_.block_size());
    if (generations_.at(ref.block).load() != ref.generation) {
      fabric_.violation_("I3: a transfer writes to a block that was given to someone else");
    }
    if (position < expected.args.first_token) {
      fabric_.violation_("a push of tokens that the receiver has pinned");
    }
    memory_.WriteReceived(push.layer, ref.block, position % memory_.block_size(), frame.tags[i]);
    expected.missing.at(push.layer * expected.args.num_tokens + position) = false;
  }
  if (!frame.corrupt) return;
  const absl::Status bad = absl::DataLossError("a frame's checksum is wrong");
  Answer(push.ticket, frame.sender, bad);
  EndReceiver(push.ticket, bad);
}

void FabricPort::Finish(FinishArgs finish) {
  auto it = sending_.find(finish.ticket);
  if (it == sending_.end() || it->second.broken) return;
  FabricPort* port = fabric_.Find(it->second.args.receiver);
  if (port == nullptr) return Break(it->second, milliseconds(2), "no such receiver");
  const Time arrival =
      fabric_.Arrival(host_.column(), port->host_.column(), it->second.last_delivery);
  it->second.last_delivery = arrival;
  GiveUpAfter(it->second, arrival);
  port->host_.At(arrival,
                 [port, finish, sender = incarnation_] { port->DeliverFinal(finish, sender); });
}

void FabricPort::DeliverFinal(const FinishArgs& finish, Incarnation sender) {
  world_.Mark();
  auto it = expected_.find(finish.ticket);
  if (it == expected_.end() || it->second.args.sender != sender) {
    return Refuse(finish.ticket, sender);
  }
  absl::Status verdict;
  if (std::ranges::count(it->second.missing, true) != 0 ||
      !(it->second.args.digests == finish.digests)) {
    verdict = absl::DataLossError("the handoff is not complete");
  }
  EndReceiver(finish.ticket, verdict, finish.first);
  Answer(finish.ticket, sender, verdict);
}

Duration FabricPort::AbortDelay() {
  return world_.Hit(Fault::kSlowAbort) ? world_.Micros(1000, 4000000) : world_.Micros(20, 3000);
}

void FabricPort::Abort(TicketId ticket) {
  const absl::Status aborted = absl::CancelledError("aborted");
  if (auto it = sending_.find(ticket); it != sending_.end()) {
    it->second.broken = true;
    host_.After(AbortDelay(), [this, ticket, aborted] { EndSender(ticket, aborted); });
    FabricPort* port = fabric_.Find(it->second.args.receiver);
    if (port != nullptr) {
      port->host_.At(
          fabric_.Arrival(host_.column(), port->host_.column(), it->second.last_delivery),
          [port, ticket] { port->EndIfBegun(ticket, absl::AbortedError("the sender aborted")); });
    }
  }
  if (auto it = expected_.find(ticket); it != expected_.end()) {
    Refuse(ticket, it->second.args.sender);
    host_.After(AbortDelay(), [this, ticket, aborted] { EndReceiver(ticket, aborted); });
  }
}

void FabricPort::EndIfBegun(TicketId ticket, absl::Status status) {
  auto it = expected_.find(ticket);
  if (it != expected_.end() && it->second.begun) EndReceiver(ticket, std::move(status));
}

void FabricPort::EndReceiver(TicketId ticket, absl::Status status, TokenOutput first) {
  auto it = expected_.find(ticket);
  if (it == expected_.end()) return;
  const ExpectArgs args = std::move(it->second.args);
  const bool verified = status.ok();
  const int32_t block_size = memory_.block_size();
  for (size_t b = args.first_token / block_size; b < args.blocks.size(); ++b) {
    memory_.EndPromise(args.blocks[b].block);
  }
  for (int32_t p = args.first_token; verified && p < args.num_tokens; ++p) {
    memory_.Verify(args.blocks[p / block_size].block, p % block_size);
  }
  expected_.erase(it);
  sink_({.kind = TransferEvent::Kind::kEnded,
         .ticket = ticket,
         .receiver = true,
         .status = std::move(status),
         .first = std::move(first)});
  if (!verified) return;
  for (int32_t b = args.first_token / block_size; (b + 1) * block_size <= args.num_tokens; ++b) {
    const BlockRef ref = args.blocks[b];
    if (memory_.IsSealed(ref.block) && generations_.at(ref.block).load() == ref.generation) {
      fabric_.violation_("I2: a verified block still has the generation of its writer");
    }
  }
}

void FabricPort::Check() const {
  for (const auto& [ticket, sending] : sending_) {
    const std::vector<BlockId>& blocks = sending.args.blocks;
    for (size_t b = sending.args.first_token / memory_.block_size(); b < blocks.size(); ++b) {
      memory_.CheckHeld(blocks[b], "a transfer that reads it");
    }
  }
  for (const auto& [ticket, expected] : expected_) {
    for (const BlockRef& ref : expected.args.blocks) {
      if (ref.block >= 0) memory_.CheckHeld(ref.block, "a transfer that writes it");
    }
  }
}

void FabricPort::EndSender(TicketId ticket, absl::Status status) {
  if (sending_.erase(ticket) == 0) return;
  world_.Mark();
  sink_({.kind = TransferEvent::Kind::kEnded, .ticket = ticket, .status = std::move(status)});
}

}  // namespace baton::sim
