#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "common/http/http_body.h"
#include "common/http/http_server.h"
#include "common/http/paced_tasks.h"

namespace baton::http {

class Connection;

// Spare connections are those beyond the limit, for what is quick: whether the server lives is told
// however full it is.
enum class Admission { kOrdinary, kSpare, kRefused };
inline constexpr int kSpareConnections = 64;

// What is read of a socket at a time: of a body, and of all else.
inline constexpr size_t kBodyBytes = 64 << 10;
inline constexpr size_t kReadBytes = 16 << 10;

// What the connections of one server share. Lives as long as the last of them: a stream may be
// held by another thread after the server has stopped.
struct ServerCore : std::enable_shared_from_this<ServerCore> {
  ServerCore(ServerOptions o, std::vector<Route> r);

  // Posts work to the server's threads, or drops it if they have ended: false.
  template <typename Executor>
  bool PostTo(const Executor& executor, std::function<void()> task) {
    absl::ReaderMutexLock lock(&stop_mutex);
    if (!stopped) boost::asio::post(executor, std::move(task));
    return !stopped;
  }
  // Runs it here, on the I/O thread, unless such tasks have had their time for now: false.
  bool RunQuick(const std::function<void()>& task);
  bool IsOnIoThread() { return io.get_executor().running_in_this_thread(); }

  // The route of a request; null and the methods that the path has (comma separated, maybe none).
  const Route* FindRoute(const std::string& method, const std::string& path,
                         std::string* allowed) const;

  // What a new connection may be. At a limit it takes the place of the one that was quiet longest.
  Admission Admit();
  void Add(const std::shared_ptr<Connection>& connection, bool is_spare);
  void Remove(Connection* connection);
  // Something came from this connection, and no request of it is under way. False if its place
  // was given away meanwhile.
  bool MarkQuiet(Connection* connection);
  void MarkBusy(Connection* connection);
  // Gives the place of the one that was quiet longest away; false if there is none.
  bool CloseQuietest(bool is_spare);
  // Runs `action` for each live connection, without holding a lock.
  void ForEach(const std::function<void(const std::shared_ptr<Connection>&)>& action);

  const ServerOptions options;
  const std::vector<Route> routes;
  boost::asio::io_context io{1};     // Sockets: many short tasks of one thread.
  boost::asio::io_context handlers;  // Handlers and what they post: may take long.
  PacedTasks handshakes{io};         // Of TLS.
  BodyMeter bodies;
  std::atomic<int64_t> unsent_bytes{0};  // Of all connections.
  // The I/O thread's: what a socket has just given; and since when what waited has had its turn.
  std::array<char, kBodyBytes> read_bytes;
  Duration quick_time{};
  std::atomic<bool> draining{false};

  absl::Mutex mutex;
  struct Entry {
    std::weak_ptr<Connection> connection;
    bool is_spare = false;
    bool has_place = true;                                  // Else it is to be closed.
    std::optional<std::list<Connection*>::iterator> quiet;  // Where in its list.
  };
  struct Places {
    int limit = 0;
    int taken = 0;
    std::list<Connection*> quiet;  // The longest first.
  };
  absl::flat_hash_map<Connection*, Entry> connections ABSL_GUARDED_BY(mutex);
  Places places[2] ABSL_GUARDED_BY(mutex);  // Of ordinary connections, and of spare ones.

  // Held shared while posting, so that nothing is posted to threads that have ended.
  absl::Mutex stop_mutex;
  bool stopped ABSL_GUARDED_BY(stop_mutex) = false;

 private:
  void Unlist(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void GiveUpPlace(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
};

}  // namespace baton::http
