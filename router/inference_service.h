#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "router/front/grpc_front.h"
#include "router/generation/generation_service.h"

namespace baton {

namespace v1 {
class GenerateRequest;
}

// What a client sent, as the text layer takes it; its limits are not looked at. INVALID_ARGUMENT
// without an input.
absl::StatusOr<GenerationRequest> ReadGenerateRequest(const v1::GenerateRequest& from);

// Of a request, as of a body over HTTP.
inline constexpr int kMaxRequestBytes = 4 << 20;

struct InferenceServerOptions {
  // Port, TLS and limits of connections; `serve` is set here.
  GrpcFrontOptions front;
  int max_streams_per_connection = 100;
  // For a client to answer a ping: no busy second of this process shall end a connection.
  Duration ping_limit = std::chrono::seconds(5);
  // Of the library, for what clients send and do not take: messages are read before anything of
  // ours is asked. Beyond it connections and calls end.
  int64_t max_library_bytes = int64_t{512} << 20;
  int num_threads = 2;  // For small prompts and detokenizing.
  // Runs what takes long: templates, Tokenize and large prompts; empty = those threads.
  std::function<void(const std::string& client, std::function<void()> task)> text_executor;
  bool has_chat_template = false;
  // A client that has not taken an event for so long has given the call up.
  Duration write_timeout = std::chrono::seconds(30);
  // The tenant of an `authorization` value, or why it is not allowed. Empty = everyone may.
  std::function<absl::StatusOr<std::string>(std::string_view authorization)> authorize;
};

// baton.v1.Inference on the router: generation over gRPC, with health and reflection. Health of
// the service "" is liveness, of "baton.v1.Inference" readiness. Thread-safe.
class InferenceServer {
 public:
  // `service` outlives this.
  InferenceServer(InferenceServerOptions options, GenerationService* service);
  ~InferenceServer();  // Shuts down at once.

  // UNAVAILABLE names --grpc-port and the cure.
  absl::Status Start();
  int port() const { return front().port(); }

  const GrpcFront& front() const;  // After Start.

  // What the health of "baton.v1.Inference" says; after Start.
  void SetReady(bool ready);

  // Takes no new call; those still open after `grace` are cancelled. Idempotent.
  void Shutdown(Duration grace);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton
