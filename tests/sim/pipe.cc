#include "tests/sim/pipe.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "common/transport/nccl/words.h"
#include "common/transport/wire.h"

namespace baton::sim {
namespace {

class PipeStream : public ByteStream {
 public:
  PipeStream(std::shared_ptr<Pipe> pipe, int side) : pipe_(std::move(pipe)), side_(side) {}
  ~PipeStream() override { pipe_->Close(side_); }

  ssize_t Read(const iovec* parts, int num_parts) override {
    return pipe_->Read(side_, parts, num_parts);
  }
  ssize_t Write(const iovec* parts, int num_parts) override {
    return pipe_->Write(side_, parts, num_parts);
  }
  absl::Status ConnectResult() override { return pipe_->ConnectResult(); }
  int fd() const override { return -1; }

  Pipe& pipe() { return *pipe_; }
  int side() const { return side_; }

 private:
  std::shared_ptr<Pipe> pipe_;
  int side_;
};

size_t SizeOf(const iovec* parts, int num_parts) {
  size_t size = 0;
  for (const iovec& part : std::span(parts, num_parts)) size += part.iov_len;
  return size;
}

}  // namespace

Pipe::Pipe(Fabric& fabric, FabricPort* from, Place to)
    : fabric_(fabric), world_(fabric.world_), places_{from->place_, to} {
  ends_[0].port = from;
}

std::unique_ptr<ByteStream> Pipe::StreamOf(std::shared_ptr<Pipe> pipe, int side) {
  pipe->ends_[side].open = true;
  return std::make_unique<PipeStream>(std::move(pipe), side);
}

void Pipe::WatchStream(ByteStream& stream, uint64_t id, bool read, bool write) {
  auto& own = static_cast<PipeStream&>(stream);
  own.pipe().Watch(own.side(), id, read, write);
}

// ---- Its life ----------------------------------------------------------------------------------

// There and back; whether somebody listens is seen there.
void Pipe::Connect() {
  const Time there = fabric_.Arrival(places_[0], places_[1], {});
  const Time back = fabric_.Arrival(places_[1], places_[0], there);
  ends_[0].port->host_.At(back, [self = shared_from_this()] {
    FabricPort* peer = self->fabric_.Find(self->places_[1]);
    self->world_.Note(peer != nullptr);
    if (!self->ends_[0].open) return;
    if (peer == nullptr) {
      self->refused_ = true;
    } else {
      self->ends_[1].port = peer;
      peer->pipes_.push_back(self);
      self->ends_[0].can_write = self->ends_[1].can_write = true;
    }
    self->Ready(0, self->refused_, true);
  });
}

absl::Status Pipe::ConnectResult() const {
  if (refused_) return absl::UnavailableError("KV connection: connection refused");
  return absl::OkStatus();
}

bool Pipe::is_dead() const { return !ends_[0].open && !ends_[1].open; }

void Pipe::Watch(int side, uint64_t id, bool read, bool write) {
  End& end = ends_[side];
  end.id = id;
  end.wants_read = read;
  end.wants_write = write;
  if (!write || !end.can_write) return;
  end.port->host_.After(Duration(1000), [self = shared_from_this(), side] {
    if (self->ends_[side].wants_write) self->Ready(side, false, true);
  });
}

void Pipe::ReadOn(int side) {
  End& end = ends_[side];
  const bool readable = !end.arrived.empty() || end.is_finished || end.is_reset;
  if (!end.open || !end.wants_read || !readable || std::exchange(end.reads_on, true)) return;
  end.port->host_.After(Duration(1000), [self = shared_from_this(), side] {
    self->ends_[side].reads_on = false;
    self->Ready(side, true, false);
  });
}

void Pipe::Ready(int side, bool readable, bool writable) {
  if (!ends_[side].open) return;
  FabricPort* port = ends_[side].port;
  port->Turn([&] { port->connections_->Serve(ends_[side].id, readable, writable); });
}

void Pipe::Close(int side) {
  Flush(side);
  ends_[side].open = false;
  HangUp(1 - side, NextArrival(1 - side));
}

void Pipe::PortDied(const FabricPort* port) {
  for (int side : {0, 1}) {
    if (ends_[side].port != port) continue;
    ends_[side].port = nullptr;
    // It may not have accepted yet.
    HangUp(1 - side, NextArrival(1 - side));
  }
}

void Pipe::HangUp(int side, Time when) {
  End& end = ends_[side];
  if (end.port == nullptr || !end.open) return;
  end.port->host_.At(when, [self = shared_from_this(), side] {
    self->ends_[side].is_finished = true;
    self->Ready(side, true, false);
  });
}

void Pipe::Reset() {
  for (int side : {0, 1}) {
    if (!listens(side)) continue;
    ends_[side].port->host_.After(world_.Micros(20, 2000), [self = shared_from_this(), side] {
      self->ends_[side].is_reset = true;
      self->Ready(side, true, true);
    });
  }
}

void Pipe::Heal() {
  const Time soon = world_.now() + std::chrono::milliseconds(10);
  for (const End& end : ends_) {
    if (end.lost_frame || end.last_arrival > soon) return Reset();
  }
}

// ---- Bytes -------------------------------------------------------------------------------------

Time Pipe::NextArrival(int to_side) {
  Time& last = ends_[1 - to_side].last_arrival;
  return last = fabric_.Arrival(places_[1 - to_side], places_[to_side], last);
}

void Pipe::Flush(int side) {
  std::string bytes = std::exchange(ends_[side].written, {});
  if (bytes.empty() || !listens(1 - side)) return;
  FabricPort* peer = ends_[1 - side].port;
  // As TCP cuts them: the rest may come later, or much later when a segment was lost.
  std::string rest;
  if (world_.plan == nullptr && world_.Chance(0.1)) {
    const size_t cut = world_.random.Below(bytes.size());
    rest = bytes.substr(cut);
    bytes.resize(cut);
  }
  for (std::string* piece : {&bytes, &rest}) {
    if (piece->empty()) continue;
    if (piece == &rest && world_.Hit(Fault::kShortWrite)) {
      Time& last = ends_[side].last_arrival;  // Later than what was written before it.
      last = std::max(last, world_.now() + world_.Micros(1000, 200000));
    }
    peer->host_.At(NextArrival(1 - side), [self = shared_from_this(), to = 1 - side,
                                           arrived = std::move(*piece)] {
      self->Arrive(to, arrived);
    });
  }
}

void Pipe::Arrive(int side, const std::string& bytes) {
  End& end = ends_[side];
  if (end.port == nullptr || end.is_reset) return;
  world_.Mark();
  end.arrived += bytes;
  const bool accept = side == 1 && !std::exchange(accepted_, true);
  FabricPort* port = end.port;
  if (!accept) return Ready(side, true, false);
  port->Turn([&] {
    port->connections_->Accept(StreamOf(shared_from_this(), side));
    if (end.open) port->connections_->Serve(end.id, true, false);
  });
}

ssize_t Pipe::Read(int side, const iovec* parts, int num_parts) {
  End& end = ends_[side];
  if (end.must_close) fabric_.violation_("I9: a connection goes on behind a damaged or lost frame");
  if (end.is_reset || refused_) {
    errno = ECONNRESET;
    return -1;
  }
  if (end.arrived.empty() && end.is_finished) return 0;
  if (end.arrived.empty()) {
    errno = EAGAIN;
    return -1;
  }
  size_t taken = 0;
  for (const iovec& part : std::span(parts, num_parts)) {
    const size_t n = std::min(part.iov_len, end.arrived.size() - taken);
    if (n == 0) break;
    auto* start = static_cast<std::byte*>(part.iov_base);
    std::memcpy(start, end.arrived.data() + taken, n);
    end.port->memory_.OnReceived(start, n);
    taken += n;
  }
  end.arrived.erase(0, taken);
  end.num_read += taken;
  NoteRead(end);
  return static_cast<ssize_t>(taken);
}

void Pipe::NoteRead(End& end) {
  while (!end.damages.empty() && end.damages.front().end <= end.num_read) {
    const Damage damage = end.damages.front();
    end.damages.pop_front();
    if (damage.in_header) {
      end.must_close = true;
    } else {
      end.port->NoteDamaged(damage.frame);
    }
  }
}

ssize_t Pipe::Write(int side, const iovec* parts, int num_parts) {
  End& end = ends_[side];
  if (end.is_reset || !end.can_write) {
    errno = end.is_reset ? EPIPE : EAGAIN;
    return -1;
  }
  const size_t size = SizeOf(parts, num_parts);
  size_t taken = size;
  if (size > 1 && world_.Hit(Fault::kShortWrite)) {
    taken = 1 + world_.random.Below(size - 1);
    WaitForRoom(side);
  }
  std::string bytes;
  for (const iovec& part : std::span(parts, num_parts)) {
    const size_t n = std::min(part.iov_len, taken - bytes.size());
    if (n == 0) break;
    const auto* start = static_cast<const std::byte*>(part.iov_base);
    end.port->memory_.OnSent(start, n);
    bytes.append(reinterpret_cast<const char*>(start), n);
  }
  if (end.frame_left == 0) {
    end.frame_left = size;
    // A frame begins with its header, in one piece.
    const auto header = DecodeHeader(
        std::span<const std::byte, kHeaderBytes>(static_cast<std::byte*>(parts[0].iov_base),
                                                 kHeaderBytes));
    if (header->type == FrameType::kCarried) {
      std::string frame;
      for (const iovec& part : std::span(parts, num_parts)) {
        frame.append(static_cast<const char*>(part.iov_base), part.iov_len);
      }
      CheckWord(side, frame);
    }
    OnFrame(side, *header, size, &bytes);
  }
  end.frame_left -= taken;
  end.written += bytes;
  end.num_written += bytes.size();
  return static_cast<ssize_t>(taken);
}

void Pipe::WaitForRoom(int side) {
  End& end = ends_[side];
  end.can_write = false;
  end.port->host_.After(world_.Micros(20, 3000), [self = shared_from_this(), side] {
    self->ends_[side].can_write = true;
    if (self->ends_[side].wants_write) self->Ready(side, false, true);
  });
}

void Pipe::CheckWord(int side, const std::string& frame) {
  const auto* bytes = reinterpret_cast<const std::byte*>(frame.data());
  const auto word = nccl::DecodeWord(
      {bytes + kHeaderBytes, frame.size() - kHeaderBytes - kTrailerBytes});
  if (!word.ok()) return fabric_.violation_("NCCL: no word of a carrier");
  std::vector<FrameHeader>& frames = announced_[{word->epoch, word->batch}];
  if (word->kind == nccl::Word::Kind::kAnnounce) {
    frames = word->frames;
  } else if (word->kind == nccl::Word::Kind::kGrant && ends_[1 - side].port != nullptr) {
    ends_[1 - side].port->gpu_->NoteGrant();
  } else if (word->kind == nccl::Word::Kind::kAck) {
    for (size_t i = 0; i < frames.size(); ++i) {
      if (word->arrived[i]) ends_[side].port->CheckLanded(frames[i]);
    }
  }
}

// The first bytes of a frame of `size`: what becomes of it.
void Pipe::OnFrame(int side, const FrameHeader& header, size_t size, std::string* bytes) {
  End& end = ends_[side];
  std::deque<Damage>& damages = ends_[1 - side].damages;
  const bool is_data = header.type == FrameType::kData || header.type == FrameType::kFinal;
  if (header.type == FrameType::kData && ends_[1 - side].port != nullptr) {
    ends_[1 - side].port->NoteData(header.ticket);
  }
  if (std::exchange(end.lost_frame, false)) {
    damages.push_back({.end = end.num_written + kHeaderBytes, .in_header = true});
  }
  if ((is_data && world_.Hit(Fault::kBreakTransfer)) ||
      (header.type == FrameType::kVerified && world_.Hit(Fault::kLoseAck))) {
    Reset();
    bytes->clear();
  } else if (bytes->size() == size && world_.Hit(Fault::kRepeatFrame)) {
    end.lost_frame = world_.random.Below(2) == 0;
    *bytes = end.lost_frame ? "" : *bytes + *bytes;
  } else if (world_.Hit(Fault::kCorruptFrame)) {
    const bool in_header = world_.random.Below(2) == 0;
    const size_t at =
        world_.random.Below(in_header ? std::min(bytes->size(), kHeaderBytes) : bytes->size());
    (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << world_.random.Below(8)));
    if (at < kHeaderBytes) {
      damages.push_back({.end = end.num_written + kHeaderBytes, .in_header = true});
    } else if (is_data) {
      damages.push_back({.end = end.num_written + size, .frame = header});
    }
  }
}

}  // namespace baton::sim
