#include "common/http/http_connection.h"

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <exception>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/http/http_exchange.h"

namespace baton::http {

namespace beast_http = boost::beast::http;
using boost::asio::ip::tcp;

namespace {

// Of later requests, read ahead while an answer is under way; beyond it the socket is left alone.
constexpr size_t kMaxReadAheadBytes = 65536;
constexpr int64_t kMaxLingerBytes = 16 << 20;
// A body below this is not worth a task of its own that lets it go.
constexpr size_t kSmallBodyBytes = 64 << 10;

Response Busy(int status, std::string_view type, std::string_view message) {
  Response response = ErrorResponse(status, type, message);
  response.headers.push_back({"Retry-After", "1"});
  return response;
}

std::shared_ptr<SSL_CTX> TlsOf(const ServerCore& core) {
  if (!core.options.tls) return nullptr;
  std::shared_ptr<SSL_CTX> tls = core.options.tls();
  BATON_CHECK(tls != nullptr);  // Never plaintext instead.
  return tls;
}

}  // namespace

Connection::Connection(std::shared_ptr<ServerCore> core, tcp::socket socket, bool is_spare)
    : core_(std::move(core)),
      stream_(std::move(socket), TlsOf(*core_).get()),
      timer_(stream_.get_executor()),
      buffer_(kMaxReadAheadBytes + kBodyBytes +
              static_cast<size_t>(core_->options.max_header_bytes)),
      is_spare_(is_spare) {}

Connection::~Connection() {
  ReleaseBody();
  CountQueued(-queued_bytes_);
}

void Connection::Post(std::function<void()> task) {
  core_->PostTo(stream_.get_executor(), std::move(task));
}

void Connection::Start() {
  Post([self = shared_from_this()] {
    Error ignored;
    self->stream_.socket().set_option(tcp::no_delay(true), ignored);
    self->stream_.socket().non_blocking(true, ignored);
    if (self->stream_.is_tls()) return self->ShakeHands();
    self->WaitForRequest();
  });
}

void Connection::CloseSoon(std::function<bool(const Connection&)> which) {
  Post([self = shared_from_this(), which = std::move(which)] {
    if (which(*self)) self->Close();
  });
}

// One timer for all of them, which is not touched where a deadline moves on: it looks again then.
void Connection::Schedule() {
  const Time due = std::min({read_deadline_, write_deadline_, silence_deadline_});
  if (due >= looks_at_) return;
  looks_at_ = due;
  timer_.expires_after(due - SteadyNow());
  timer_.async_wait([self = shared_from_this(), due](Error error) {
    if (!error && due == self->looks_at_) self->OnTimer();
  });
}

void Connection::OnTimer() {
  looks_at_ = kNever;
  const Time now = SteadyNow();
  if (std::min(read_deadline_, write_deadline_) <= now) return Close();
  if (silence_deadline_ <= now) BreakSilence(now);
  Schedule();
}

// ---- Reading ------------------------------------------------------------------------------------

// As quiet as one that says nothing: its place may go to another one.
void Connection::ShakeHands() {
  state_ = State::kHandshake;
  if (core_->draining || !core_->MarkQuiet(this)) return Close();
  read_deadline_ = SteadyNow() + core_->options.header_timeout;
  Schedule();
  stream_.AsyncHandshake(core_->handshakes, [self = shared_from_this()](Error error) {
    if (self->state_ == State::kClosed) return;
    error ? self->Close() : self->WaitForRequest();
  });
}

void Connection::WaitForRequest() {
  state_ = State::kIdle;
  if (buffer_.size() == 0 && (core_->draining || peer_closed_)) return Close();
  if (!core_->MarkQuiet(this)) return Close();
  buffer_.shrink_to_fit();  // Who sends nothing holds nothing.
  read_deadline_ = SteadyNow() + core_->options.idle_timeout;
  RawRead();
  if (buffer_.size() == 0) return;
  // The next request is here already. Not from within the end of this one.
  boost::asio::post(stream_.get_executor(), [self = shared_from_this()] {
    if (self->state_ == State::kIdle) self->BeginRequest();
  });
}

void Connection::RawRead() {
  Schedule();
  if (read_pending_ || peer_closed_) return;
  // Who begins a request, or waits for the next one, reads on.
  const bool is_ahead = state_ == State::kIdle || state_ == State::kHandling;
  if (is_ahead && buffer_.size() >= kMaxReadAheadBytes) return;
  read_pending_ = true;
  // No memory waits with it.
  stream_.AsyncWaitRead([self = shared_from_this()](Error error) { self->OnReadable(error); });
}

void Connection::OnReadable(Error error) {
  read_pending_ = false;
  if (state_ == State::kClosed) return;
  std::array<char, kBodyBytes>& bytes = core_->read_bytes;
  // What is taken has its place.
  const size_t most = std::min(state_ == State::kBody ? kBodyBytes : kReadBytes,
                               buffer_.max_size() - buffer_.size());
  size_t num = 0;
  if (!error) num = stream_.ReadSome(boost::asio::buffer(bytes.data(), most), error);
  if (error == boost::asio::error::would_block) return RawRead();
  if (error) {
    // What is here already is answered, whether anything comes behind it or not.
    const bool is_served = state_ == State::kHandling || (state_ == State::kIdle && buffer_.size());
    return is_served ? OnPeerClosed() : Close();
  }
  if (state_ == State::kLinger) {
    lingered_bytes_ += static_cast<int64_t>(num);
    return lingered_bytes_ > kMaxLingerBytes ? Close() : RawRead();
  }
  std::copy_n(bytes.data(), num, static_cast<char*>(buffer_.prepare(num).data()));
  buffer_.commit(num);
  switch (state_) {
    case State::kIdle:
      return BeginRequest();
    case State::kHeader:
      return ReadHead();
    case State::kBody:
      return ReadBody();
    default:
      RawRead();
  }
}

void Connection::BeginRequest() {
  state_ = State::kHeader;
  read_deadline_ = SteadyNow() + core_->options.header_timeout;
  head_room_ = static_cast<size_t>(core_->options.max_header_bytes);
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(head_room_));  // Of what has come, each time anew.
  parser_->body_limit(boost::none);  // Ours are better: PrepareBody and ReadBody have the answer.
  ReadHead();
}

