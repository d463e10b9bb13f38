#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/time.h"
#include "common/http/http_stream.h"
#include "common/http/paced_tasks.h"
#include "router/front/http2_frames.h"
#include "router/front/reset_limits.h"

namespace baton {

class Relay;

// What the connections of one front share; all on its thread, but for the counters.
struct FrontCore {
  FrontCore(std::function<std::shared_ptr<SSL_CTX>()> tls_of, std::function<void(int fd)> hand_over,
            Duration limit, ResetLimitsOptions rates)
      : tls(std::move(tls_of)),
        serve(std::move(hand_over)),
        handshake_limit(limit),
        limits(rates) {}

  // A connection was told to go, or a new one not to come.
  void CountCalmed(const std::string& client, const std::string& why);

  const std::function<std::shared_ptr<SSL_CTX>()> tls;  // Empty: plaintext.
  const std::function<void(int fd)> serve;
  const Duration handshake_limit;
  bool is_closed = false;  // Nothing is handed over any more.
  ResetLimits limits;
  ResetLimits::Id last_id = 0;
  std::map<ResetLimits::Id, std::weak_ptr<Relay>> relays;  // Goes with them.
  std::array<char, 16 << 10> chunk;  // What one read brings, until it returns.
  std::atomic<int64_t> num_connections = 0;
  std::atomic<int64_t> num_calmed = 0;
  Time last_told{};               // Of those, to the log,
  int64_t untold = 0;             // and how many came since then.
  boost::asio::io_context io{1};  // Last: what it runs at its end uses the rest.
  http::PacedTasks handshakes{io};
};

// One client's connection, from its first byte on: TLS, then HTTP/2 between it and a socket whose
// other end the server has. Bytes go through unchanged, a chunk at a time and each way: no more is
// read where the last is not taken yet. It is the thread's that runs the core's `io`, and lives as
// long as what it waits for.
class Relay : public std::enable_shared_from_this<Relay> {
 public:
  Relay(FrontCore& core, boost::asio::ip::tcp::socket socket);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  void Start();
  // At once, both ways.
  void Close();
  // As soon as the client has taken what the server said last, or soon.
  void Finish();
  // GOAWAY to the client, which is heard no more; its calls end at the server.
  void Calm(ResetLimits::Limit limit);

  ResetLimits::Id id() const { return id_; }
  // Closing it costs its client nothing but a new connection: no stream is open.
  bool is_idle() const { return !has_begun() || num_open() == 0; }
  bool has_begun() const { return state_ == State::kOpen; }
  Time last_active() const { return last_active_; }  // When bytes came.

 private:
  using Error = boost::system::error_code;
  using Server = boost::asio::local::stream_protocol::socket;
  enum class State {
    kHandshake,  // Of TLS.
    kPreface,    // The server has nothing of it.
    kOpen,
    kCalming,  // The server's frame that has begun goes to its end, then GOAWAY.
    kEnding,   // The client takes what waits for it. What it says is passed over.
    kClosed,
  };

  int64_t num_open() const;
  bool IsHeard() const { return state_ == State::kPreface || state_ == State::kOpen; }

  // From the client: one wait at a time, for it or for the server.
  void AwaitClient();
  void OnClientReadable(Error error);
  void OnClientBytes(std::string_view bytes);
  void PassOver(size_t size);
  void SendToServer(std::string_view bytes);
  bool OpenServer();
  // From the server: likewise.
  void AwaitServer();
  void OnServerReadable(Error error);
  void SendToClient(std::string_view bytes);
  void OnSentToClient();

  bool CountStreams();
  void Refuse(ResetLimits::Limit limit);
  void End(std::string goodbye);
  void Arm(Duration limit);

  FrontCore& core_;
  const ResetLimits::Id id_;
  http::HttpStream client_;
  Server server_;
  boost::asio::steady_timer watchdog_;
  uint64_t armed_ = 0;  // How often; a timer that fires late is of an earlier time.
  State state_ = State::kHandshake;
  const std::string network_;  // The client's.
  Http2Frames from_client_{Http2Frames::From::kClient};
  Http2Frames from_server_{Http2Frames::From::kServer};
  int64_t counted_resets_ = 0;
  Time last_active_{};
  bool is_last_ = false;   // Nothing is waited for once all is said.
  std::string to_server_;  // Not taken yet,
  std::string to_client_;  // likewise.
  size_t passed_over_ = 0;
  std::string goodbye_;  // Once the server's frame has ended.
};

}  // namespace baton
