#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "common/transport/wire.h"

namespace baton {

class FrameStream;

// Where the payload of an incoming frame goes.
struct PayloadPlan {
  enum class Kind : uint8_t { kBody, kMemory, kDiscard };
  Kind kind = Kind::kBody;    // kBody: a buffer of the stream.
  std::vector<iovec> memory;  // kMemory: exactly payload_bytes.
};

struct ReceivedFrame {
  FrameHeader header;
  std::span<const std::byte> body;  // kBody.
  bool discarded = false;           // Planned so, or diverted on the way; the rest is not valid.
  bool checksum_ok = true;
  bool abandoned = false;  // The sender filled the rest with zeros.
};

struct OutgoingFrame {
  FrameHeader header;           // The stream fills in sequence and payload_bytes.
  std::vector<std::byte> body;  // The payload, or:
  std::vector<iovec> memory;    // readable until the frame is sent or abandoned.
};

// One end of one data connection: what happens with its frames. Progress thread only. An error from
// any method means that the connection is to be closed, with OnClosed.
class Link {
 public:
  virtual ~Link() = default;

  // A valid header, in sequence; decides before the first payload byte is read.
  virtual absl::StatusOr<PayloadPlan> OnHeader(const FrameHeader& header) = 0;
  virtual absl::Status OnFrame(const ReceivedFrame& frame) = 0;

  // The line is free: the next frame, if there is one. Control frames go through
  // FrameStream::Queue and come before.
  virtual std::optional<OutgoingFrame> NextFrame() = 0;

  // The socket is ready, or the loop has handled calls that may have left something to write.
  virtual absl::Status OnReady(bool readable, bool writable, Time now) = 0;
  virtual absl::Status OnTimer(Time now) = 0;
  virtual Time NextDeadline() const = 0;

  // Last call: ends what depended on the connection.
  virtual void OnClosed(const absl::Status& status) = 0;

  virtual FrameStream& stream() = 0;

  // It waits for a slot of the stager, and got none in the last OnReady.
  virtual bool wants_slot() const = 0;
};

}  // namespace baton