void Connection::ReadHead() {
  Error error;
  head_room_ -= Parse(error);
  if (error == beast_http::error::need_more) return AwaitMore();
  error ? OnParseError(error) : OnHead();
}

// Gives the parser as much as lines may have. Returns what it took.
size_t Connection::Parse(Error& error) {
  const boost::asio::const_buffer lines = boost::asio::buffer(buffer_.data(), head_room_);
  const size_t taken = parser_->put(lines, error);
  buffer_.consume(taken);
  if (taken > 0) checked_bytes_ = 0;
  return taken;
}

// What is here is the beginning of a head, or of what stands between the chunks of a body: lines.
void Connection::AwaitMore() {
  if (peer_closed_) return Close();
  const std::string_view lines(static_cast<const char*>(buffer_.data().data()),
                               std::min(buffer_.size(), head_room_));
  // The parser waits for the CR that others do without; who sends none would wait with it.
  if (HasBareLineFeed(lines, checked_bytes_)) {
    return OnParseError(beast_http::error::bad_line_ending);
  }
  checked_bytes_ = lines.size();
  if (lines.size() == head_room_) return OnParseError(beast_http::error::header_limit);
  RawRead();
}

void Connection::OnParseError(Error error) {
  if (error == beast_http::error::header_limit) {
    return Refuse(
        ErrorResponse(431, "invalid_request_error", "The request's headers are too large."));
  }
  Refuse(ErrorResponse(400, "invalid_request_error", "The request is not valid HTTP/1.1."));
}

