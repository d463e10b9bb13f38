#include "router/front/relay.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/telemetry/log.h"

namespace baton {

using boost::asio::ip::tcp;

namespace {

// For a client to take the last bytes, and to end its side.
constexpr Duration kLastLimit = std::chrono::seconds(2);
constexpr Duration kFinishLimit = std::chrono::milliseconds(200);
constexpr size_t kMostPassedOver = 1 << 20;
// Of each end; the kernel doubles it.
constexpr int kSocketBytes = 64 << 10;
constexpr Duration kMostSilent = std::chrono::seconds(10);  // Of the log.
// A server begins by it (RFC 9113, 3.4): length 0, type 4, no flags, stream 0.
constexpr std::string_view kEmptySettings("\0\0\0\4\0\0\0\0\0", 9);

}  // namespace

void FrontCore::CountCalmed(const std::string& client, const std::string& why) {
  ++num_calmed;
  ++untold;
  const Time now = SteadyNow();
  if (last_told != Time{} && now - last_told < kMostSilent) return;
  Log(LogLevel::kWarning, "gRPC connection refused or closed",
      {{"client", client}, {"why", why}, {"count", std::exchange(untold, 0)}});
  last_told = now;
}

Relay::Relay(FrontCore& core, tcp::socket socket)
    : core_(core),
      id_(++core.last_id),
      client_(std::move(socket), core.tls ? core.tls().get() : nullptr),
      server_(core.io),
      watchdog_(core.io),
      network_(client_.ClientNetwork()) {
  ++core_.num_connections;
}

Relay::~Relay() {
  core_.limits.Remove(id_, SteadyNow());
  core_.relays.erase(id_);
  --core_.num_connections;
}

void Relay::Start() {
  Error ignored;
  client_.socket().set_option(tcp::no_delay(true), ignored);
  client_.socket().non_blocking(true, ignored);
  last_active_ = SteadyNow();
  Arm(core_.handshake_limit);
  const auto begin = [self = shared_from_this()](Error error) {
    if (self->state_ == State::kClosed) return;
    if (error) return self->Close();
    self->state_ = State::kPreface;
    self->AwaitClient();
  };
  if (!client_.is_tls()) return begin(Error());
  client_.AsyncHandshake(core_.handshakes, begin);
}

void Relay::Arm(Duration limit) {
  watchdog_.expires_after(limit);
  watchdog_.async_wait([self = shared_from_this(), armed = ++armed_](Error error) {
    if (!error && self->armed_ == armed) self->Close();
  });
}

void Relay::Close() {
  if (std::exchange(state_, State::kClosed) == State::kClosed) return;
  core_.limits.Remove(id_, SteadyNow());
  ++armed_;
  watchdog_.cancel();
  Error ignored;
  server_.close(ignored);
  client_.Close();
}

void Relay::Finish() {
  is_last_ = true;
  if (state_ < State::kOpen || (state_ == State::kEnding && to_client_.empty())) return Close();
  Arm(kFinishLimit);
}

// ---- From the client ----------------------------------------------------------------------------

void Relay::AwaitClient() {
  client_.AsyncWaitRead(
      [self = shared_from_this()](Error error) { self->OnClientReadable(error); });
}

void Relay::OnClientReadable(Error error) {
  if (state_ == State::kClosed) return;
  size_t size = 0;
  if (!error) size = client_.ReadSome(boost::asio::buffer(core_.chunk), error);
  if (error == boost::asio::error::would_block) return AwaitClient();
  // As for the library: who ends its side has given its calls up.
  if (error) return Close();
  if (!IsHeard()) return PassOver(size);
  OnClientBytes({core_.chunk.data(), size});
}

// Of one that was told to go: so that what it was told arrives, its bytes are taken for a while.
void Relay::PassOver(size_t size) {
  passed_over_ += size;
  if (passed_over_ < kMostPassedOver) AwaitClient();
}

void Relay::OnClientBytes(std::string_view bytes) {
  last_active_ = SteadyNow();
  if (!from_client_.Read(bytes)) return Close();
  if (state_ == State::kPreface) {
    to_server_.append(bytes);
    if (!from_client_.has_begun()) return AwaitClient();
    if (!OpenServer()) return;
    bytes = {};
  }
  if (!CountStreams()) return AwaitClient();
  SendToServer(bytes);
}

// What waits goes before `bytes`.
void Relay::SendToServer(std::string_view bytes) {
  to_server_.append(bytes);
  Error error;
  const size_t sent = server_.write_some(boost::asio::buffer(to_server_), error);
  to_server_.erase(0, sent);
  // The server has closed its end: what it said last is still to be read.
  if (error && error != boost::asio::error::would_block) to_server_.clear();
  if (to_server_.empty()) {
    to_server_.shrink_to_fit();
    return AwaitClient();
  }
  server_.async_wait(Server::wait_write, [self = shared_from_this()](Error) {
    if (self->state_ == State::kClosed) return;
    self->IsHeard() ? self->SendToServer({}) : self->AwaitClient();
  });
}

// Nothing is held for a client before it has begun. False: it must go.
bool Relay::OpenServer() {
  if (core_.is_closed) {
    Close();
    return false;
  }
  if (const auto limit = core_.limits.Add(id_, network_, last_active_)) {
    Refuse(*limit);
    return false;
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    Close();
    return false;
  }
  for (const int end : ends) {
    setsockopt(end, SOL_SOCKET, SO_SNDBUF, &kSocketBytes, sizeof(kSocketBytes));
  }
  Error error;
  server_.assign(boost::asio::local::stream_protocol(), ends[0], error);
  if (!error) server_.non_blocking(true, error);
  if (error) {
    for (const int end : ends) close(end);
    Close();
    return false;
  }
  core_.serve(ends[1]);
  state_ = State::kOpen;
  ++armed_;
  watchdog_.cancel();
  AwaitServer();
  // The server may end while the client takes nothing: then it has this time.
  server_.async_wait(Server::wait_error, [self = shared_from_this()](Error error) {
    if (!error && self->has_begun() && !self->is_last_) self->Arm(kLastLimit);
  });
  return true;
}

// ---- From the server ----------------------------------------------------------------------------

void Relay::AwaitServer() {
  server_.async_wait(Server::wait_read,
                     [self = shared_from_this()](Error error) { self->OnServerReadable(error); });
}

void Relay::OnServerReadable(Error error) {
  if (state_ != State::kOpen && state_ != State::kCalming) return;
  size_t most = core_.chunk.size();
  if (state_ == State::kCalming) most = std::min(most, from_server_.bytes_to_border());
  size_t size = 0;
  if (!error) size = server_.read_some(boost::asio::buffer(core_.chunk.data(), most), error);
  if (error == boost::asio::error::would_block) return AwaitServer();
  if (error) return End("");
  const std::string_view bytes(core_.chunk.data(), size);
  from_server_.Read(bytes);
  SendToClient(bytes);
}

void Relay::SendToClient(std::string_view bytes) {
  to_client_.append(bytes);
  while (!to_client_.empty()) {
    Error error;
    const size_t sent = client_.WriteSome(boost::asio::buffer(to_client_), error);
    if (error == boost::asio::error::would_block) break;
    if (error) return Close();
    to_client_.erase(0, sent);
  }
  if (to_client_.empty()) return OnSentToClient();
  client_.AsyncWaitWrite([self = shared_from_this()](Error error) {
    if (self->state_ == State::kClosed) return;
    error ? self->Close() : self->SendToClient({});
  });
}

void Relay::OnSentToClient() {
  to_client_.shrink_to_fit();
  if (state_ == State::kEnding) {
    client_.ShutdownSend();
    if (is_last_) Close();
    return;
  }
  if (state_ == State::kCalming) {
    if (from_server_.bytes_to_border() == 0) return End(std::move(goodbye_));
    return AwaitServer();
  }
  if (CountStreams() || state_ == State::kCalming) AwaitServer();
}

// ---- The end ------------------------------------------------------------------------------------

int64_t Relay::num_open() const {
  const int64_t resets = from_client_.num_resets() + from_server_.num_resets();
  return std::max<int64_t>(0, from_client_.num_opened() - from_server_.num_answered() - resets);
}

// False: this one has to go.
bool Relay::CountStreams() {
  const int64_t resets = from_client_.num_resets() + from_server_.num_resets();
  const int64_t more = resets - std::exchange(counted_resets_, resets);
  const auto excess = core_.limits.Count(id_, more, num_open(), SteadyNow());
  if (!excess.has_value()) return true;
  // Whoever is counted is there.
  const std::shared_ptr<Relay> relay = core_.relays.at(excess->id).lock();
  BATON_CHECK(relay != nullptr);
  relay->Calm(excess->limit);
  return state_ == State::kOpen;
}

void Relay::Calm(ResetLimits::Limit limit) {
  const std::string why = core_.limits.TextOf(limit);
  core_.limits.Remove(id_, SteadyNow());
  core_.CountCalmed(network_, why);
  state_ = State::kCalming;
  goodbye_ = Http2Goaway(why);
  Arm(kLastLimit);
  if (to_client_.empty() && from_server_.bytes_to_border() == 0) End(std::move(goodbye_));
}

void Relay::Refuse(ResetLimits::Limit limit) {
  const std::string why = core_.limits.TextOf(limit);
  core_.CountCalmed(network_, why);
  End(std::string(kEmptySettings) + Http2Goaway(why));
  AwaitClient();
}

// No byte of the server will follow.
void Relay::End(std::string goodbye) {
  core_.limits.Remove(id_, SteadyNow());
  state_ = State::kEnding;
  Error ignored;
  server_.close(ignored);
  Arm(kLastLimit);
  SendToClient(goodbye);
}

}  // namespace baton
