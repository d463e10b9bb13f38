#pragma once

#include <deque>
#include <mutex>
#include <variant>

#include "common/transport/kv_transport.h"
#include "common/transport/tcp/socket.h"

namespace baton {

struct AbortArgs {
  TicketId ticket;
};

// One call of KvTransport, on its way to the progress thread.
using TransportCall = std::variant<ExpectArgs, StartArgs, PushArgs, FinishArgs, AbortArgs>;

// The node's calls in their order, and what wakes the progress thread for them. Thread-safe. Not
// capped: its content is bounded by what the node has admitted, a few words per layer and chunk.
class CallQueue {
 public:
  CallQueue();

  bool open() const { return wake_.open(); }
  int wake_fd() const { return wake_.get(); }  // Readable when there is something to take.

  void Add(TransportCall call);
  void Stop();

  // Takes all; the wake is cleared, unless it is for a stop.
  std::deque<TransportCall> Take();
  bool stopped() const;

 private:
  void Wake();

  FileDescriptor wake_;  // eventfd
  mutable std::mutex mutex_;
  std::deque<TransportCall> calls_;
  bool stopped_ = false;
};

}  // namespace baton
