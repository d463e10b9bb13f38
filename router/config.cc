#include "router/config.h"

#include <CLI/CLI.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/process/command_line.h"
#include "common/telemetry/log.h"
#include "router/dns_name.h"
#include "router/routing/routing_policy.h"
#include "router/worker_roster.h"

namespace baton {
namespace {

// An address, or a name. Without TLS only of loopback; what a name resolves to is held to that too.
absl::Status CheckWorker(const char* option, const std::string& value, bool has_tls) {
  std::string host;
  if (absl::StartsWith(value, "dns:/")) {
    const absl::StatusOr<DnsName> name = ParseDnsName(option, value);
    RETURN_IF_ERROR(name.status());
    host = name->host;
  } else {
    RETURN_IF_ERROR(CheckAddress(option, value));
    host = value.substr(0, value.rfind(':'));
  }
  if (has_tls || IsLoopback(host)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, " ", value, ": beyond loopback --tls-dir is needed, so that prompts are "
                   "not sent to whoever answers there"));
}

absl::Status CheckWorkers(const RouterConfig& config) {
  if (config.prefill.empty() || config.decode.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.prefill.empty() ? "--prefill" : "--decode",
                     " is missing: give the address of at least one worker of each kind"));
  }
  if (config.prefill.size() + config.decode.size() > WorkerRoster::kMaxWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prefill and --decode: at most ", WorkerRoster::kMaxWorkers, " workers"));
  }
  std::set<std::string> seen;
  for (const auto* list : {&config.prefill, &config.decode}) {
    const char* option = list == &config.prefill ? "--prefill" : "--decode";
    for (const std::string& address : *list) {
      RETURN_IF_ERROR(CheckWorker(option, address, !config.tls_dir.empty()));
      if (!seen.insert(address).second) {
        return absl::InvalidArgumentError(
            absl::StrCat(option, " ", address, ": is given twice; name each worker once"));
      }
    }
  }
  return absl::OkStatus();
}

// What stands between the API and the network.
absl::Status CheckApi(const RouterConfig& config) {
  RETURN_IF_ERROR(CheckHost(config.host, !config.tls_dir.empty()));
  if (config.api_plaintext && !config.api_tls_dir.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--api-plaintext with --api-tls-dir ", config.api_tls_dir, ": say one of them"));
  }
  if (IsLoopback(config.host)) return absl::OkStatus();
  if (config.api_keys_file.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--host ", config.host, ": beyond loopback --api-keys-file is needed; or use 127.0.0.1"));
  }
  if (!config.api_plaintext && config.api_tls_dir.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--host ", config.host,
        ": beyond loopback --api-tls-dir is needed; or put a proxy before the API that has TLS, "
        "and say --api-plaintext"));
  }
  return absl::OkStatus();
}

void AddServing(CLI::App& app, RouterConfig& c) {
  app.add_option("--model", c.model, "Model folder in Hugging Face layout; weights are not read")
      ->group("Model");
  app.add_option("--served-model-name", c.served_model_name, "Name in the API (default: folder)")
      ->group("Model");
  app.add_option("--max-model-len", c.max_model_len,
                 "Tokens of prompt and answer together; 0 = what the model supports")
      ->group("Model")
      ->capture_default_str();
  app.add_option("--prefill", c.prefill,
                 "host:port of a prefill worker, or dns:///name:port of any number; repeatable")
      ->group("Workers");
  app.add_option("--decode", c.decode,
                 "host:port of a decode worker, or dns:///name:port of any number; repeatable")
      ->group("Workers");
  app.add_option("--policy", c.policy, "prefix_affinity or least_loaded")
      ->group("Workers")
      ->capture_default_str();
  app.add_option("--host", c.host,
                 "IPv4 address to listen on; beyond loopback with --tls-dir, --api-keys-file and "
                 "--api-tls-dir or --api-plaintext only")
      ->group("Network")
      ->capture_default_str();
  app.add_option("--tls-dir", c.tls_dir,
                 "Folder of tls.key, tls.crt and ca.crt: mutual TLS to workers. Read again each "
                 "second")
      ->group("Network");
  app.add_option("--api-tls-dir", c.api_tls_dir,
                 "Folder of tls.key and tls.crt: TLS of the API, HTTP and gRPC. Read again each "
                 "second")
      ->group("Network");
  app.add_flag("--api-plaintext", c.api_plaintext,
               "Serve the API beyond loopback without TLS, behind a proxy that has it")
      ->group("Network");
  app.add_option("--http-port", c.http_port, "Port of the OpenAI-compatible API; 0 = any")
      ->group("Network")
      ->capture_default_str();
  app.add_option("--grpc-port", c.grpc_port, "Port of gRPC Inference; 0 = any")
      ->group("Network")
      ->capture_default_str();
  app.add_option("--ops-port", c.ops_port,
                 "Port of /health, /ready and /metrics; 0 = any (default: 9090, or any if "
                 "--http-port is)")
      ->group("Network");
  app.add_option("--admin-port", c.admin_port,
                 "Port of `baton status` and `baton audit` by an admin's certificate, where there "
                 "is --tls-dir; 0 = any (default: 7000, or any if --http-port is)")
      ->group("Network");
  app.add_option("--api-keys-file", c.api_keys_file,
                 "Lines of TENANT and SHA-256 of a key in hex, by `baton keys`; read again each "
                 "second (default: no key is asked for)")
      ->group("Network");
}

