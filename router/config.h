#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace baton {

// The options of baton-router. Plain values; units last in names.
struct RouterConfig {
  std::string model;  // Folder: config.json, tokenizer, generation_config.json; no weights needed.
  std::string served_model_name;  // Empty = the folder's name.
  int max_model_len = 0;          // Tokens of prompt and answer; 0 = what the model supports.

  // "host:port" of the gRPC server of a worker, or "dns:///NAME:PORT" of all workers at the
  // addresses that the name resolves to, again and again.
  std::vector<std::string> prefill;
  std::vector<std::string> decode;
  std::string policy = "prefix_affinity";

  std::string host = "127.0.0.1";  // Beyond loopback with TLS to workers and API keys only.
  std::string tls_dir;             // To workers, as ReadTlsFiles; empty = plaintext, on loopback.
  std::string api_tls_dir;         // Of the API, as ReadServerPair; empty = plaintext.
  bool api_plaintext = false;      // Beyond loopback: something before this router ends TLS.
  int http_port = 8000;            // 0 = any free one.
  int grpc_port = 8001;            // 0 = any free one.
  // Health, readiness and metrics; 0 = any free one. Absent = 9090, or any if the API's is any.
  std::optional<int> ops_port;
  // What operators ask, by an admin's certificate; with tls_dir only. As ops_port, 7000.
  std::optional<int> admin_port;
  std::string api_keys_file;       // See api_keys.h; empty = no key is asked for.

  // The admission queue: what waits for workers. Beyond a cap requests are refused at once.
  int64_t max_queued_requests = 4096;
  int64_t max_queued_tokens = 16 << 20;
  int64_t max_queued_bytes = 256 << 20;
  int max_queue_wait_s = 10;  // Who would wait for longer is refused at once; 0 = nobody is.
  int64_t max_unread_bytes = 256 << 20;  // Of answers: made, and not taken by their readers.
  int request_timeout_s = 3600;  // From arrival to the last token.
  int max_connections = 16384;      // HTTP.
  int max_requests_per_tenant = 0;  // At a time, waiting or running; 0 = no limit. See api_keys.h.

  int drain_timeout_s = 30;  // After SIGTERM, for what runs.
  std::string ready_file;    // Written once listening; empty = none.
  std::string log_level = "info";

  int AdminPort() const { return admin_port.value_or(http_port == 0 ? 0 : 7000); }
  int OpsPort() const { return ops_port.value_or(http_port == 0 ? 0 : 9090); }

  // INVALID_ARGUMENT names the option, its value and the cure.
  absl::Status Validate() const;
};

// Reads the command line into `config`. Absent: go on. Else the exit code (help, or an error that
// was printed).
std::optional<int> ParseRouterCommandLine(int argc, char** argv, RouterConfig* config);

}  // namespace baton
