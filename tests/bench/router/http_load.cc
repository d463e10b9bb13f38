// Requests in open loop: each is sent when it is due, however many are unanswered. One thread, so
// that it fits beside what is measured; says how late it was itself. Results as JSON.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "tests/bench/router/http_answer_reader.h"

namespace baton::bench {
namespace {

struct Options {
  int port = 0;
  std::string path = "/v1/completions";
  std::string bodies;      // File: one body a line, taken in turn.
  std::string authorization;
  double rate = 100;       // Per second, at random times; 0 = all at once.
  int requests = 100;
  int64_t first = 0;       // Number of the first request, see kNumber.
  double wait_s = 30;      // For answers, after the last request.
};

// In a body: the number of the request, so that requests from one line differ.
constexpr absl::string_view kNumber = "@@";

// A connection, and the request on it.
struct Connection {
  explicit Connection(int f) : fd(f) {}
  ~Connection() { close(fd); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const int fd;
  bool busy = false;
  std::string unsent;
  size_t sent = 0;
  HttpAnswerReader answer;
  double due = 0;         // When it was to be sent.
  double last_event = 0;  // 0: none yet.
  double longest = 0;     // Between two events.
};

double Seconds(Time time) { return ToSeconds(time.time_since_epoch()); }

double Percentile(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<int64_t>(share * (values.size() - 1) + 0.5);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

nlohmann::json Percentiles(std::vector<double>& values) {
  return {{"p50", 1e3 * Percentile(values, 0.5)},
          {"p99", 1e3 * Percentile(values, 0.99)},
          {"max", 1e3 * Percentile(values, 1)}};
}

class Load {
 public:
  explicit Load(const Options& options) : options_(options), poll_(epoll_create1(0)) {
    std::ifstream file(options.bodies);
    for (std::string line; std::getline(file, line);) bodies_.push_back(std::move(line));
    BATON_CHECK(!bodies_.empty());
  }

  void Run() {
    MakeArrivals();
    const double start = Seconds(SteadyNow());
    last_due_ = start + arrivals_.back();
    const double give_up = last_due_ + options_.wait_s;
    size_t next = 0;
    for (double now = start; now < give_up && (next < arrivals_.size() || num_busy_ > 0);
         now = Seconds(SteadyNow())) {
      for (; next < arrivals_.size() && start + arrivals_[next] <= now; ++next) {
        Send(start + arrivals_[next],
             absl::StrReplaceAll(bodies_[next % bodies_.size()],
                                 {{kNumber, absl::StrCat(options_.first + next)}}));
      }
      const double until = next < arrivals_.size() ? start + arrivals_[next] : give_up;
      Poll(until);
    }
    seconds_ = Seconds(SteadyNow()) - start;
  }

  nlohmann::json Result() {
    return {{"sent", options_.requests},
            {"status", by_status_},
            {"broken", num_broken_},
            {"unanswered", num_busy_},
            {"within", num_within_},
            {"window_s", arrivals_.back()},
            {"events", num_events_},
            {"seconds", seconds_},
            {"most_open", most_open_},
            {"ttft_ms", Percentiles(ttft_)},
            {"gap_ms", Percentiles(gaps_)},
            {"longest_gap_ms", Percentiles(longest_)},
            {"request_ms", Percentiles(whole_)},
            {"late_ms", Percentiles(late_)}};
  }

 private:
  // A Poisson process, the same in each run.
  void MakeArrivals() {
    Random random(1);
    double at = 0;
    for (int i = 0; i < options_.requests; ++i) {
      arrivals_.push_back(at);
      const double uniform = (random.Below(1 << 30) + 1.0) / (1 << 30);
      if (options_.rate > 0) at -= std::log(uniform) / options_.rate;
    }
  }

  void Send(double due, const std::string& body) {
    Connection* connection = Take();
    if (connection == nullptr) {
      ++num_broken_;
      return;
    }
    connection->busy = true;
    connection->due = due;
    connection->last_event = connection->longest = 0;
    connection->answer = {};
    connection->sent = 0;
    connection->unsent = absl::StrCat(
        "POST ", options_.path, " HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n",
        options_.authorization.empty() ? ""
                                       : absl::StrCat("Authorization: Bearer ",
                                                      options_.authorization, "\r\n"),
        "Content-Length: ", body.size(), "\r\n\r\n", body);
    most_open_ = std::max(most_open_, ++num_busy_);
    late_.push_back(Seconds(SteadyNow()) - due);
    Write(*connection);
  }

  // One that is free, or a new one; null if there is none to be had.
  Connection* Take() {
    if (!free_.empty()) {
      Connection* connection = free_.back();
      free_.pop_back();
      return connection;
    }
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return nullptr;
    auto connection = std::make_unique<Connection>(fd);
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(options_.port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) < 0 && errno != EINPROGRESS) {
      return nullptr;
    }
    epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data = {.fd = fd}};
    epoll_ctl(poll_, EPOLL_CTL_ADD, fd, &event);
    Connection* raw = connection.get();
    connections_[fd] = std::move(connection);
    return raw;
  }

