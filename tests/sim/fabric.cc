#include "tests/sim/fabric.h"

#include <utility>

namespace baton::sim {

FabricPort::FabricPort(Fabric& fabric, Incarnation incarnation, TagMemory& memory,
                       const BlockGenerations& generations, EventSink sink)
    : fabric_(fabric),
      incarnation_(incarnation),
      memory_(memory),
      generations_(generations),
      sink_(std::move(sink)) {
  fabric_.ports_[incarnation] = this;
}

FabricPort::~FabricPort() {
  *alive_ = false;
  fabric_.ports_.erase(incarnation_);
  // Peers see the connection break: senders always, receivers for what had begun.
  for (auto& [other, port] : fabric_.ports_) {
    for (auto& [ticket, sending] : port->sending_) {
      if (sending.args.receiver != incarnation_) continue;
      port->Later(fabric_.world_.now() + fabric_.world_.Micros(100, 2000),
                  [port = port, ticket = ticket] {
                    port->EndSender(ticket, absl::UnavailableError("connection lost"));
                  });
    }
    for (auto& [ticket, expected] : port->expected_) {
      if (expected.args.sender != incarnation_ || !expected.begun) continue;
      port->Later(fabric_.world_.now() + fabric_.world_.Micros(100, 2000),
                  [port = port, ticket = ticket] {
                    port->EndReceiver(ticket, absl::UnavailableError("connection lost"));
                  });
    }
  }
}

void FabricPort::Later(Time when, std::function<void()> run) {
  fabric_.world_.At(when, [alive = alive_, run = std::move(run)] {
    if (*alive) run();
  });
}

void FabricPort::Expect(ExpectArgs args) {
  const TicketId ticket = args.ticket;
  Expected expected{.args = std::move(args)};
  expected.missing = int64_t{kLayers} * (expected.args.num_tokens - expected.args.first_token);
  const int32_t block_size = memory_.block_size();
  for (size_t b = expected.args.first_token / block_size; b < expected.args.blocks.size(); ++b) {
    const BlockRef ref = expected.args.blocks[b];
    memory_.Poison(ref.block, 0);
    if (!promised_.insert({ref.block, ref.generation}).second) {
      fabric_.violation_("one generation of a block is promised to two writers");
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

Time FabricPort::Arrival(Sending& sending) {
  const Time arrival = std::max(sending.last_delivery + Duration(1),
                                fabric_.world_.now() + fabric_.world_.Micros(20, 3000));
  sending.last_delivery = arrival;
  return arrival;
}

void FabricPort::Push(PushArgs push) {
  auto it = sending_.find(push.ticket);
  if (it == sending_.end() || it->second.aborted) return;
  Sending& sending = it->second;
  if (fabric_.world_.Chance(fabric_.faults_.transfer)) {
    Later(fabric_.world_.now() + fabric_.world_.Micros(100, 500000), [this, push] {
      EndSender(push.ticket, absl::UnavailableError("injected transfer failure"));
    });
    sending.aborted = true;
    auto peer = fabric_.ports_.find(sending.args.receiver);
    if (peer != fabric_.ports_.end()) {
      FabricPort* port = peer->second;
      port->Later(fabric_.world_.now() + fabric_.world_.Micros(100, 500000), [port, push] {
        auto expected = port->expected_.find(push.ticket);
        if (expected != port->expected_.end() && expected->second.begun) {
          port->EndReceiver(push.ticket, absl::UnavailableError("injected transfer failure"));
        }
      });
    }
    return;
  }
  // The bytes are read while the frame is on its way: when it leaves the sender.
  const Time arrival = Arrival(sending);
  const Time leaves = fabric_.world_.now() + (arrival - fabric_.world_.now()) / 2;
  Later(leaves, [this, push, arrival, serial = sending.serial] {
    const Sending* sending = FindSending(push.ticket, serial);
    if (sending == nullptr) return;
    const StartArgs& start = sending->args;
    std::vector<uint64_t> tags;
    for (int32_t i = 0; i < push.num_tokens; ++i) {
      tags.push_back(memory_.ReadToken(push.layer, start.blocks, push.first_token + i));
    }
    // An abort does not stop what is on its way.
    if (sending->aborted && fabric_.world_.Chance(0.5)) return;
    auto peer = fabric_.ports_.find(start.receiver);
    if (peer == fabric_.ports_.end()) {
      EndSender(push.ticket, absl::UnavailableError("no such receiver"));
      return;
    }
    FabricPort* port = peer->second;
    port->Later(arrival, [port, push, start, tags = std::move(tags)]() mutable {
      port->Deliver(push, start, std::move(tags));
    });
  });
}

FabricPort::Sending* FabricPort::FindSending(TicketId ticket, uint64_t serial) {
  auto it = sending_.find(ticket);
  return it != sending_.end() && it->second.serial == serial ? &it->second : nullptr;
}

void FabricPort::Deliver(const PushArgs& push, const StartArgs& start, std::vector<uint64_t> tags) {
  auto it = expected_.find(push.ticket);
  if (it == expected_.end() || it->second.args.sender != start.sender) {
    // Refused before a byte is read; the sender hears of it.
    auto peer = fabric_.ports_.find(start.sender);
    if (peer == fabric_.ports_.end()) return;
    FabricPort* port = peer->second;
    port->Later(fabric_.world_.now() + fabric_.world_.Micros(20, 2000), [port, push] {
      port->EndSender(push.ticket, absl::AbortedError("the receiver refused the ticket"));
    });
    return;
  }
  Expected& expected = it->second;
  if (!expected.begun) {
    expected.begun = true;
    sink_({.kind = TransferEvent::Kind::kBegun, .ticket = push.ticket, .receiver = true});
  }
  for (int32_t i = 0; i < push.num_tokens; ++i) {
    const int32_t position = push.first_token + i;
    const BlockRef ref = expected.args.blocks.at(position / memory_.block_size());
    if (generations_.at(ref.block).load() != ref.generation) {
      fabric_.violation_("a transfer writes to a block that was given to someone else");
    }
    memory_.Write(push.layer, ref.block, position % memory_.block_size(), tags[i]);
  }
  expected.missing -= push.num_tokens;
}

void FabricPort::Finish(FinishArgs finish) {
  auto it = sending_.find(finish.ticket);
  if (it == sending_.end() || it->second.aborted) return;
  const StartArgs& start = it->second.args;
  auto peer = fabric_.ports_.find(start.receiver);
  if (peer == fabric_.ports_.end()) {
    Later(fabric_.world_.now() + fabric_.world_.Micros(20, 2000),
          [this, finish] { EndSender(finish.ticket, absl::UnavailableError("no such receiver")); });
    return;
  }
  FabricPort* port = peer->second;
  port->Later(Arrival(it->second), [port, finish, start] { port->DeliverFinal(finish, start); });
}

void FabricPort::DeliverFinal(const FinishArgs& finish, const StartArgs& start) {
  auto it = expected_.find(finish.ticket);
  absl::Status verdict;
  if (it != expected_.end() && it->second.args.sender != start.sender) it = expected_.end();
  if (it == expected_.end()) {
    verdict = absl::AbortedError("the receiver refused the ticket");
  } else if (it->second.missing != 0 || !(it->second.args.digests == finish.digests)) {
    verdict = absl::DataLossError("the handoff is not complete");
  }
  if (it != expected_.end()) EndReceiver(finish.ticket, verdict, finish.first);
  auto peer = fabric_.ports_.find(start.sender);
  if (peer == fabric_.ports_.end()) return;
  FabricPort* port = peer->second;
  if (fabric_.world_.Chance(fabric_.faults_.lose_ack)) verdict = absl::UnavailableError("ack lost");
  port->Later(fabric_.world_.now() + fabric_.world_.Micros(20, 2000),
              [port, finish, verdict] { port->EndSender(finish.ticket, verdict); });
}

void FabricPort::Abort(TicketId ticket) {
  // A write that is under way ends before the abort does.
  auto delay = fabric_.world_.Micros(10, fabric_.world_.Chance(0.1) ? 300000 : 3000);
  if (auto it = sending_.find(ticket); it != sending_.end() && !it->second.aborted) {
    it->second.aborted = true;
    const Incarnation receiver = it->second.args.receiver;
    Later(fabric_.world_.now() + delay,
          [this, ticket] { EndSender(ticket, absl::CancelledError("aborted")); });
    auto peer = fabric_.ports_.find(receiver);
    if (peer == fabric_.ports_.end()) return;
    FabricPort* port = peer->second;
    port->Later(fabric_.world_.now() + delay, [port, ticket] {
      auto expected = port->expected_.find(ticket);
      if (expected == port->expected_.end() || !expected->second.begun) return;
      port->EndReceiver(ticket, absl::AbortedError("the sender aborted"));
    });
  }
  if (expected_.contains(ticket)) {
    Later(fabric_.world_.now() + delay,
          [this, ticket] { EndReceiver(ticket, absl::CancelledError("aborted")); });
  }
}

void FabricPort::EndReceiver(TicketId ticket, absl::Status status, TokenOutput first) {
  auto it = expected_.find(ticket);
  if (it == expected_.end()) return;
  const ExpectArgs args = std::move(it->second.args);
  const bool verified = status.ok();
  expected_.erase(it);
  sink_({.kind = TransferEvent::Kind::kEnded,
         .ticket = ticket,
         .receiver = true,
         .status = std::move(status),
         .first = std::move(first)});
  if (!verified) return;
  for (int32_t b = args.first_token / memory_.block_size();
       (b + 1) * memory_.block_size() <= args.num_tokens; ++b) {
    const BlockRef ref = args.blocks[b];
    if (memory_.IsSealed(ref.block) && generations_.at(ref.block).load() == ref.generation) {
      fabric_.violation_("a verified block still has the generation of its writer");
    }
  }
}

void FabricPort::Check() const {
  for (const auto& [ticket, sending] : sending_) {
    memory_.CheckHeld(sending.args.blocks, "a transfer that reads it");
  }
  for (const auto& [ticket, expected] : expected_) {
    std::vector<BlockId> blocks;
    for (const BlockRef& ref : expected.args.blocks) blocks.push_back(ref.block);
    memory_.CheckHeld(blocks, "a transfer that writes it");
  }
}

void FabricPort::EndSender(TicketId ticket, absl::Status status) {
  if (sending_.erase(ticket) == 0) return;
  sink_({.kind = TransferEvent::Kind::kEnded, .ticket = ticket, .status = std::move(status)});
}

}  // namespace baton::sim