void AddLimits(CLI::App& app, RouterConfig& c) {
  app.add_option("--max-queued-requests", c.max_queued_requests, "Requests waiting for workers")
      ->group("Limits")
      ->capture_default_str();
  app.add_option("--max-queued-tokens", c.max_queued_tokens, "Prompt tokens of those")
      ->group("Limits")
      ->capture_default_str();
  app.add_option("--max-queued-bytes", c.max_queued_bytes, "Body bytes of those")
      ->group("Limits")
      ->capture_default_str();
  app.add_option("--max-queue-wait-s", c.max_queue_wait_s,
                 "A request that would wait for workers for longer gets 503 at once; 0 = none does")
      ->group("Limits")
      ->capture_default_str();
  app.add_option("--max-unread-bytes", c.max_unread_bytes,
                 "Of answers that readers have not taken, and log probabilities to come")
      ->group("Limits")
      ->capture_default_str();
  app.add_option("--request-timeout-s", c.request_timeout_s, "Arrival to last token, seconds")
      ->group("Limits")
      ->capture_default_str();
  app.add_option("--max-connections", c.max_connections,
                 "HTTP connections, or less if fewer files may be open")
      ->group("Limits")
      ->capture_default_str();
  app.add_option("--max-requests-per-tenant", c.max_requests_per_tenant,
                 "Requests of one key's tenant at a time, beyond that 429; 0 = no limit")
      ->group("Limits")
      ->capture_default_str();
  app.add_option("--drain-timeout-s", c.drain_timeout_s, "After SIGTERM for what runs, seconds")
      ->group("Operation")
      ->capture_default_str();
  app.add_option("--ready-file", c.ready_file, "JSON with pid and addresses, once listening")
      ->group("Operation");
  app.add_option("--log-level", c.log_level, "debug, info, warning or error")
      ->group("Operation")
      ->capture_default_str();
}

}  // namespace

absl::Status RouterConfig::Validate() const {
  if (model.empty()) {
    return absl::InvalidArgumentError("--model is missing: name a folder in Hugging Face layout");
  }
  RETURN_IF_ERROR(CheckWorkers(*this));
  if (const auto made = MakeRoutingPolicy(policy); !made.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--policy ", policy, ": ", made.status().message()));
  }
  RETURN_IF_ERROR(CheckApi(*this));
  RETURN_IF_ERROR(CheckOption("--http-port", http_port, 0, 65535));
  RETURN_IF_ERROR(CheckOption("--grpc-port", grpc_port, 0, 65535));
  RETURN_IF_ERROR(CheckOption("--ops-port", OpsPort(), 0, 65535));
  RETURN_IF_ERROR(CheckOption("--admin-port", AdminPort(), 0, 65535));
  if (admin_port.has_value() && tls_dir.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--admin-port ", *admin_port, ": operators are known by certificates; give --tls-dir, or "
        "ask /status and /audit of --http-port on loopback"));
  }
  RETURN_IF_ERROR(CheckOption("--max-model-len", max_model_len, 0, 1 << 28));
  RETURN_IF_ERROR(CheckOption("--max-queued-requests", max_queued_requests, 1, 1 << 24));
  RETURN_IF_ERROR(CheckOption("--max-queued-tokens", max_queued_tokens, 1, int64_t{1} << 40));
  RETURN_IF_ERROR(CheckOption("--max-queued-bytes", max_queued_bytes, 1, int64_t{1} << 40));
  RETURN_IF_ERROR(CheckOption("--max-queue-wait-s", max_queue_wait_s, 0, 7 * 86'400));
  RETURN_IF_ERROR(CheckOption("--max-unread-bytes", max_unread_bytes, 1, int64_t{1} << 40));
  RETURN_IF_ERROR(CheckOption("--request-timeout-s", request_timeout_s, 1, 7 * 86'400));
  RETURN_IF_ERROR(CheckOption("--max-connections", max_connections, 1, 1 << 20));
  RETURN_IF_ERROR(CheckOption("--max-requests-per-tenant", max_requests_per_tenant, 0, 1 << 24));
  RETURN_IF_ERROR(CheckOption("--drain-timeout-s", drain_timeout_s, 0, 86'400));
  LogLevel level;
  if (!ParseLogLevel(log_level, &level)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--log-level ", log_level, ": must be one of debug, info, warning, error"));
  }
  return absl::OkStatus();
}

std::optional<int> ParseRouterCommandLine(int argc, char** argv, RouterConfig* config) {
  CLI::App app("Baton router: takes requests and assigns them to workers.", "baton-router");
  AddServing(app, *config);
  AddLimits(app, *config);
  return ParseCommandLine(app, argc, argv);
}

}  // namespace baton
