#include "router/front/relay.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/telemetry/log.h"

namespace baton {

using boost::asio::ip::tcp;

namespace {

// For a client to take some of the last bytes, or to end its side; and for all of it.
constexpr Duration kLastLimit = std::chrono::seconds(2);
constexpr Duration kLastLimitInAll = std::chrono::seconds(10);
constexpr size_t kMostPassedOver = 1 << 20;
// Of each end; the kernel doubles it.
constexpr int kSocketBytes = 64 << 10;
constexpr Duration kMostSilent = std::chrono::seconds(10);  // Of the log.
// Between two looks at who may go on, and how many do at one.
constexpr Duration kBetweenTurns = std::chrono::milliseconds(5);
constexpr int kMostTurns = 128;
// A server begins by it (RFC 9113, 3.4): length 0, type 4, no flags, stream 0.
constexpr std::string_view kEmptySettings("\0\0\0\4\0\0\0\0\0", 9);

}  // namespace

void FrontCore::Told::Tell(absl::string_view what, const std::string& network,
                           const std::string& why) {
  ++count;
  ++untold;
  const Time now = SteadyNow();
  if (last != Time{} && now - last < kMostSilent) return;
  Log(LogLevel::kWarning, what,
      {{"client", network}, {"why", why}, {"count", std::exchange(untold, 0)}});
  last = now;
}

bool FrontCore::MayOpen(Relay& relay) {
  if (limits.MayOpen(relay.id(), SteadyNow())) return true;
  AwaitTurns();
  return false;
}

void FrontCore::AwaitTurns() {
  if (std::exchange(are_turns_awaited, true)) return;
  turns.expires_after(kBetweenTurns);
  turns.async_wait([this](boost::system::error_code) {
    are_turns_awaited = false;
    if (!limits.has_waiting()) return;
    AwaitTurns();  // Whatever comes of these.
    for (int i = 0; i < kMostTurns; ++i) {
      const auto next = limits.Next(SteadyNow());
      if (!next.has_value()) break;
      if (const auto relay = relays.at(*next).lock()) relay->GoOn();
    }
  });
}

Relay::Relay(FrontCore& core, tcp::socket socket)
    : core_(core),
      id_(++core.last_id),
      client_(std::move(socket), core.options.tls ? core.options.tls().get() : nullptr),
      server_(core.io),
      watchdog_(core.io),
      network_(client_.ClientNetwork()) {
  ++core_.num_connections;
  ++core_.num_of_network[network_];
  core_.limits.Add(id_, network_, SteadyNow());
}

Relay::~Relay() { Leave(); }

void Relay::Leave() {
  if (!std::exchange(is_counted_, false)) return;
  core_.limits.Remove(id_, SteadyNow());
  core_.relays.erase(id_);
  if (--core_.num_of_network[network_] == 0) core_.num_of_network.erase(network_);
  --core_.num_connections;
}

void Relay::Start() {
  Error ignored;
  client_.socket().set_option(tcp::no_delay(true), ignored);
  client_.socket().non_blocking(true, ignored);
  last_active_ = SteadyNow();
  Arm(core_.options.handshake_limit);
  const auto begin = [self = shared_from_this()](Error error) {
    if (self->state_ == State::kClosed) return;
    if (error) return self->Close();
    self->state_ = State::kPreface;
    self->AwaitClient();
  };
  if (!client_.is_tls()) return begin(Error());
  client_.AsyncHandshake(core_.handshakes, begin);
}

void Relay::Close() {
  if (std::exchange(state_, State::kClosed) == State::kClosed) return;
  StopHearing();
  Disarm();
  Leave();
  Error ignored;
  server_.close(ignored);
  client_.Close();
}

void Relay::Finish() {
  if (state_ < State::kOpen) return Close();
  BeginEnd();
}

// ---- Time limits --------------------------------------------------------------------------------

void Relay::Arm(Duration limit) {
  watchdog_.expires_after(limit);
  watchdog_.async_wait([self = shared_from_this(), armed = ++armed_](Error error) {
    if (!error && self->armed_ == armed) self->Close();
  });
}

void Relay::Disarm() {
  ++armed_;
  watchdog_.cancel();
}

void Relay::ArmForProgress() {
  if (end_by_ == Time{}) return Arm(core_.options.write_limit);
  Arm(std::min<Duration>(kLastLimit, end_by_ - SteadyNow()));
}

void Relay::BeginEnd() {
  if (state_ == State::kClosed || end_by_ != Time{}) return;
  end_by_ = SteadyNow() + kLastLimitInAll;
  ArmForProgress();
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
  last_active_ = SteadyNow();
  to_server_.append(core_.chunk.data(), size);
  ReadClient();
}

// Of one that was told to go: so that what it was told arrives, its bytes are taken for a while.
void Relay::PassOver(size_t size) {
  passed_over_ += size;
  if (passed_over_ < kMostPassedOver) AwaitClient();
}

// Looks at what has come, up to a stream that has to wait, and passes that on.
void Relay::ReadClient() {
  while (!is_waiting_ && admitted_ < to_server_.size()) {
    std::string_view bytes = std::string_view(to_server_).substr(admitted_);
    const Http2Frames::Event event = from_client_.Read(bytes);
    admitted_ = to_server_.size() - bytes.size();
    if (event == Http2Frames::Event::kInvalid) return Close();
    if (state_ == State::kPreface && from_client_.has_begun() && !OpenServer()) return;
    if (!OnClientEvent(event)) break;
  }
  if (state_ == State::kClosed || is_blocked_) return;
  state_ == State::kOpen ? SendToServer() : AwaitClient();
}

// False: what follows has to wait, or is heard no more.
bool Relay::OnClientEvent(Http2Frames::Event event) {
  if (event == Http2Frames::Event::kReset) EndStream(from_client_.stream(), /*is_answered=*/false);
  if (event != Http2Frames::Event::kOpened) return true;
  if (core_.MayOpen(*this)) return OnOpened();
  // Without the last byte of its head the server knows nothing of it.
  --admitted_;
  is_waiting_ = true;
  if (!std::exchange(is_paced_, true)) {
    core_.paced.Tell("gRPC connection waits", network_, "too many streams of all were reset");
  }
  return false;
}

void Relay::GoOn() {
  is_waiting_ = false;
  ++admitted_;
  OnOpened();
  ReadClient();
}

// False: this one has to go for it.
bool Relay::OnOpened() {
  open_.insert(from_client_.stream());
  const auto too_large = core_.limits.CountOpened(id_);
  if (!too_large.has_value()) return true;
  const StreamLimitsOptions& o = core_.options.streams;
  const bool is_own = open_.size() > static_cast<size_t>(o.most_open_of_connection);
  const std::string why =
      is_own ? absl::StrCat("more than ", o.most_open_of_connection, " streams open at once")
             : absl::StrCat("more than ", o.most_open, " streams of all connections open at once");
  if (const auto relay = core_.relays.at(*too_large).lock()) relay->Calm(why);
  return IsHeard();
}

void Relay::SendToServer() {
  Error error;
  size_t sent = server_.write_some(boost::asio::buffer(to_server_.data(), admitted_), error);
  // The server has closed its end: what it said last is still to be read.
  if (error && error != boost::asio::error::would_block) sent = admitted_;
  to_server_.erase(0, sent);
  admitted_ -= sent;
  if (admitted_ == 0) {
    if (to_server_.empty()) to_server_.shrink_to_fit();
    if (!is_waiting_) AwaitClient();
    return;
  }
  is_blocked_ = true;
  server_.async_wait(Server::wait_write, [self = shared_from_this()](Error) {
    self->is_blocked_ = false;
    if (self->state_ == State::kClosed) return;
    self->IsHeard() ? self->SendToServer() : self->AwaitClient();
  });
}

// Nothing is held for a client before it has begun. False: it must go.
bool Relay::OpenServer() {
  int ends[2];
  if (core_.is_closed ||
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
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
  core_.options.serve(ends[1]);
  state_ = State::kOpen;
  Disarm();
  AwaitServer();
  // The server may end while the client takes nothing.
  server_.async_wait(Server::wait_error, [self = shared_from_this()](Error error) {
    if (!error) self->BeginEnd();
  });
  return true;
}

// What has not gone to the server does not; its streams are the limits' affair.
void Relay::StopHearing() {
  core_.limits.Remove(id_, SteadyNow());
  open_.clear();
  to_server_.clear();
  admitted_ = 0;
  const bool was_waiting = std::exchange(is_waiting_, false);
  if (was_waiting && !is_blocked_ && state_ != State::kClosed) AwaitClient();
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
  const std::string_view said(core_.chunk.data(), size);
  for (std::string_view rest = said; !rest.empty();) {
    const Http2Frames::Event event = from_server_.Read(rest);
    if (event == Http2Frames::Event::kNone) continue;
    EndStream(from_server_.stream(), event == Http2Frames::Event::kAnswered);
  }
  SendToClient(said);
}

void Relay::SendToClient(std::string_view bytes) {
  to_client_.append(bytes);
  bool has_progress = !bytes.empty();
  while (!to_client_.empty()) {
    Error error;
    const size_t sent = client_.WriteSome(boost::asio::buffer(to_client_), error);
    if (error == boost::asio::error::would_block) break;
    if (error) return Close();
    to_client_.erase(0, sent);
    has_progress = true;
  }
  if (to_client_.empty()) return OnSentToClient();
  if (has_progress) ArmForProgress();
  client_.AsyncWaitWrite([self = shared_from_this()](Error error) {
    if (self->state_ == State::kClosed) return;
    error ? self->Close() : self->SendToClient({});
  });
}

void Relay::OnSentToClient() {
  to_client_.shrink_to_fit();
  end_by_ == Time{} ? Disarm() : ArmForProgress();
  // It has the last byte when it ends its side: to close before that could cut it.
  if (state_ == State::kEnding) return client_.ShutdownSend();
  if (state_ == State::kCalming && from_server_.bytes_to_border() == 0) {
    return End(std::move(goodbye_));
  }
  AwaitServer();
}

// ---- The end ------------------------------------------------------------------------------------

// Only the first end of a stream counts, whoever says it.
void Relay::EndStream(uint32_t stream, bool is_answered) {
  if (open_.erase(stream) == 0) return;
  is_answered ? core_.limits.CountAnswered(id_) : core_.limits.CountReset(id_, SteadyNow());
}

void Relay::Calm(const std::string& why) {
  core_.calmed.Tell("gRPC connection closed", network_, why);
  state_ = State::kCalming;
  goodbye_ = Http2Goaway(why);
  StopHearing();
  BeginEnd();
  if (to_client_.empty() && from_server_.bytes_to_border() == 0) End(std::move(goodbye_));
}

// No byte of the server will follow.
void Relay::End(std::string goodbye) {
  state_ = State::kEnding;
  StopHearing();
  Error ignored;
  server_.close(ignored);
  BeginEnd();
  if (!goodbye.empty() && !from_server_.has_begun()) goodbye.insert(0, kEmptySettings);
  SendToClient(goodbye);
}

}  // namespace baton