void Connection::OnHead() {
  const auto& message = parser_->get();
  keep_alive_ = message.keep_alive();
  chunked_ = message.version() >= 11;
  head_only_ = message.method() == beast_http::verb::head;
  Request head;
  head.method = std::string(message.method_string());
  for (const auto& field : message) {
    head.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  }
  std::optional<Response> refusal = CheckHead(head);
  if (!refusal.has_value() && !parser_->is_done()) refusal = PrepareBody(head);
  if (refusal.has_value()) return Refuse(std::move(*refusal), SkipBody());
  if (parser_->is_done()) return Dispatch(std::move(head));
  state_ = State::kBody;
  read_deadline_ = SteadyNow() + core_->options.body_timeout;
  client_ = ClientOf(head);
  head_room_ = static_cast<size_t>(core_->options.max_header_bytes);  // Of a chunk, of trailers.
  parser_->eager(true);
  head_ = std::move(head);
  ReadBody();
}

// Who holds a key, or else the address.
std::string Connection::ClientOf(const Request& head) {
  if (!head.principal.empty()) return "key " + head.principal;
  if (address_.empty()) address_ = stream_.ClientNetwork();
  return address_;
}

// Counts bytes of the body that have come.
std::optional<Response> Connection::CountBody(int64_t bytes) {
  const BodyMeter::Room room = core_->bodies.Add(client_, bytes);
  if (room == BodyMeter::Room::kServerIsFull) {
    return Busy(503, "server_error", "Too many large requests; try again.");
  }
  if (room == BodyMeter::Room::kClientIsFull) {
    return Busy(429, "rate_limit_error",
                absl::StrFormat("The unfinished requests of this client hold %d bytes, all that "
                                "one client may; finish them first.",
                                core_->bodies.max_client_bytes()));
  }
  body_bytes_ += bytes;
  return std::nullopt;
}

// What can be refused before the body is read. Fills in the path, the principal and the route.
std::optional<Response> Connection::CheckHead(Request& head) {
  constexpr std::string_view kInvalid = "invalid_request_error";
  const auto& message = parser_->get();
  const std::string target(message.target());
  if (message.version() != 10 && message.version() != 11) {
    return ErrorResponse(400, kInvalid, "Only HTTP/1.0 and HTTP/1.1 are spoken here.");
  }
  if (message.version() == 11 && message.count(beast_http::field::host) != 1) {
    return ErrorResponse(400, kInvalid, "The request needs exactly one Host header.");
  }
  // What another reader may take for another coding. There was none before HTTP/1.1.
  const auto num_codings = message.count(beast_http::field::transfer_encoding);
  const std::string coding(message[beast_http::field::transfer_encoding]);
  if (num_codings > 1 ||
      (num_codings == 1 && (message.version() != 11 || !HeaderNameIs(coding, "chunked")))) {
    return ErrorResponse(400, kInvalid, "The only Transfer-Encoding supported is chunked.");
  }
  const bool any = target == "*" && head.method == "OPTIONS";
  if (!any && !ParseTarget(target, &head.path, &head.query)) {
    return ErrorResponse(400, kInvalid, "The request target is not a valid path.");
  }
  if (core_->options.authorize) {
    Decision decision = core_->options.authorize(head);
    if (decision.refusal.has_value()) return std::move(*decision.refusal);
    head.principal = std::move(decision.principal);
  }
  if (head_only_) head.method = "GET";
  std::string allowed;
  route_ = any ? nullptr : core_->FindRoute(head.method, head.path, &allowed);
  if (any || (head.method == "OPTIONS" && !allowed.empty())) {
    return Response{.status = 204,
                    .headers = {{"Allow", any ? "GET, HEAD, POST, OPTIONS" : allowed}}};
  }
  if (route_ == nullptr && allowed.empty()) {
    return ErrorResponse(404, kInvalid, "There is nothing at this path.");
  }
  if (route_ == nullptr) {
    Response response = ErrorResponse(405, kInvalid, "This path does not have this method.");
    response.headers.push_back({"Allow", allowed});
    return response;
  }
  if (is_spare_ && !route_->quick) {
    return Busy(503, "server_error", "The server has all the connections it takes; try again.");
  }
  return std::nullopt;
}

