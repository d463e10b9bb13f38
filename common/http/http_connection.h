#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/http/http_core.h"
#include "common/http/http_stream.h"

namespace baton::http {

// One accepted socket: reads a request, hands it to its handler, writes the answer, and again.
// While an answer is under way it keeps reading, to notice that the client has gone; what it reads
// is the beginning of the next request. All members are used on the server's I/O thread, except
// those marked otherwise.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // A spare one serves what is quick, one request, however full the server is.
  Connection(std::shared_ptr<ServerCore> core, boost::asio::ip::tcp::socket socket, bool is_spare);
  ~Connection();

  // Any thread.
  void Start();
  // If `which` holds then; it is asked on the I/O thread.
  void CloseSoon(std::function<bool(const Connection&)> which);
  void Post(std::function<void()> task);
  // At once if this is the I/O thread.
  template <typename Task>
  void Run(Task task) {
    core_->IsOnIoThread() ? task() : Post(std::move(task));
  }
  bool gone() const { return gone_; }

  // Any thread: counts bytes against the queue's bound; false if it is full or the client gone.
  bool Reserve(size_t bytes);
  bool HasRoom() const { return !gone_ && queued_bytes_ < Room(); }

  // On the I/O thread. Nothing has come of the next request; no request is under way.
  bool is_idle() const { return IsBetweenRequests() && buffer_.size() == 0; }
  bool is_quiet() const { return state_ != State::kHandling; }

  // On the I/O thread, for the exchange `id`; ignored unless it is the one under way.
  void Respond(uint64_t id, Response response);
  void BeginStream(uint64_t id, Response response);
  void Continue(uint64_t id, std::string framed);  // Reserved before.
  void EndStream(uint64_t id, bool close);
  void AbortExchange(uint64_t id);
  void AbandonExchange(uint64_t id);
  void EndBody(uint64_t id);  // The handler has returned: nothing of it is held any more.
  void WatchDisconnect(uint64_t id, std::function<void()> callback);  // Must be short.
  void AwaitRoom(uint64_t id, std::function<void()> callback);        // Must be short.

 private:
  using Error = boost::system::error_code;
  using Parser = boost::beast::http::request_parser<GrowingBody>;
  enum class State { kHandshake, kIdle, kHeader, kBody, kHandling, kLinger, kClosed };

  bool IsBetweenRequests() const { return state_ == State::kHandshake || state_ == State::kIdle; }
  void ShakeHands();
  void WaitForRequest();
  void RawRead();
  void OnReadable(Error error);
  void BeginRequest();
  void ReadHead();
  size_t Parse(boost::system::error_code& error);
  void OnHead();
  void AwaitMore();
  std::optional<Response> CheckHead(Request& head);
  std::optional<Response> PrepareBody(const Request& head);
  void ReadBody();
  std::string ClientOf(const Request& head);
  std::optional<Response> CountBody(int64_t bytes);
  void Dispatch(Request request);
  bool SkipBody();
  void Refuse(Response response, bool is_skipped = false);
  void OnParseError(Error error);

  void WriteHead(const Response& response, std::string_view framing);
  void EndAnswer(bool close);
  void BreakSilence(Time now);
  void Enqueue(std::string_view bytes);
  void WriteSome();
  void AwaitWritable();
  void TellOfRoom();
  void CountQueued(int64_t bytes);
  int64_t Room() const;
  void AfterAnswer();
  void Linger();
  void OnPeerClosed();
  void Close();

  // To be called where a deadline may have become earlier.
  void Schedule();
  void OnTimer();
  void ReleaseBody();

  const std::shared_ptr<ServerCore> core_;
  HttpStream stream_;
  boost::asio::steady_timer timer_;
  Time looks_at_ = kNever;  // When the timer looks at the deadlines.
  // The connection ends.
  Time read_deadline_ = kNever;
  Time write_deadline_ = kNever;
  Time silence_deadline_ = kNever;  // A stream of events says that it lives.
  Time last_written_{};
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  size_t head_room_ = 0;      // What may still come of a head, or of the lines around a chunk.
  size_t checked_bytes_ = 0;  // Of buffer_, that hold no bare line feed.
  Request head_;              // Of the body that is being read.
  const Route* route_ = nullptr;
  State state_ = State::kIdle;
  bool read_pending_ = false;
  bool unread_body_ = false;  // Refused before all of it came.
  bool peer_closed_ = false;  // It sends no more; most likely it is gone.
  int64_t lingered_bytes_ = 0;
  const bool is_spare_;
  std::string address_;  // Once it was asked for.
  std::string client_;   // Whose bodies are counted together.
  int64_t body_bytes_ = 0;

  uint64_t last_exchange_ = 0;
  uint64_t exchange_ = 0;  // The one under way; 0 = none.
  std::function<void()> on_disconnect_;
  std::function<void()> on_room_;
  bool head_only_ = false;
  bool keep_alive_ = false;
  bool chunked_ = false;
  bool streaming_ = false;
  bool answer_complete_ = false;

  std::string queue_;  // To be written after `sending_`.
  std::string sending_;
  size_t sent_ = 0;  // Of `sending_`.
  bool writing_ = false;
  std::optional<int64_t> owed_bytes_;  // To be taken before write_deadline_, if any.

  std::atomic<int64_t> queued_bytes_{0};  // Any thread.
  std::atomic<bool> gone_{false};         // Any thread; written on the I/O thread.
};

}  // namespace baton::http
