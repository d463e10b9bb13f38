#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/http/http_server.h"
#include "tests/unit/common/http/test_client.h"
#include "tests/unit/common/http/test_tls.h"

namespace baton::http {

using std::chrono::milliseconds;
using Writer = std::shared_ptr<ResponseWriter>;

inline std::vector<Route> TestRoutes() {
  return {
      {"GET", "/health", [](Request, Writer w) { w->Respond({.body = "ok"}); }, true},
      {"POST", "/echo",
       [](Request r, Writer w) { w->Respond({.content_type = "text/plain", .body = r.body}); }},
      {"GET", "/files/*",
       [](Request r, Writer w) { w->Respond({.body = r.path + "|" + r.query}); }},
      {"GET", "/silent", [](Request, Writer) {}},
      {"GET", "/throws", [](Request, Writer) { throw std::runtime_error("secret"); }},
      {"GET", "/who", [](Request r, Writer w) { w->Respond({.body = r.principal}); }},
  };
}

inline std::unique_ptr<HttpServer> StartServer(ServerOptions options = {},
                                               std::vector<Route> routes = TestRoutes()) {
#ifdef BATON_HTTP_OVER_TLS  // The same tests once more.
  static const std::shared_ptr<SSL_CTX> server_tls = NewServerTls();
  static const std::shared_ptr<SSL_CTX> client_tls = NewClientTls();
  signal(SIGPIPE, SIG_IGN);  // The clients' library writes to whoever has gone.
  TestClient::default_tls = client_tls.get();
  if (!options.tls) options.tls = [] { return server_tls; };
#endif
  auto server = HttpServer::Create(std::move(options), std::move(routes));
  EXPECT_TRUE(server.ok()) << server.status();
  (*server)->Start();
  return *std::move(server);
}

// True once no connection is left.
inline bool EmptiesWithin(const HttpServer& server, absl::Duration limit) {
  const absl::Time end = absl::Now() + limit;
  while (server.num_connections() > 0 && absl::Now() < end) absl::SleepFor(absl::Milliseconds(5));
  return server.num_connections() == 0;
}

}  // namespace baton::http
