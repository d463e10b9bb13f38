#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/task_pool.h"
#include "common/http/http_server.h"
#include "common/rpc/cluster_tls.h"
#include "router/admin_service.h"
#include "router/api_keys_watch.h"
#include "router/api_tls.h"
#include "router/config.h"
#include "router/discovery.h"
#include "router/generation/generation_service.h"
#include "router/inference_service.h"
#include "router/openai/openai_api.h"
#include "router/router_metrics.h"
#include "router/router_service.h"

namespace baton {

// A router process, bottom up: node and links to workers, text layer, HTTP and gRPC servers.
class RouterProcess {
 public:
  // Reads the model folder (not its weights), listens and serves. The error names option and cure.
  static absl::StatusOr<std::unique_ptr<RouterProcess>> Start(const RouterConfig& config);
  ~RouterProcess();  // Stops at once.

  // Takes nothing new, waits for what runs (at most the configured limit, or until `hurry` says
  // so), then Stop.
  void Drain(const std::function<bool()>& hurry);

  // Ends what runs with an error, closes all connections, joins all threads. Idempotent.
  void Stop();

 private:
  explicit RouterProcess(const RouterConfig& config) : config_(config) {}
  absl::Status LoadModel();
  void WatchFiles();
  absl::Status StartOps();
  absl::Status StartHttp();
  absl::Status StartGrpc();
  absl::Status StartAdmin();
  void BeginDrain();
  absl::Status Announce();
  OpenAiOptions ApiOptions();
  http::Decision Authorize(const http::Request& head) const;
  http::Decision Authenticate(const http::Request& head) const;

  const RouterConfig config_;
  std::unique_ptr<ClusterTls> tls_;  // Null: plaintext, on loopback.
  Incarnation incarnation_ = 0;
  bool has_chat_template_ = false;
  std::unique_ptr<RouterService> router_;
  std::unique_ptr<Discovery> discovery_;
  std::unique_ptr<RouterMetrics> metrics_;
  std::unique_ptr<GenerationService> generation_;
  std::unique_ptr<ApiTls> api_tls_;  // Null: plaintext.
  std::unique_ptr<ApiKeysWatch> keys_;  // Null: nobody needs one. Tells generation_.
  // What takes long is in nobody's way: answers to operators, and texts.
  TaskPool ops_tasks_{{.name = "ops"}};
  TaskPool text_tasks_{{.name = "text", .num_threads = 2, .nice = 5}};
  std::unique_ptr<http::HttpServer> ops_;
  std::unique_ptr<http::HttpServer> http_;
  std::unique_ptr<InferenceServer> grpc_;
  std::unique_ptr<AdminServer> admin_;  // Null: no certificates.
};

}  // namespace baton
