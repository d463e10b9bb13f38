#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "common/http/http_message.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX.

// A small HTTP/1.1 server for the router's API and every process's /metrics and /health. No
// client can hold more of it than the options say, and no bytes from outside can end it.
namespace baton::http {

// Where the answer to one request goes. Thread-safe; every call returns at once. Either Respond, or
// StartStream, Write..., Finish. If the last reference goes away before that, the client gets 500
// (or, within a stream, a closed connection). Calls after the end do nothing.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  virtual void Respond(Response response) = 0;

  // Sends the head; `response.body` is the first piece, if not empty.
  virtual void StartStream(Response response) = 0;
  // Queues a piece for the client. False if the client is gone or so slow that more than
  // `max_queued_bytes` wait for it; then the connection is closed and OnDisconnect told.
  virtual bool Write(std::string piece) = 0;
  // A long answer is made as the client takes it: Write while there is room, then wait for more.
  // True while less than `max_unsent_bytes` waits for the client.
  virtual bool HasRoom() const = 0;
  // `callback` runs once, through Post, as soon as at most half of that waits; never if the client
  // goes away first. At most one at a time, and only within a stream.
  virtual void OnRoom(std::function<void()> callback) = 0;
  // Ends the stream; `close` also ends the connection after it.
  virtual void Finish(bool close) = 0;

  // Closes the connection without an answer.
  virtual void Abort() = 0;

  // `callback` runs once, through Post, if the client goes away before the answer has ended; soon
  // if it already has. At most one callback, set by the handler.
  virtual void OnDisconnect(std::function<void()> callback) = 0;

  // Runs a task on a handler thread: the tasks of one answer one at a time, in order. Dropped once
  // the server has stopped.
  virtual void Post(std::function<void()> task) = 0;
  // From now on Post runs tasks on the I/O thread instead, and at once if called from there, before
  // what others posted: so from one thread at a time. Each must take microseconds. Before the first
  // Post.
  virtual void MakeQuick() = 0;
};

using Handler = std::function<void(Request, std::shared_ptr<ResponseWriter>)>;

// Runs a task soon, on a thread of another owner, or drops it. `client`: whose it is, so that none
// waits for all of another's.
using Executor = std::function<void(const std::string& client, std::function<void()> task)>;

struct Route {
  std::string method;  // "GET" (serves HEAD too) or "POST".
  std::string path;    // Exact, or a prefix if it ends in "/*".
  Handler handler;
  // Runs on the I/O thread: only for handlers that take microseconds (/health).
  bool quick = false;
  // Where the handler runs for bodies of at least so many bytes, so that what takes long is in
  // nobody's way; empty, and for other bodies: on a handler thread.
  Executor executor = nullptr;
  size_t executor_min_body_bytes = 0;
  // The handler of a body of less runs on the I/O thread, if it has little of those to do: handing
  // it over costs as much as it does.
  size_t quick_body_bytes = 0;
};

// What `Authorize` says: an answer to refuse with, or who asks.
struct Decision {
  std::optional<Response> refusal;
  std::string principal;
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0 = any free one.
  std::string io_thread_name = "http-io";
  int num_handler_threads = 2;  // Run the handlers that are not quick, and posted tasks.
  // What handlers of small bodies take of the I/O thread while others wait for it; then they go to
  // a handler thread.
  Duration max_quick_time = std::chrono::milliseconds(1);
  // At the limit the one that was quiet longest is closed for a new one; if a request of each is
  // under way, a few more are taken for what is quick, and get 503 for all else.
  int max_connections = 1024;
  int64_t max_body_bytes = int64_t{4} << 20;
  // That have come, of all requests being read or handled; of one client (a principal, or else an
  // address) a quarter.
  int64_t max_total_body_bytes = int64_t{512} << 20;
  // Of a head; also of the line of a chunk, and of all trailers.
  int64_t max_header_bytes = int64_t{16} << 10;
  int64_t max_queued_bytes = int64_t{1} << 20;         // Per stream, waiting for a slow client.
  int64_t max_unsent_bytes = int64_t{256} << 10;       // Likewise, of one that asks for room.
  // Of all connections; when more waits, one that asks for room has a sixteenth of its own.
  int64_t max_total_unsent_bytes = int64_t{64} << 20;
  Duration idle_timeout = std::chrono::seconds(75);    // Between requests.
  Duration header_timeout = std::chrono::seconds(10);  // First byte to end of headers.
  Duration body_timeout = std::chrono::seconds(60);    // End of headers to end of body.
  // A client takes what waits for it, or `min_bytes_per_second`, within this time.
  Duration write_timeout = std::chrono::seconds(30);
  int64_t min_bytes_per_second = 4096;
  // A stream of events in which nothing was written for so long gets a comment, which clients skip:
  // proxies take a silent connection for a dead one.
  Duration most_silence = std::chrono::seconds(15);
  // What each new connection speaks TLS by, at that moment; empty = plaintext. A handshake has
  // `header_timeout`.
  std::function<std::shared_ptr<ssl_ctx_st>()> tls;
  // Looks at each request before its body is read; empty = everyone may. Must be quick.
  std::function<Decision(const Request& head)> authorize;
};

class HttpServer {
 public:
  // Binds and listens, but answers only after Start. UNAVAILABLE names host and port.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Create(ServerOptions options,
                                                            std::vector<Route> routes);
  virtual ~HttpServer() = default;  // Stops without grace.

  virtual void Start() = 0;
  // Runs a task on the I/O thread, in order, or what is left on the one that is in Stop; false, and
  // it is not run, once the server has stopped.
  virtual bool Post(std::function<void()> task) = 0;
  virtual uint16_t port() const = 0;
  virtual int num_connections() const = 0;

  // Accepts nothing new and closes idle connections; answers under way go on.
  virtual void BeginDrain() = 0;
  // BeginDrain, waits up to `grace` for the answers under way, closes what is left and joins the
  // threads. Idempotent; not from a handler.
  virtual void Stop(Duration grace) = 0;
};

}  // namespace baton::http
