#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/http/http_server.h"

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
