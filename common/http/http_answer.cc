#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/http/http_connection.h"

// The writing half of Connection: answers, streams, and the end.
namespace baton::http {

namespace {

// A refused client may still be sending: it is listened to this long, so that it gets the answer
// instead of a reset.
constexpr Duration kLingerTimeout = std::chrono::seconds(2);
constexpr std::string_view kEventStream = "text/event-stream";

// Header values must not end their line.
void AppendHeader(std::string& head, std::string_view name, std::string_view value) {
  head.append(name).append(": ");
  for (const char c : value) head.push_back(c == '\r' || c == '\n' || c == '\0' ? ' ' : c);
  head.append("\r\n");
}

}  // namespace

void Connection::WriteHead(const Response& response, std::string_view framing) {
  std::string head =
      absl::StrFormat("HTTP/1.1 %d %s\r\n", response.status, ReasonPhrase(response.status));
  if (response.status != 204) AppendHeader(head, "Content-Type", response.content_type);
  for (const Header& header : response.headers) AppendHeader(head, header.name, header.value);
  head.append(framing);
  AppendHeader(head, "Connection", keep_alive_ ? "keep-alive" : "close");
  head.append("\r\n");
  Enqueue(head);
}

void Connection::Respond(uint64_t id, Response response) {
  if (id != exchange_ || streaming_) return;
  keep_alive_ = keep_alive_ && !core_->draining && !is_spare_;
  WriteHead(response, response.status == 204
                          ? std::string()
                          : absl::StrFormat("Content-Length: %d\r\n", response.body.size()));
  if (!head_only_ && response.status != 204) Enqueue(response.body);
  EndAnswer(/*close=*/false);
}

void Connection::BeginStream(uint64_t id, Response response) {
  if (id != exchange_ || streaming_) return;
  // Without chunks only the end of the connection ends the answer.
  keep_alive_ = keep_alive_ && chunked_ && !core_->draining && !is_spare_;
  streaming_ = true;
  WriteHead(response, chunked_ ? "Transfer-Encoding: chunked\r\n" : "");
  if (!response.content_type.starts_with(kEventStream)) return;
  silence_deadline_ = last_written_ + core_->options.most_silence;
  Schedule();
}

// Many writes have moved the deadline on without it.
void Connection::BreakSilence(Time now) {
  if (now - last_written_ >= core_->options.most_silence) {
    if (!writing_ && !head_only_) Enqueue(chunked_ ? "3\r\n:\n\n\r\n" : ":\n\n");
    last_written_ = now;  // Also if an earlier piece is still waiting.
  }
  silence_deadline_ = last_written_ + core_->options.most_silence;
}

bool Connection::Reserve(size_t bytes) {
  if (gone_ || queued_bytes_ > core_->options.max_queued_bytes) return false;
  CountQueued(static_cast<int64_t>(bytes));
  return true;
}

void Connection::CountQueued(int64_t bytes) {
  queued_bytes_ += bytes;
  core_->unsent_bytes += bytes;
}

// What may wait for this client.
int64_t Connection::Room() const {
  const ServerOptions& o = core_->options;
  const bool is_tight = core_->unsent_bytes >= o.max_total_unsent_bytes;
  return is_tight ? o.max_unsent_bytes / 16 : o.max_unsent_bytes;
}

void Connection::Continue(uint64_t id, std::string framed) {
  CountQueued(-static_cast<int64_t>(framed.size()));  // Enqueue counts them.
  if (id == exchange_ && streaming_ && !head_only_) Enqueue(framed);
}

void Connection::EndStream(uint64_t id, bool close) {
  if (id != exchange_ || !streaming_) return;
  if (chunked_ && !head_only_) Enqueue("0\r\n\r\n");
  EndAnswer(close);
  if (!writing_) AfterAnswer();  // The end has no bytes, and all before it are written.
}

void Connection::EndAnswer(bool close) {
  exchange_ = 0;
  silence_deadline_ = kNever;
  on_disconnect_ = nullptr;
  on_room_ = nullptr;
  streaming_ = false;
  keep_alive_ = keep_alive_ && !close;
  answer_complete_ = true;
  ReleaseBody();
}

void Connection::AbortExchange(uint64_t id) {
  if (id == exchange_) Close();
}

void Connection::AbandonExchange(uint64_t id) {
  if (id != exchange_) return;
  if (streaming_) return Close();
  Respond(id, ErrorResponse(500, "server_error", "The server did not answer this request."));
}

void Connection::EndBody(uint64_t id) {
  if (id == exchange_) ReleaseBody();
}

void Connection::WatchDisconnect(uint64_t id, std::function<void()> callback) {
  if (id != exchange_ || peer_closed_) return callback();
  on_disconnect_ = std::move(callback);
}

void Connection::AwaitRoom(uint64_t id, std::function<void()> callback) {
  if (id != exchange_ || !streaming_) return;
  on_room_ = std::move(callback);
  TellOfRoom();
}

void Connection::TellOfRoom() {
  if (on_room_ && queued_bytes_ <= Room() / 2) std::exchange(on_room_, nullptr)();
}

void Connection::Enqueue(std::string_view bytes) {
  if (state_ == State::kClosed) return;
  queue_.append(bytes);
  last_written_ = SteadyNow();
  CountQueued(static_cast<int64_t>(bytes.size()));
  if (!writing_) {
    writing_ = true;
    // What else this task has to say goes into the same write.
    boost::asio::post(stream_.get_executor(), [self = shared_from_this()] { self->WriteSome(); });
  }
}

// Until all is written, or the client takes no more.
void Connection::WriteSome() {
  while (state_ != State::kClosed) {
    if (sent_ == sending_.size()) {
      sent_ = 0;
      sending_.clear();
      sending_.swap(queue_);
    }
    if (sending_.empty()) {
      writing_ = false;
      owed_bytes_.reset();
      write_deadline_ = kNever;
      return AfterAnswer();
    }
    Error error;
    const size_t bytes = stream_.WriteSome(
        boost::asio::buffer(sending_.data() + sent_, sending_.size() - sent_), error);
    if (error == boost::asio::error::would_block) return AwaitWritable();
    if (error) return Close();
    CountQueued(-static_cast<int64_t>(bytes));
    sent_ += bytes;
    if (owed_bytes_) *owed_bytes_ -= static_cast<int64_t>(bytes);
    TellOfRoom();
  }
}

void Connection::AwaitWritable() {
  if (owed_bytes_.value_or(0) <= 0) {
    const ServerOptions& o = core_->options;
    owed_bytes_ = 1 + o.min_bytes_per_second *
                          std::chrono::duration_cast<std::chrono::milliseconds>(o.write_timeout)
                              .count() / 1000;
    write_deadline_ = SteadyNow() + o.write_timeout;
    Schedule();
  }
  stream_.AsyncWaitWrite([self = shared_from_this()](Error error) {
    error ? self->Close() : self->WriteSome();
  });
}

// Nothing is left to write.
void Connection::AfterAnswer() {
  if (!std::exchange(answer_complete_, false)) return;
  // One long answer must not keep its buffers for the life of the connection.
  std::string().swap(sending_);
  if (keep_alive_) return WaitForRequest();
  if (unread_body_) return Linger();
  stream_.ShutdownSend();  // Over TLS the client shall know that this was all.
  Close();
}

void Connection::Linger() {
  if (peer_closed_) return Close();
  state_ = State::kLinger;
  stream_.ShutdownSend();
  read_deadline_ = SteadyNow() + kLingerTimeout;
  buffer_.clear();
  RawRead();
}

void Connection::OnPeerClosed() {
  peer_closed_ = true;
  if (on_disconnect_) std::exchange(on_disconnect_, nullptr)();
}

void Connection::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  gone_ = true;
  exchange_ = 0;
  stream_.Close();
  looks_at_ = kNever;
  timer_.cancel();
  on_room_ = nullptr;
  OnPeerClosed();
  ReleaseBody();
  core_->Remove(this);
}

}  // namespace baton::http
