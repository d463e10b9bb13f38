#include "router/router_process.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/checkpoint/generation_config.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/model_files.h"
#include "common/process/command_line.h"
#include "common/process/file_limit.h"
#include "common/process/identity.h"
#include "common/process/ready_file.h"
#include "common/telemetry/log.h"
#include "router/error.h"
#include "router/generation/codec_tokenizer.h"
#include "router/generation/sampling_defaults.h"
#include "router/openai/error_response.h"
#include "router/openai/json.h"
#include "router/openai/status_json.h"
#include "router/text/text_codec.h"

namespace baton {
namespace {

constexpr int kMaxOpsConnections = 64;
constexpr Duration kLastGrace = std::chrono::milliseconds(200);

// The folder's name, whatever slashes or dots the path ends with.
std::string ServedName(const RouterConfig& config) {
  if (!config.served_model_name.empty()) return config.served_model_name;
  std::error_code error;
  std::filesystem::path path = std::filesystem::canonical(config.model, error);
  if (error) path = config.model;
  return path.filename().empty() ? "model" : path.filename().string();
}

// Workers by address, and names of any number of them.
struct ListedWorkers {
  std::vector<WorkerAddress> fixed;
  std::vector<DiscoveryOptions::Name> names;
};

absl::StatusOr<ListedWorkers> ListWorkers(const RouterConfig& config) {
  ListedWorkers listed;
  for (const Role role : {Role::kPrefill, Role::kDecode}) {
    const bool is_prefill = role == Role::kPrefill;
    for (const std::string& value : is_prefill ? config.prefill : config.decode) {
      if (!absl::StartsWith(value, kDnsPrefix)) {
        listed.fixed.push_back({.role = role, .address = value});
        continue;
      }
      ASSIGN_OR_RETURN(DnsName name, ParseDnsName(is_prefill ? "--prefill" : "--decode", value));
      listed.names.push_back({.role = role, .dns = std::move(name)});
    }
  }
  return listed;
}

RouterServiceOptions ServiceOptions(const RouterConfig& config, const ClusterTls* tls,
                                    Incarnation incarnation,
                                    const std::vector<WorkerAddress>& workers) {
  RouterServiceOptions options;
  options.tls = tls;
  options.node.incarnation = incarnation;
  options.node.max_queued_requests = config.max_queued_requests;
  options.node.max_queued_tokens = config.max_queued_tokens;
  options.node.max_queued_bytes = config.max_queued_bytes;
  if (config.max_queue_wait_s > 0) {
    options.node.max_queue_wait = std::chrono::seconds(config.max_queue_wait_s);
  } else {
    options.node.max_queue_wait = Duration::max();
  }
  options.max_offered_requests = static_cast<size_t>(config.max_queued_requests);
  options.workers = workers;
  return options;
}

http::Executor ExecutorOf(TaskPool& pool) {
  return [&pool](const std::string& client, std::function<void()> task) {
    pool.Post(client, std::move(task));
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<RouterProcess>> RouterProcess::Start(const RouterConfig& config) {
  RETURN_IF_ERROR(config.Validate());
  std::unique_ptr<RouterProcess> process(new RouterProcess(config));
  process->incarnation_ = NewIncarnation();
  if (!config.tls_dir.empty()) {
    ASSIGN_OR_RETURN(process->tls_, ClusterTls::Create(config.tls_dir, TlsRole::kRouter));
  }
  if (!config.api_tls_dir.empty()) {
    ASSIGN_OR_RETURN(process->api_tls_, ApiTls::Create(config.api_tls_dir, UnixSeconds));
  }
  if (!config.api_keys_file.empty()) {
    ASSIGN_OR_RETURN(process->keys_,
                     ApiKeysWatch::Create(
                         {.path = config.api_keys_file,
                          .others = {.concurrency = config.max_requests_per_tenant},
                          .unix_seconds = UnixSeconds,
                          .on_change = [p = process.get()](const auto& limits) {
                            p->generation_->SetTenants(limits);
                          }}));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<RoutingPolicy> policy, MakeRoutingPolicy(config.policy));
  ASSIGN_OR_RETURN(const ListedWorkers workers, ListWorkers(config));
  process->router_ = std::make_unique<RouterService>(
      ServiceOptions(config, process->tls_.get(), process->incarnation_, workers.fixed),
      std::move(policy));
  process->discovery_ = std::make_unique<Discovery>(
      DiscoveryOptions{.names = workers.names,
                       .fixed = workers.fixed,
                       .only_loopback = config.tls_dir.empty(),
                       .clock = SteadyNow,
                       .random_seed = SystemRandom64()},
      process->router_->workers());
  process->metrics_ = std::make_unique<RouterMetrics>(process->router_.get());
  process->metrics_->ExportDiscovery(process->discovery_.get());
  RETURN_IF_ERROR(process->LoadModel());
  process->WatchFiles();
  RETURN_IF_ERROR(process->StartOps());
  RETURN_IF_ERROR(process->StartHttp());
  RETURN_IF_ERROR(process->StartGrpc());
  RETURN_IF_ERROR(process->StartAdmin());
  process->router_->Start(
      {.on_ready = [grpc = process->grpc_.get()](bool ready) { grpc->SetReady(ready); },
       .deliver = [http = process->http_.get()](std::function<void()> task) {
         return http->Post(std::move(task));
       }});
  process->discovery_->Start();
  RETURN_IF_ERROR(process->Announce());
  return process;
}

RouterProcess::~RouterProcess() { Stop(); }

absl::Status RouterProcess::LoadModel() {
  const absl::StatusOr<ModelConfig> model = LoadModelConfig(config_.model);
  if (!model.ok()) return AtModelOption(config_.model, model.status());
  if (config_.max_model_len > model->max_model_len) {
    return absl::InvalidArgumentError(absl::StrCat("--max-model-len ", config_.max_model_len,
                                                   ": the model supports ", model->max_model_len,
                                                   " tokens; choose at most that, or 0"));
  }
  absl::StatusOr<GenerationConfig> defaults = LoadGenerationConfig(config_.model);
  if (!defaults.ok()) return AtModelOption(config_.model, defaults.status());
  std::shared_ptr<const Tokenizer> tokenizer;
  bool has_parts = false;
  absl::StatusOr<std::unique_ptr<TextCodec>> codec = TextCodec::Load(config_.model);
  if (codec.ok()) {
    has_chat_template_ = (*codec)->has_chat_template();
    has_parts = (*codec)->has_parts();
    tokenizer = MakeTokenizer(*std::move(codec));
    metrics_->ExportTokenCache(tokenizer);
  } else if (!absl::IsNotFound(codec.status())) {
    return AtModelOption(config_.model, codec.status());
  }
  Log(LogLevel::kInfo, "model described",
      {{"model", config_.model},
       {"name", ServedName(config_)},
       {"tokenizer", tokenizer != nullptr},
       {"long_texts_in_parts", has_parts},
       {"chat_template", has_chat_template_},
       {"sampling_defaults", EffectiveDefaults(*defaults)}});
  GenerationServiceOptions options;
  options.model_name = ServedName(config_);
  options.limits.max_model_len =
      config_.max_model_len > 0 ? config_.max_model_len : model->max_model_len;
  options.limits.vocab_size = model->vocab_size;
  options.limits.default_timeout = std::chrono::seconds(config_.request_timeout_s);
  options.limits.max_requests_per_tenant = config_.max_requests_per_tenant;
  if (keys_ != nullptr) options.tenants = keys_->limits();
  options.limits.max_answer_bytes = config_.max_unread_bytes;
  options.defaults = *std::move(defaults);
  options.clock = SteadyNow;
  options.quota_clock = [] { return QuotaTime{.steady = SteadyNow(), .unix_s = UnixSeconds()}; };
  options.random_seed = SystemRandom64();
  options.observer = metrics_.get();
  generation_ =
      std::make_unique<GenerationService>(std::move(options), std::move(tokenizer), router_.get());
  return absl::OkStatus();
}

// Those of the API, which may be replaced while this runs.
void RouterProcess::WatchFiles() {
  if (keys_ != nullptr) {
    metrics_->ExportValue("baton_api_keys_refused_total",
                          "Changes of the API key file that were not taken.", MetricKind::kCounter,
                          [this] { return static_cast<double>(keys_->refused()); });
    metrics_->ExportValue("baton_api_keys_file_refused",
                          "1 while the API key file was not taken; older keys are in use.",
                          MetricKind::kGauge, [this] { return keys_->is_behind() ? 1.0 : 0.0; });
    keys_->Start();
  }
  if (api_tls_ == nullptr) return;
  metrics_->ExportValue("baton_api_tls_refused_total",
                        "Changes of --api-tls-dir that were not taken.", MetricKind::kCounter,
                        [this] { return static_cast<double>(api_tls_->refused_editions()); });
  metrics_->ExportValue("baton_api_tls_files_refused",
                        "1 while --api-tls-dir was not taken; an older certificate is in use.",
                        MetricKind::kGauge, [this] { return api_tls_->is_behind() ? 1.0 : 0.0; });
  metrics_->ExportValue("baton_api_tls_not_after_seconds",
                        "When the API's certificate ends, seconds since 1970.", MetricKind::kGauge,
                        [this] { return static_cast<double>(api_tls_->not_after_s()); });
  api_tls_->Start();
}

// The API's paths need a key; health, readiness, version, metrics, status and audit do not.
http::Decision RouterProcess::Authorize(const http::Request& head) const {
  http::Decision decision = keys_ == nullptr ? http::Decision() : Authenticate(head);
  const bool generates = head.path == "/v1/completions" || head.path == "/v1/chat/completions";
  if (decision.refusal.has_value() || !generates || head.method != "POST") return decision;
  const absl::Status room = generation_->CheckRoom(decision.principal);
  if (!room.ok()) decision.refusal = ErrorResponse(room);
  return decision;
}

http::Decision RouterProcess::Authenticate(const http::Request& head) const {
  // What they tell of the cluster is for this machine only; metrics are on the ops port too.
  const bool internal = head.path == "/metrics" || head.path == "/status" || head.path == "/audit";
  if (internal && !IsLoopback(config_.host)) {
    return {.refusal = http::ErrorResponse(403, "permission_error",
                                           "This path is served on loopback only.")};
  }
  const bool open =
      internal || head.path == "/health" || head.path == "/ready" || head.path == "/version";
  if (open) return {};
  absl::StatusOr<std::string> tenant = keys_->Authenticate(head.Find("authorization"));
  if (!tenant.ok()) {
    http::Response refusal = ErrorResponse(WithErrorCode(tenant.status(), "invalid_api_key"));
    refusal.headers.push_back({"WWW-Authenticate", "Bearer"});
    return {.refusal = std::move(refusal)};
  }
  return {.principal = *std::move(tenant)};
}

OpenAiOptions RouterProcess::ApiOptions() {
  return {.version = kVersion,
          .created = UnixSeconds(),
          .unix_seconds = UnixSeconds,
          .metrics_text = [this] { return metrics_->Render(); },
          .text_executor = ExecutorOf(text_tasks_),
          .ops_executor = ExecutorOf(ops_tasks_)};
}

// One thread answers whether the router lives, whatever the others do.
absl::Status RouterProcess::StartOps() {
  metrics_->ExportTls(tls_.get());
  http::ServerOptions options;
  options.host = config_.host;
  options.port = static_cast<uint16_t>(config_.OpsPort());
  options.io_thread_name = "ops";
  options.num_handler_threads = 0;
  options.max_connections = kMaxOpsConnections;
  absl::StatusOr<std::unique_ptr<http::HttpServer>> server =
      http::HttpServer::Create(std::move(options), OpsRoutes(ApiOptions(), generation_.get()));
  if (!server.ok()) {
    return absl::Status(server.status().code(),
                        absl::StrCat("--ops-port ", config_.OpsPort(), ": ",
                                     server.status().message(), "; choose a free port, or 0"));
  }
  ops_ = *std::move(server);
  return absl::OkStatus();
}

absl::Status RouterProcess::StartHttp() {
  http::ServerOptions options;
  options.host = config_.host;
  options.port = static_cast<uint16_t>(config_.http_port);
  options.authorize = [this](const http::Request& head) { return Authorize(head); };
  if (api_tls_ != nullptr) options.tls = [this] { return api_tls_->context(HttpVersion::kHttp11); };
  // Half of what may be open: workers, gRPC's clients and logs have the rest.
  const int64_t files = RaiseFileLimit();
  options.max_connections =
      static_cast<int>(std::clamp<int64_t>(files / 2, 1, config_.max_connections));
  if (options.max_connections < config_.max_connections) {
    Log(LogLevel::kWarning, "fewer connections than --max-connections says",
        {{"connections", options.max_connections}, {"open_files", files}});
  }
  absl::StatusOr<std::unique_ptr<http::HttpServer>> server = http::HttpServer::Create(
      std::move(options), OpenAiRoutes(ApiOptions(), generation_.get()));
  if (!server.ok()) {
    return absl::Status(server.status().code(),
                        absl::StrCat("--http-port ", config_.http_port, ": ",
                                     server.status().message(), "; choose a free port, or 0"));
  }
  http_ = *std::move(server);
  return absl::OkStatus();
}

absl::Status RouterProcess::StartGrpc() {
  InferenceServerOptions options;
  options.front.host = config_.host;
  options.front.port = static_cast<uint16_t>(config_.grpc_port);
  if (api_tls_ != nullptr) {
    options.front.tls = [this] { return api_tls_->context(HttpVersion::kHttp2); };
  }
  // A quarter of what may be open, three for each.
  options.front.max_connections = static_cast<int>(
      std::clamp<int64_t>(RaiseFileLimit() / 12, 1, options.front.max_connections));
  options.has_chat_template = has_chat_template_;
  options.text_executor = ExecutorOf(text_tasks_);
  if (keys_ != nullptr) {
    options.authorize = [this](std::string_view value) { return keys_->Authenticate(value); };
  }
  grpc_ = std::make_unique<InferenceServer>(std::move(options), generation_.get());
  RETURN_IF_ERROR(grpc_->Start());
  const GrpcFront* const front = &grpc_->front();
  metrics_->ExportValue("baton_grpc_connections", "Connections of gRPC clients.",
                        MetricKind::kGauge,
                        [front] { return static_cast<double>(front->num_connections()); });
  metrics_->ExportValue("baton_grpc_paced_total",
                        "gRPC connections that had to wait because streams were reset too often.",
                        MetricKind::kCounter,
                        [front] { return static_cast<double>(front->num_paced()); });
  metrics_->ExportValue(
      "baton_grpc_calmed_total", "gRPC connections closed because too many streams were open.",
      MetricKind::kCounter, [front] { return static_cast<double>(front->num_calmed()); });
  return absl::OkStatus();
}

absl::Status RouterProcess::StartAdmin() {
  if (tls_ == nullptr) return absl::OkStatus();
  AdminServerOptions options;
  options.host = config_.host;
  options.port = config_.AdminPort();
  options.tls = tls_.get();
  options.status = [this] {
    return Dump(StatusJson(router_->View(), router_->Ready(), ServedName(config_)));
  };
  options.audit = [this]() -> absl::StatusOr<std::string> {
    ASSIGN_OR_RETURN(const RouterAudit audit, router_->Audit());
    return Dump(AuditJson(audit));
  };
  options.drain = [this] { BeginDrain(); };
  options.executor = [this](std::function<void()> task) {
    ops_tasks_.Post("admin", std::move(task));
  };
  admin_ = std::make_unique<AdminServer>(std::move(options));
  return admin_->Start();
}

absl::Status RouterProcess::Announce() {
  ops_->Start();
  http_->Start();
  const std::string ops_url = absl::StrCat("http://", config_.host, ":", ops_->port());
  const char* const scheme = api_tls_ != nullptr ? "https://" : "http://";
  const std::string http_url = absl::StrCat(scheme, config_.host, ":", http_->port());
  const std::string address = absl::StrCat(config_.host, ":", grpc_->port());
  const std::string admin_address =
      admin_ == nullptr ? "" : absl::StrCat(config_.host, ":", admin_->port());
  Log(LogLevel::kInfo, "listening",
      {{"role", "router"},
       {"http", http_url},
       {"grpc", address},
       {"ops", ops_url},
       {"admin", admin_address},
       {"policy", config_.policy},
       {"incarnation", absl::StrCat(absl::Hex(incarnation_, absl::kZeroPad16))}});
  return WriteReadyFile(config_.ready_file, {.role = "router",
                                             .address = address,
                                             .http_url = http_url,
                                             .metrics_url = absl::StrCat(ops_url, "/metrics"),
                                             .admin_address = admin_address,
                                             .incarnation = incarnation_});
}

void RouterProcess::BeginDrain() {
  metrics_->SetDraining();
  router_->BeginDrain();
  http_->BeginDrain();
}

void RouterProcess::Drain(const std::function<bool()>& hurry) {
  Log(LogLevel::kInfo, "draining", {{"limit_s", config_.drain_timeout_s}});
  BeginDrain();
  const Time deadline = SteadyNow() + std::chrono::seconds(config_.drain_timeout_s);
  // A request that is being read is not in the node's snapshot yet, but its connection is open.
  bool idle = false;
  absl::Mutex mutex;
  while (!idle && SteadyNow() < deadline && !hurry()) {
    const RouterView view = router_->View();
    idle = view.running_requests == 0 && view.queued_requests == 0 && http_->num_connections() == 0;
    absl::MutexLock lock(&mutex);
    mutex.AwaitWithTimeout(absl::Condition(&idle), absl::Milliseconds(20));
  }
  Log(idle ? LogLevel::kInfo : LogLevel::kWarning, idle ? "drained" : "drain gave up");
  Stop();
}

void RouterProcess::Stop() {
  if (http_ != nullptr) http_->Stop(kLastGrace);
  if (grpc_ != nullptr) grpc_->Shutdown(kLastGrace);
  if (admin_ != nullptr) admin_->Shutdown(kLastGrace);
  // Nobody posts any more; what runs may ask the node.
  text_tasks_.Stop();
  ops_tasks_.Stop();
  if (discovery_ != nullptr) discovery_->Stop();
  if (router_ != nullptr) router_->Stop();
  if (ops_ != nullptr) ops_->Stop(Duration::zero());
}

}  // namespace baton
