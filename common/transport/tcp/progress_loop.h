#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "common/transport/tcp/call_queue.h"
#include "common/transport/tcp/connections.h"
#include "common/transport/tcp/socket.h"
#include "common/transport/tcp/tcp_options.h"
#include "common/transport/transport_counters.h"

namespace baton {

// All of the socket transport but its thread: listener, sockets, clock, and the connections over
// them. One thread at a time.
class ProgressLoop : private Network {
 public:
  // Options, calls and counters outlive the loop.
  static absl::StatusOr<std::unique_ptr<ProgressLoop>> Create(const TcpOptions& options,
                                                              FileDescriptor listener,
                                                              CallQueue* calls,
                                                              CounterBoard* counters);

  // Waits for sockets, calls or the next deadline, and handles what is ready. False when the queue
  // was stopped: every ticket has ended with CANCELLED and everything is closed.
  bool Poll();

 private:
  ProgressLoop(const TcpOptions& options, FileDescriptor listener, CallQueue* calls,
               CounterBoard* counters);

  // Network.
  absl::StatusOr<std::unique_ptr<ByteStream>> Connect(const std::string& endpoint) override;
  bool Watch(uint64_t id, ByteStream& stream, const Interest& interest, bool is_new) override;
  void ExecuteCalls() override;

  void AcceptConnections();
  void ListenAgain();
  int WaitMs() const;
  // As epoll_wait, but for a moment only while the stager is at work.
  int Wait(std::span<epoll_event> events) const;

  CallQueue* const calls_;
  CounterBoard* const counters_;
  FileDescriptor listener_;
  FileDescriptor epoll_;
  Time now_{};
  Time listen_again_ = kNever;  // While out of descriptors.
  Connections connections_;
};

}  // namespace baton
