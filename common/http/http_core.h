#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/http/http_server.h"

namespace baton::http {

class Connection;

// What the connections of one server share. Lives as long as the last of them: a stream may be
// held by another thread after the server has stopped.
struct ServerCore : std::enable_shared_from_this<ServerCore> {
  ServerCore(ServerOptions o, std::vector<Route> r) : options(std::move(o)), routes(std::move(r)) {}

  // Posts work to the server's threads, or drops it if they have ended.
  template <typename Executor>
  void PostTo(const Executor& executor, std::function<void()> task) {
    absl::ReaderMutexLock lock(&stop_mutex);
    if (!stopped) boost::asio::post(executor, std::move(task));
  }

  // The route of a request; null and the methods that the path has (comma separated, maybe none).
  const Route* FindRoute(const std::string& method, const std::string& path,
                         std::string* allowed) const;

  // Reserves memory for a body. False when all bodies together would be too large.
  bool ReserveBody(int64_t bytes);
  void ReleaseBody(int64_t bytes) { body_bytes -= bytes; }

  void Add(const std::shared_ptr<Connection>& connection);
  void Remove(Connection* connection);
  // Runs `action` for each live connection, without holding a lock.
  void ForEach(const std::function<void(const std::shared_ptr<Connection>&)>& action);

  const ServerOptions options;
  const std::vector<Route> routes;
  boost::asio::io_context io;        // Sockets: many short tasks.
  boost::asio::io_context handlers;  // Handlers and what they post: may take long.
  std::atomic<int64_t> body_bytes{0};
  std::atomic<int64_t> unsent_bytes{0};  // Of all connections.
  std::atomic<bool> draining{false};

  absl::Mutex mutex;
  std::map<Connection*, std::weak_ptr<Connection>> connections ABSL_GUARDED_BY(mutex);

  // Held shared while posting, so that nothing is posted to threads that have ended.
  absl::Mutex stop_mutex;
  bool stopped ABSL_GUARDED_BY(stop_mutex) = false;
};

}  // namespace baton::http
