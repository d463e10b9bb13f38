#include "common/http/http_server.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <exception>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/this_thread.h"
#include "common/http/http_connection.h"
#include "common/http/http_core.h"
#include "common/http/listener.h"

namespace baton::http {

using boost::asio::ip::tcp;
using Error = boost::system::error_code;

ServerCore::ServerCore(ServerOptions o, std::vector<Route> r)
    : options(std::move(o)),
      routes(std::move(r)),
      bodies(options.max_total_body_bytes,
             std::max(options.max_total_body_bytes / 4, options.max_body_bytes)),
      places{{.limit = options.max_connections}, {.limit = kSpareConnections}} {}

const Route* ServerCore::FindRoute(const std::string& method, const std::string& path,
                                   std::string* allowed) const {
  for (const Route& route : routes) {
    const std::string_view pattern = route.path;
    const bool match =
        pattern.size() > 2 && pattern.substr(pattern.size() - 2) == "/*"
            ? path.size() >= pattern.size() &&
                  path.compare(0, pattern.size() - 1, pattern, 0, pattern.size() - 1) == 0
            : path == pattern;
    if (!match) continue;
    if (route.method == method) return &route;
    allowed->append(allowed->empty() ? "OPTIONS, " : ", ");
    allowed->append(route.method == "GET" ? "GET, HEAD" : route.method);
  }
  return nullptr;
}

bool ServerCore::RunQuick(const std::function<void()>& task) {
  if (quick_time >= options.max_quick_time) return false;
  if (quick_time == Duration::zero()) {
    boost::asio::post(io, [this] { quick_time = Duration::zero(); });
  }
  const Time begin = SteadyNow();
  task();
  quick_time += std::max(SteadyNow() - begin, Duration(1));
  return true;
}

Admission ServerCore::Admit() {
  for (const bool is_spare : {false, true}) {
    bool has_room = false;
    {
      absl::MutexLock lock(&mutex);
      // Those whose place was given away, and that are not closed yet, have a bound too.
      if (std::ssize(connections) >= options.max_connections + 2 * kSpareConnections) {
        return Admission::kRefused;
      }
      has_room = places[is_spare].taken < places[is_spare].limit;
    }
    if (has_room || CloseQuietest(is_spare)) {
      return is_spare ? Admission::kSpare : Admission::kOrdinary;
    }
  }
  return Admission::kRefused;
}

void ServerCore::Add(const std::shared_ptr<Connection>& connection, bool is_spare) {
  absl::MutexLock lock(&mutex);
  connections[connection.get()] = {.connection = connection, .is_spare = is_spare};
  ++places[is_spare].taken;
}

void ServerCore::Remove(Connection* connection) {
  absl::MutexLock lock(&mutex);
  const auto it = connections.find(connection);
  if (it == connections.end()) return;
  GiveUpPlace(it->second);
  connections.erase(it);
}

void ServerCore::Unlist(Entry& entry) {
  if (!entry.quiet.has_value()) return;
  places[entry.is_spare].quiet.erase(*std::exchange(entry.quiet, std::nullopt));
}

void ServerCore::GiveUpPlace(Entry& entry) {
  Unlist(entry);
  if (std::exchange(entry.has_place, false)) --places[entry.is_spare].taken;
}

bool ServerCore::MarkQuiet(Connection* connection) {
  absl::MutexLock lock(&mutex);
  const auto it = connections.find(connection);
  if (it == connections.end() || !it->second.has_place) return false;
  Unlist(it->second);
  std::list<Connection*>& quiet = places[it->second.is_spare].quiet;
  it->second.quiet = quiet.insert(quiet.end(), connection);
  return true;
}

void ServerCore::MarkBusy(Connection* connection) {
  absl::MutexLock lock(&mutex);
  const auto it = connections.find(connection);
  if (it != connections.end()) Unlist(it->second);
}

bool ServerCore::CloseQuietest(bool is_spare) {
  std::shared_ptr<Connection> connection;
  {
    absl::MutexLock lock(&mutex);
    const std::list<Connection*>& quiet = places[is_spare].quiet;
    if (quiet.empty()) return false;
    Entry& entry = connections.at(quiet.front());
    connection = entry.connection.lock();
    GiveUpPlace(entry);
  }
  // A request that has come meanwhile is answered first.
  if (connection) connection->CloseSoon([](const Connection& c) { return c.is_quiet(); });
  return true;
}

void ServerCore::ForEach(const std::function<void(const std::shared_ptr<Connection>&)>& action) {
  std::vector<std::shared_ptr<Connection>> live;
  {
    absl::MutexLock lock(&mutex);
    for (const auto& [key, entry] : connections) {
      if (auto strong = entry.connection.lock()) live.push_back(std::move(strong));
    }
  }
  for (const auto& connection : live) action(connection);
}

namespace {

// More wait in the kernel's queue, where no time limit runs: each that began shall end in time.
constexpr size_t kMostHandshakeSteps = 128;

class Server : public HttpServer {
 public:
  Server(ServerOptions options, std::vector<Route> routes)
      : core_(std::make_shared<ServerCore>(std::move(options), std::move(routes))),
        listener_(core_->io, {.take = [this](tcp::socket socket) { Take(std::move(socket)); },
                              .make_room = [this] { return MakeRoom(); },
                              .is_behind = [this] { return IsBehind(); }}),
        work_(boost::asio::make_work_guard(core_->io)),
        handler_work_(boost::asio::make_work_guard(core_->handlers)) {}

