// The bytes of one HTTP connection through the server's own parser and answers, once whole and
// once cut at drawn points: the handlers see the same requests, the client the same answers.
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/strand.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/http/http_connection.h"
#include "tests/fuzz/fuzz_input.h"

namespace baton::http {
namespace {

constexpr int64_t kMaxBody = 2048;

std::string& Seen() {
  static std::string seen;
  return seen;
}

void CheckRequest(const Request& request) {
  BATON_CHECK(!request.path.empty() && request.path[0] == '/');
  BATON_CHECK(request.path.find('\0') == std::string::npos);
  BATON_CHECK(static_cast<int64_t>(request.body.size()) <= kMaxBody);
  BATON_CHECK(request.method == "GET" || request.method == "POST");
  for (const Header& header : request.headers) {
    BATON_CHECK(!header.name.empty());
    BATON_CHECK((header.name + header.value).find_first_of(std::string_view("\r\n\0", 3)) ==
                std::string::npos);
  }
  Seen() += request.method + "|" + request.path + "|" + request.query + "|" + request.principal +
            "|" + request.body + "|" + std::to_string(request.headers.size()) + "\n";
}

std::vector<Route> Routes() {
  const Handler echo = [](Request request, std::shared_ptr<ResponseWriter> writer) {
    CheckRequest(request);
    writer->Respond({.headers = {{"X-Path", request.path}}, .body = request.body});
  };
  const Handler stream = [](Request request, std::shared_ptr<ResponseWriter> writer) {
    CheckRequest(request);
    writer->StartStream({.body = "first"});
    writer->Write(request.body);
    writer->Finish(request.query == "close");
  };
  const Handler forget = [](Request request, std::shared_ptr<ResponseWriter>) {
    CheckRequest(request);
  };
  return {{"POST", "/echo", echo, true},
          {"POST", "/later", echo},
          {"GET", "/any/*", echo, true},
          {"POST", "/stream", stream},
          {"GET", "/stream", stream, true},
          {"GET", "/forget", forget}};
}

const std::shared_ptr<ServerCore>& Core() {
  static const std::shared_ptr<ServerCore> core = [] {
    ServerOptions options{
        .max_body_bytes = kMaxBody, .max_total_body_bytes = 2 * kMaxBody, .max_header_bytes = 512};
    options.authorize = [](const Request& head) {
      const std::string_view key = head.Find("Authorization");
      Decision decision{.principal = std::string(key)};
      if (key == "no") decision.refusal = ErrorResponse(401, "authentication_error", "No.");
      return decision;
    };
    return std::make_shared<ServerCore>(options, Routes());
  }();
  return core;
}

// Runs what is due, on this thread.
void Settle() {
  for (size_t ran = 1; ran > 0;) {
    Core()->io.restart();
    Core()->handlers.restart();
    ran = Core()->io.poll() + Core()->handlers.poll();
  }
}

class Client {
 public:
  Client() {
    int fds[2];
    BATON_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
    fd_ = fds[0];
    boost::asio::ip::tcp::socket socket(boost::asio::make_strand(Core()->io));
    socket.assign(boost::asio::ip::tcp::v4(), fds[1]);
    auto connection = std::make_shared<Connection>(Core(), std::move(socket), /*is_spare=*/false);
    Core()->Add(connection, /*is_spare=*/false);
    connection->Start();
    connection_ = connection;
  }

  void Send(std::string_view bytes) {
    // What a closed connection does not take is lost.
    (void)!::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    Settle();
  }

  // All that was answered. Nothing of the connection is left behind.
  std::string End() {
    ::shutdown(fd_, SHUT_WR);
    Settle();
    while (Read()) Settle();
    ::close(fd_);
    Settle();
    BATON_CHECK(connection_.expired() && Core()->bodies.total() == 0);
    BATON_CHECK(answers_.empty() || answers_.starts_with("HTTP/1.1 "));
    return std::move(answers_);
  }

 private:
  // False if that was all.
  bool Read() {
    static char buffer[size_t{1} << 18];
    const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
    if (n > 0) answers_.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }

  int fd_ = -1;
  std::weak_ptr<Connection> connection_;
  std::string answers_;
};

struct Played {
  std::string seen;     // By the handlers.
  std::string answers;  // By the client.
  bool Says(std::string_view status) const { return answers.find(status) != std::string::npos; }
  // What was answered before the first refusal.
  std::string_view Accepted() const {
    return std::string_view(answers).substr(0, answers.find("HTTP/1.1 4"));
  }
};

template <typename Piece>
Played Play(std::string_view bytes, Piece piece) {
  Seen().clear();
  Client client;
  while (!bytes.empty()) {
    const std::string_view part = bytes.substr(0, piece());
    client.Send(part);
    bytes.remove_prefix(part.size());
  }
  std::string answers = client.End();
  return {.seen = Seen(), .answers = std::move(answers)};
}

// A refused body that came with its head is passed over, of another the connection ends: what was
// before is the same, and who goes on sees more.
bool AreEqual(const Played& whole, const Played& cut) {
  if (!whole.Says("HTTP/1.1 4") || !cut.Says("HTTP/1.1 4")) {
    return whole.seen == cut.seen && whole.answers == cut.answers;
  }
  return whole.Accepted() == cut.Accepted() && whole.seen.starts_with(cut.seen);
}

void Run(FuzzInput in) {
  std::string cuts(in.Take(4));
  cuts.push_back('\x80');
  // A broken head is refused when it is seen, at the latest at its end: here.
  const std::string bytes = std::string(in.Rest()) + "\r\n\r\n";
  const Played whole = Play(bytes, [&] { return bytes.size(); });
  // Each piece costs system calls: many are for few inputs.
  const size_t max_cuts = cuts[0] % 16 == 0 ? bytes.size() : 12;
  size_t next = 0;
  const Played cut = Play(bytes, [&] {
    if (next == max_cuts) return bytes.size();
    return 1 + size_t{static_cast<uint8_t>(cuts[next++ % cuts.size()])};
  });
  // The parser's limit of a head is not sharp: what comes with the first line counts or does not.
  const bool is_too_large = whole.Says("HTTP/1.1 431 ") || cut.Says("HTTP/1.1 431 ");
  BATON_CHECK(is_too_large || AreEqual(whole, cut));
}

}  // namespace
}  // namespace baton::http

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  baton::http::Run({data, size});
  return 0;
}
