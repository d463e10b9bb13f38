#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/transport/tcp/byte_stream.h"
#include "common/transport/tcp/link.h"
#include "common/transport/transport_counters.h"
#include "common/transport/wire.h"

namespace baton {

// A stream of bytes as two sequences of frames. Payloads are read into and written from the
// link's memory without a copy. Progress thread only.
class FrameStream {
 public:
  struct Options {
    CounterBoard* counters = nullptr;
    std::span<std::byte> scratch;  // Shared by all streams: discarded payloads land in it.
  };

  // The link outlives the stream.
  FrameStream(std::unique_ptr<ByteStream> bytes, Link* link, const Options& options);

  // Reads frames until the socket is empty or a few MiB were read. DATA_LOSS and INVALID_ARGUMENT:
  // not our protocol (counted as malformed); UNAVAILABLE: the peer closed.
  absl::Status Read();

  // Writes queued frames, then the link's NextFrame, until the socket is full.
  absl::Status Write();

  // A control frame; RESOURCE_EXHAUSTED when the peer has not taken thousands of them.
  absl::Status Queue(OutgoingFrame frame);

  // To be called in OnFrame: from now on nothing is read and no frame is told of, and the frame's
  // body stays as it is. Resume goes on, with the next header if that came along.
  void Pause() { paused_ = true; }
  absl::Status Resume();
  bool paused() const { return paused_; }

  // The ticket's memory is no longer to be written: the rest of its payload goes to scratch.
  void DivertPayload(TicketId ticket);

  // The ticket's memory is no longer to be read: the rest of its payload is zeros and its trailer
  // says so.
  void AbandonFrame(TicketId ticket);

  // There is more to write; as a rule because the socket took no more.
  bool wants_write() const { return wants_write_ || bytes_->HasUnsent(); }
  // There is more to read that no socket will tell of.
  bool has_unread() const { return !paused_ && bytes_->HasUnread(); }
  ByteStream& bytes() { return *bytes_; }

 private:
  enum class RxState : uint8_t { kHeader, kPayload, kTrailer };

  // The socket's errno as a status, counted.
  absl::Status Failed(const char* what);
  int BuildReadList(iovec* list) const;
  absl::Status Consume(size_t bytes);
  void ConsumePayload(size_t bytes);
  absl::Status OnWholeHeader();
  absl::Status OnWholeFrame();
  bool StartNextFrame();
  void StartFrame(OutgoingFrame frame);
  void Advance(size_t bytes);

  const std::unique_ptr<ByteStream> bytes_;
  Link* const link_;
  const Options options_;

  RxState rx_state_ = RxState::kHeader;
  HeaderBytes rx_header_bytes_;
  TrailerBytes rx_trailer_bytes_;
  size_t rx_have_ = 0;  // Of the header or the trailer.
  uint64_t rx_sequence_ = 0;
  FrameHeader rx_header_;
  std::vector<std::byte> rx_body_;
  std::vector<iovec> rx_memory_;
  size_t rx_index_ = 0;  // In rx_memory_.
  size_t rx_offset_ = 0;
  size_t rx_left_ = 0;  // Payload bytes still to come.
  bool rx_discard_ = false;
  bool rx_duplicate_ = false;
  bool paused_ = false;
  uint32_t rx_crc_ = 0;

  std::deque<OutgoingFrame> queue_;
  bool sending_ = false;
  bool tx_started_ = false;
  OutgoingFrame tx_frame_;
  HeaderBytes tx_header_bytes_;
  FrameTrailer tx_trailer_;
  TrailerBytes tx_trailer_bytes_;
  std::vector<iovec> tx_list_;  // Header, payload, trailer.
  size_t tx_index_ = 0;
  size_t tx_offset_ = 0;
  uint64_t tx_sequence_ = 0;
  bool wants_write_ = false;
  std::vector<std::byte> zeros_;
};

}  // namespace baton