  ~Server() override { Stop(Duration::zero()); }

  absl::Status Bind() {
    absl::Status status = listener_.Bind(core_->options.host, core_->options.port);
    if (!absl::IsInvalidArgument(status)) return status;
    return absl::InvalidArgumentError(absl::StrCat("HTTP ", status.message()));
  }

  void Start() override {
    boost::asio::post(core_->io, [this] { listener_.Accept(); });
    io_thread_ = Runner(core_->options.io_thread_name, core_->io);
    for (int i = 0; i < core_->options.num_handler_threads; ++i) {
      handler_threads_.push_back(Runner("http-handler", core_->handlers));
    }
  }

  bool Post(std::function<void()> task) override {
    return core_->PostTo(core_->io.get_executor(), std::move(task));
  }

  uint16_t port() const override { return listener_.port(); }

  int num_connections() const override {
    absl::MutexLock lock(&core_->mutex);
    return static_cast<int>(core_->connections.size());
  }

  void BeginDrain() override {
    if (core_->draining.exchange(true)) return;
    boost::asio::post(core_->io, [this] { listener_.Close(); });
    core_->ForEach([](const auto& connection) {
      connection->CloseSoon([](const Connection& c) { return c.is_idle(); });
    });
  }

  void Stop(Duration grace) override {
    if (std::exchange(stopped_, true)) return;
    BeginDrain();
    if (io_thread_.joinable()) {
      absl::MutexLock lock(&core_->mutex);
      core_->mutex.AwaitWithTimeout(absl::Condition(
                                        +[](ServerCore* core) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                                          return core->connections.empty();
                                        },
                                        core_.get()),
                                    absl::FromChrono(grace));
    }
    core_->ForEach([](const auto& connection) {
      connection->CloseSoon([](const Connection&) { return true; });
    });
    handler_work_.reset();
    for (std::thread& thread : handler_threads_) thread.join();
    work_.reset();
    if (io_thread_.joinable()) io_thread_.join();
    {
      absl::MutexLock lock(&core_->stop_mutex);
      core_->stopped = true;
    }
    // What was posted while the threads ended would hold its connection for ever.
    for (bool more = true; more;) {
      core_->handlers.restart();
      core_->io.restart();
      more = Run(core_->handlers) + Run(core_->io) > 0;
    }
  }

 private:
  static std::thread Runner(const std::string& name, boost::asio::io_context& context) {
    return std::thread([name, &context] {
      NameThisThread(name.c_str());
      Run(context);
    });
  }

  // Returns the number of tasks run.
  static size_t Run(boost::asio::io_context& context) {
    size_t tasks = 0;
    for (;;) {
      try {
        return tasks + context.run();
      } catch (const std::exception&) {
        ++tasks;  // A library's exception ends one task, not the server.
      }
    }
  }

  bool MakeRoom() { return core_->CloseQuietest(false) || core_->CloseQuietest(true); }
  bool IsBehind() const { return core_->handshakes.num_waiting() >= kMostHandshakeSteps; }

  void Take(tcp::socket socket) {
    if (core_->draining) return;
    const Admission admission = core_->Admit();
    if (admission == Admission::kRefused) {
      if (!core_->options.tls) Refuse(socket);
      return;
    }
    const bool is_spare = admission == Admission::kSpare;
    auto connection = std::make_shared<Connection>(core_, std::move(socket), is_spare);
    core_->Add(connection, is_spare);
    connection->Start();
  }

  // Best effort: the socket's buffer takes a short answer at once.
  static void Refuse(tcp::socket& socket) {
    static constexpr std::string_view kBusy =
        "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
        "Connection: close\r\n\r\n";
    Error ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(boost::asio::buffer(kBusy.data(), kBusy.size()), ignored);
    socket.shutdown(tcp::socket::shutdown_send, ignored);
    socket.close(ignored);
  }

  const std::shared_ptr<ServerCore> core_;
  Listener listener_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> handler_work_;
  std::thread io_thread_;
  std::vector<std::thread> handler_threads_;
  bool stopped_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Create(ServerOptions options,
                                                               std::vector<Route> routes) {
  auto server = std::make_unique<Server>(std::move(options), std::move(routes));
  if (absl::Status status = server->Bind(); !status.ok()) return status;
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace baton::http
