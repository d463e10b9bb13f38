#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/http/http_server.h"
#include "router/generation/generation_service.h"

namespace baton {

struct OpenAiOptions {
  std::string version;                        // Of Baton: /version and system_fingerprint.
  int64_t created = 0;                        // Unix seconds when the model was loaded: /v1/models.
  std::function<int64_t()> unix_seconds;      // Wall clock, for `created` of answers.
  std::function<std::string()> metrics_text;  // Prometheus text for /metrics; empty = none.
  // For templates, /tokenize and what else a large body asks for; empty = the server's handlers.
  http::Executor text_executor;
  // For what operators ask; empty = the server's handlers.
  http::Executor ops_executor;
};

// The OpenAI-compatible HTTP surface as routes of an HttpServer: /v1/completions,
// /v1/chat/completions, /v1/models, /tokenize, /detokenize, /version, /health, /ready, /metrics,
// /status and /audit (JSON for `baton status` and `baton audit`). `service` outlives the server
// that has the routes.
std::vector<http::Route> OpenAiRoutes(OpenAiOptions options, GenerationService* service);

// /health, /ready and /metrics, for a port of their own.
std::vector<http::Route> OpsRoutes(OpenAiOptions options, GenerationService* service);

}  // namespace baton
