#pragma once

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "common/transport/kv_transport.h"
#include "common/transport/tcp/call_queue.h"
#include "common/transport/tcp/progress_loop.h"
#include "common/transport/tcp/tcp_options.h"
#include "common/transport/transport_counters.h"

namespace baton {

// KvTransport over TCP: a listener for transfers to this process, one connection to each receiver,
// one progress thread that does all I/O and calls the sink. Methods only queue and never block.
class TcpKvTransport : public KvTransport {
 public:
  // Listens and starts the thread. INVALID_ARGUMENT names a wrong option, UNAVAILABLE the address
  // that cannot be bound.
  static absl::StatusOr<std::unique_ptr<TcpKvTransport>> Create(TcpOptions options);

  // Ends every ticket with CANCELLED, through the sink, and joins the thread. The sink must not
  // destroy the transport.
  ~TcpKvTransport() override;

  void Expect(ExpectArgs args) override { calls_.Add(std::move(args)); }
  void Start(StartArgs args) override { calls_.Add(std::move(args)); }
  void Push(PushArgs args) override { calls_.Add(args); }
  void Finish(FinishArgs args) override { calls_.Add(std::move(args)); }
  void Abort(TicketId ticket) override { calls_.Add(AbortArgs{ticket}); }

  // The bound "host:port". With a wildcard bind_host the caller puts its own address in its place.
  const std::string& endpoint() const { return endpoint_; }
  int port() const;
  TransportCounters counters() const { return counters_.Read(); }

 private:
  explicit TcpKvTransport(TcpOptions options);

  const TcpOptions options_;
  std::string endpoint_;
  CallQueue calls_;
  CounterBoard counters_;
  std::unique_ptr<ProgressLoop> loop_;  // The thread's, once it runs.
  std::thread thread_;
};

}  // namespace baton
