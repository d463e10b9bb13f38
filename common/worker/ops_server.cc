#include "common/worker/ops_server.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton {

absl::StatusOr<std::unique_ptr<http::HttpServer>> MakeOpsServer(const OpsServerOptions& options) {
  using Writer = std::shared_ptr<http::ResponseWriter>;
  std::vector<http::Route> routes = {
      {.method = "GET",
       .path = "/metrics",
       .handler =
           [text = options.metrics](http::Request, Writer writer) {
             writer->Respond({.content_type = "text/plain; version=0.0.4", .body = text()});
           }},
      {.method = "GET",
       .path = "/health",
       .handler =
           [why = options.why_dead](http::Request, Writer writer) {
             const std::string dead = why();
             writer->Respond(
                 {.status = dead.empty() ? 200 : 503,
                  .body = absl::StrCat("{\"status\":\"", dead.empty() ? "alive" : dead, "\"}\n")});
           },
       .quick = true}};
  http::ServerOptions server;
  server.host = options.host;
  server.port = static_cast<uint16_t>(options.port);
  server.num_handler_threads = 1;
  server.max_connections = 64;
  auto made = http::HttpServer::Create(std::move(server), std::move(routes));
  if (made.ok()) return made;
  return absl::Status(made.status().code(),
                      absl::StrCat("--metrics-port ", options.port, ": ", made.status().message(),
                                   "; choose a free port, or 0"));
}

}  // namespace baton