// Limits of the body that follows; answers `Expect: 100-continue`.
std::optional<Response> Connection::PrepareBody(const Request& head) {
  constexpr std::string_view kInvalid = "invalid_request_error";
  const int64_t most = core_->options.max_body_bytes;
  const auto length = parser_->content_length();
  if (length.has_value() && *length > static_cast<uint64_t>(most)) {
    return ErrorResponse(
        413, kInvalid,
        absl::StrFormat("The body has %d bytes; at most %d are allowed.", *length, most));
  }
  const std::string_view expect = head.Find("Expect");
  if (!expect.empty() && !HeaderNameIs(expect, "100-continue")) {
    return ErrorResponse(417, kInvalid, "The only expectation supported is 100-continue.");
  }
  parser_->body_limit(static_cast<uint64_t>(most));
  if (!expect.empty() && chunked_) Enqueue("HTTP/1.1 100 Continue\r\n\r\n");
  return std::nullopt;
}

void Connection::ReadBody() {
  Error error;
  while (buffer_.size() > 0 && !parser_->is_done() && Parse(error) > 0) {
    if (error && error != beast_http::error::need_more) break;
  }
  if (error == beast_http::error::body_limit) {
    return Refuse(ErrorResponse(
        413, "invalid_request_error",
        absl::StrFormat("The body has more than %d bytes.", core_->options.max_body_bytes)));
  }
  if (error && error != beast_http::error::need_more) return OnParseError(error);
  const auto came = static_cast<int64_t>(parser_->get().body().size()) - body_bytes_;
  if (std::optional<Response> refusal = CountBody(came)) return Refuse(std::move(*refusal));
  if (!parser_->is_done()) {
    (void)core_->MarkQuiet(this);  // If its place is gone, it is closed soon.
    return AwaitMore();
  }
  head_.body = std::move(parser_->get().body());
  Dispatch(std::move(head_));
}

void Connection::Dispatch(Request request) {
  state_ = State::kHandling;
  core_->MarkBusy(this);
  read_deadline_ = kNever;
  parser_.reset();
  if (buffer_.size() == 0) buffer_.shrink_to_fit();  // A long answer holds nothing of its request.
  exchange_ = ++last_exchange_;
  auto exchange = std::make_shared<Exchange>(shared_from_this(), core_.get(), exchange_, chunked_);
  const bool is_elsewhere =
      route_->executor && request.body.size() >= route_->executor_min_body_bytes;
  const bool is_small = request.body.size() < route_->quick_body_bytes;
  const std::string client = is_elsewhere ? ClientOf(request) : "";
  std::function<void()> run = [exchange, route = route_, request = std::move(request)]() mutable {
    if (exchange->gone()) return;
    const bool is_large = request.body.size() >= kSmallBodyBytes;
    try {
      route->handler(std::move(request), exchange);
    } catch (const std::exception&) {
      exchange->Respond(ErrorResponse(500, "server_error", "The server failed on this request."));
    }
    if (is_large) exchange->EndBody();
  };
  RawRead();
  if (route_->quick) return run();
  if (is_elsewhere) return route_->executor(client, std::move(run));
  if (is_small && core_->RunQuick(run)) return;
  boost::asio::post(core_->handlers, std::move(run));
}

// A refused body that has come with its head is passed over. What is still to come is not waited
// for: nobody knows if a client that expects a `100 Continue` will send it.
bool Connection::SkipBody() {
  const auto length = parser_->content_length();
  if (!length.has_value() || *length > buffer_.size()) return false;
  buffer_.consume(static_cast<size_t>(*length));
  return true;
}

// Answers without a handler. A body that was not read makes the connection useless.
void Connection::Refuse(Response response, bool is_skipped) {
  // After what is not quite HTTP nobody knows where the next request begins.
  const bool is_whole = is_skipped || (parser_.has_value() && parser_->is_done());
  const bool complete = is_whole && response.status != 400;
  state_ = State::kHandling;
  read_deadline_ = kNever;
  parser_.reset();
  exchange_ = ++last_exchange_;
  keep_alive_ = keep_alive_ && complete;
  unread_body_ = !complete;
  Respond(exchange_, std::move(response));
}

void Connection::ReleaseBody() {
  core_->bodies.Release(client_, std::exchange(body_bytes_, 0));
}

}  // namespace baton::http