  void Poll(double until) {
    epoll_event events[256];
    const double wait = std::clamp(until - Seconds(SteadyNow()), 0.0, 1.0);
    const timespec limit = {.tv_sec = static_cast<time_t>(wait),
                            .tv_nsec = static_cast<int64_t>(std::fmod(wait, 1.0) * 1e9)};
    const int num = epoll_pwait2(poll_, events, std::size(events), &limit, nullptr);
    for (int i = 0; i < num; ++i) {
      const auto it = connections_.find(events[i].data.fd);
      if (it == connections_.end()) continue;
      Connection& connection = *it->second;
      if ((events[i].events & EPOLLOUT) != 0) Write(connection);
      if ((events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) Read(connection);
    }
  }

  // What the socket does not take now it takes at the next event.
  void Write(Connection& connection) {
    while (connection.sent < connection.unsent.size()) {
      const ssize_t num = send(connection.fd, connection.unsent.data() + connection.sent,
                               connection.unsent.size() - connection.sent, MSG_NOSIGNAL);
      if (num <= 0) return;
      connection.sent += num;
    }
  }

  void Read(Connection& connection) {
    static char buffer[256 << 10];
    while (true) {
      const ssize_t num = recv(connection.fd, buffer, sizeof(buffer), 0);
      if (num < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (num <= 0 || !connection.busy) return Drop(connection);
      if (!Take(connection, {buffer, static_cast<size_t>(num)})) return Drop(connection);
    }
  }

  // False when the connection is of no further use.
  bool Take(Connection& connection, std::string_view bytes) {
    const int64_t before = connection.answer.num_events();
    if (!connection.answer.Take(bytes)) return false;
    const double now = Seconds(SteadyNow());
    const int64_t fresh = connection.answer.num_events() - before;
    if (fresh > 0) {
      const bool is_first = connection.last_event == 0;
      const double since = is_first ? connection.due : connection.last_event;
      (is_first ? ttft_ : gaps_).push_back(now - since);
      if (!is_first) connection.longest = std::max(connection.longest, now - since);
      connection.last_event = now;
      num_events_ += fresh;
    }
    if (!connection.answer.done()) return true;
    ++by_status_[std::to_string(connection.answer.status())];
    if (connection.answer.status() == 200) {
      whole_.push_back(now - connection.due);
      longest_.push_back(connection.longest);
      if (now <= last_due_) ++num_within_;
    }
    connection.busy = false;
    --num_busy_;
    if (connection.answer.closes()) return false;
    free_.push_back(&connection);
    return true;
  }

  void Drop(Connection& connection) {
    if (connection.busy) {
      ++num_broken_;
      --num_busy_;
    }
    std::erase(free_, &connection);
    connections_.erase(connection.fd);
  }

  const Options options_;
  const int poll_;
  std::vector<std::string> bodies_;
  std::vector<double> arrivals_;  // From the start, seconds.
  std::map<int, std::unique_ptr<Connection>> connections_;  // By file.
  std::vector<Connection*> free_;
  std::map<std::string, int> by_status_;
  int num_busy_ = 0, most_open_ = 0, num_broken_ = 0;
  int64_t num_events_ = 0;
  double seconds_ = 0, last_due_ = 0;
  int num_within_ = 0;  // 200, before the last request was sent.
  std::vector<double> ttft_, gaps_, longest_, whole_, late_;
};

// Each open request has a connection.
void RaiseFileLimit() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  CLI::App app("HTTP requests in open loop");
  baton::bench::Options options;
  app.add_option("--port", options.port, "Of 127.0.0.1")->required();
  app.add_option("--path", options.path)->capture_default_str();
  app.add_option("--bodies", options.bodies, "File with a body a line")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--key", options.authorization, "API key");
  app.add_option("--rate", options.rate, "Per second; 0 = all at once")->capture_default_str();
  app.add_option("--requests", options.requests)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--first", options.first, "Number of the first request: what @@ in bodies becomes")
      ->capture_default_str();
  app.add_option("--wait-s", options.wait_s, "For answers after the last request")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  baton::bench::RaiseFileLimit();
  baton::bench::Load load(options);
  load.Run();
  std::printf("%s\n", load.Result().dump().c_str());
  return 0;
}
