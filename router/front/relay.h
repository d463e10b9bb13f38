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

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "common/base/time.h"
#include "common/http/http_stream.h"
#include "common/http/paced_tasks.h"
#include "router/front/grpc_front.h"
#include "router/front/http2_frames.h"
#include "router/front/stream_limits.h"

namespace baton {

class Relay;

// What the connections of one front share; all on its thread, but for the counters.
struct FrontCore {
  explicit FrontCore(GrpcFrontOptions o) : options(std::move(o)), limits(options.streams) {}

  // Whether the stream that it begins may begin now; if not, its GoOn is called later.
  bool MayOpen(Relay& relay);
  void AwaitTurns();

  // What is counted, and told to the log now and then.
  struct Told {
    std::atomic<int64_t> count = 0;
    Time last{};         // To the log,
    int64_t untold = 0;  // and how many came since then.
    void Tell(absl::string_view what, const std::string& network, const std::string& why);
  };

  const GrpcFrontOptions options;
  bool is_closed = false;  // Nothing is handed over any more.
  StreamLimits limits;
  StreamLimits::Id last_id = 0;
  std::map<StreamLimits::Id, std::weak_ptr<Relay>> relays;  // Goes with them,
  std::map<std::string, int> num_of_network;                // and so does this.
  std::array<char, 16 << 10> chunk;  // What one read brings, until it returns.
  std::atomic<int64_t> num_connections = 0;
  Told paced;   // Connections that had to wait once.
  Told calmed;  // Those that were told to go.
  bool are_turns_awaited = false;
  boost::asio::io_context io{1};  // What it runs at its end uses what is above.
  boost::asio::steady_timer turns{io};
  http::PacedTasks handshakes{io};
};

// One client's connection, from its first byte on: TLS, then HTTP/2 between it and a socket whose
// other end the server has. Bytes go through unchanged, a chunk at a time and each way: no more is
// read where the last is not taken yet. A client's chunk is held where it opens a stream that has
// to wait; what the server says never is. It is the thread's that runs the core's `io`, and lives
// as long as what it waits for.
class Relay : public std::enable_shared_from_this<Relay> {
 public:
  Relay(FrontCore& core, boost::asio::ip::tcp::socket socket);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  void Start();
  // At once, both ways.
  void Close();
  // As soon as the client has taken what the server said last; in 10 s at most.
  void Finish();
  // The stream that it begins has its turn.
  void GoOn();

  StreamLimits::Id id() const { return id_; }
  const std::string& network() const { return network_; }  // The client's.
  bool has_begun() const { return state_ == State::kOpen; }
  // Closing it costs its client nothing but a new connection.
  bool is_idle() const { return open_.empty() && to_client_.empty() && !is_waiting_; }
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

  void Leave();  // Is no connection of the core's.
  bool IsHeard() const { return state_ == State::kPreface || state_ == State::kOpen; }

  // From the client: one wait at a time, for it, for the server or for its turn.
  void AwaitClient();
  void OnClientReadable(Error error);
  void PassOver(size_t size);
  void ReadClient();
  bool OnClientEvent(Http2Frames::Event event);
  bool OnOpened();
  void SendToServer();
  bool OpenServer();
  void StopHearing();
  // From the server: likewise.
  void AwaitServer();
  void OnServerReadable(Error error);
  void SendToClient(std::string_view bytes);
  void OnSentToClient();

  void EndStream(uint32_t stream, bool is_answered);
  // GOAWAY to the client, which is heard no more; its calls end at the server.
  void Calm(const std::string& why);
  void End(std::string goodbye);

  // The client has so long to begin, or to take some of what waits for it.
  void Arm(Duration limit);
  void ArmForProgress();
  void BeginEnd();
  void Disarm();

  FrontCore& core_;
  const StreamLimits::Id id_;
  http::HttpStream client_;
  Server server_;
  boost::asio::steady_timer watchdog_;
  uint64_t armed_ = 0;  // How often; a timer that fires late is of an earlier time.
  Time end_by_{};       // Whatever the client takes; not set until its end has begun.
  State state_ = State::kHandshake;
  bool is_counted_ = true;
  const std::string network_;
  Http2Frames from_client_{Http2Frames::From::kClient};
  Http2Frames from_server_{Http2Frames::From::kServer};
  absl::flat_hash_set<uint32_t> open_;  // Streams that the client has opened, and nobody ended.
  Time last_active_{};
  std::string to_server_;    // Not taken yet,
  size_t admitted_ = 0;      // of which so much may go,
  bool is_waiting_ = false;  // as the next byte would open a stream,
  bool is_paced_ = false;    // which was so once,
  bool is_blocked_ = false;  // or as the server has no room.
  std::string to_client_;    // Not taken yet.
  size_t passed_over_ = 0;
  std::string goodbye_;  // Once the server's frame has ended.
};

}  // namespace baton
