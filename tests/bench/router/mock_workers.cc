// A prefill and a decode worker without a model, and an HTTP server that streams what a router
// would stream: what router_bench.py puts behind a router, and behind the yardstick.
// Prints its addresses as one line of JSON, then serves until SIGTERM.
#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status.h"
#include "common/http/http_server.h"
#include "common/node/node_thread.h"
#include "common/process/identity.h"
#include "common/process/stop_signal.h"
#include "common/rpc/cluster_tls.h"
#include "common/rpc/worker_server.h"
#include "tests/bench/router/mock_nodes.h"

namespace baton::bench {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr int32_t kNumBlocks = 4 << 20;  // Nothing waits for blocks here.

struct Options {
  int pace_ms = 20;
  int max_running = 16000;
  int prompt_us = 0;
  int tokens_per_s = 0;  // That the prefill worker says to compute; 0 = it does not know yet.
  int max_model_len = 131072;
  int vocab_size = 4096;
  std::string certs;  // Of `baton certs`; empty: plaintext.
};

HelloInfo HelloOf(const Options& options, Role role, Incarnation incarnation) {
  return {.role = role,
          .incarnation = incarnation,
          .numerics_id = "mock",
          .block_size = kBlockSize,
          .num_blocks = kNumBlocks,
          .max_model_len = options.max_model_len,
          .vocab_size = options.vocab_size};
}

MockOptions MockOf(const Options& options, Incarnation incarnation) {
  return {.incarnation = incarnation,
          .pace = std::chrono::milliseconds(options.pace_ms),
          .max_running = options.max_running,
          .prompt_time = std::chrono::microseconds(options.prompt_us)};
}

std::function<WorkerStatus()> StatusOf(const Options& options, Incarnation incarnation) {
  return [incarnation, tokens_per_s = options.tokens_per_s] {
    return WorkerStatus{
        .incarnation = incarnation, .blocks = {.free = kNumBlocks}, .tokens_per_s = tokens_per_s};
  };
}

WorkerServerOptions ServerOf(const Options& options, Role role, Incarnation incarnation,
                             const ClusterTls* tls) {
  return {.hello = HelloOf(options, role, incarnation),
          .tls = tls,
          .status = StatusOf(options, incarnation)};
}

// Of a worker of that role; null: plaintext.
absl::StatusOr<std::unique_ptr<ClusterTls>> TlsOf(const Options& options, Role role) {
  if (options.certs.empty()) return nullptr;
  const char* const folder = role == Role::kPrefill ? "/prefill" : "/decode";
  return ClusterTls::Create(absl::StrCat(options.certs, folder), TlsRoleOf(role));
}

// The pair of workers.
class MockWorkers {
 public:
  // The certificates outlive it.
  MockWorkers(const Options& options, const ClusterTls* decode_tls, const ClusterTls* prefill_tls)
      : decode_server_(ServerOf(options, Role::kDecode, decode_, decode_tls), &decode_thread_),
        prefill_server_(ServerOf(options, Role::kPrefill, prefill_, prefill_tls), &prefill_thread_),
        decode_node_(MockOf(options, decode_), decode_server_),
        prefill_node_(MockOf(options, prefill_), prefill_server_,
                      [this](TransferEvent event) { decode_thread_.Post(std::move(event)); }) {}

  absl::Status Start() {
    RETURN_IF_ERROR(decode_server_.Start());
    RETURN_IF_ERROR(prefill_server_.Start());
    decode_thread_.Start(&decode_node_, [this](Time) { decode_server_.Flush(); });
    prefill_thread_.Start(&prefill_node_, [this](Time) { prefill_server_.Flush(); });
    return absl::OkStatus();
  }

  void Stop() {
    decode_server_.Shutdown(Duration::zero());
    prefill_server_.Shutdown(Duration::zero());
    prefill_thread_.Stop();
    decode_thread_.Stop();
  }

  std::string decode() const { return absl::StrCat("127.0.0.1:", decode_server_.port()); }
  std::string prefill() const { return absl::StrCat("127.0.0.1:", prefill_server_.port()); }

 private:
  const Incarnation decode_ = NewIncarnation();
  const Incarnation prefill_ = NewIncarnation();
  NodeThread<DecodeMail> decode_thread_{{.name = "mock-decode", .max_offered_requests = 16384}};
  NodeThread<PrefillMail> prefill_thread_{{.name = "mock-prefill", .max_offered_requests = 16384}};
  WorkerServer decode_server_;
  WorkerServer prefill_server_;
  MockDecodeNode decode_node_;
  MockPrefillNode prefill_node_;
};

// What a proxy is put before: the answers of a MockDecodeNode as a router streams them.
class MockUpstream : public WorkerOutbox {
 public:
  explicit MockUpstream(const Options& options)
      : node_(MockOf(options, /*incarnation=*/1), *this) {}

  absl::Status Start() {
    ASSIGN_OR_RETURN(server_, http::HttpServer::Create({.max_connections = 20000},
                                                       {{.method = "POST",
                                                         .path = "/v1/completions",
                                                         .handler = [this](auto request, auto to) {
                                                           Open(request, std::move(to));
                                                         }}}));
    thread_.Start(&node_, {});
    server_->Start();
    return absl::OkStatus();
  }

  void Stop() {
    server_->Stop(Duration::zero());
    thread_.Stop();
  }

  std::string url() const { return absl::StrCat("http://127.0.0.1:", server_->port()); }

  void Emit(CallId call, WorkerEvent event) override {
    if (std::holds_alternative<ReservedEvent>(event)) {
      return thread_.Post(TransferEvent{.ticket = TicketOf(call), .receiver = true});
    }
    if (const auto writer = WriterOf(call)) writer->Write(kPiece);
  }

  void Close(CallId call, absl::Status) override {
    const auto writer = WriterOf(call);
    if (writer == nullptr) return;
    writer->Write("data: [DONE]\n\n");
    writer->Finish(/*close=*/false);
    absl::MutexLock lock(&mutex_);
    writers_.erase(call);
  }

 private:
  // As long as a router's.
  static constexpr char kPiece[] =
      "data: {\"id\":\"cmpl-0123456789abcdef0123456789abcdef\",\"object\":\"text_completion\","
      "\"created\":1700000000,\"model\":\"bench\",\"choices\":[{\"index\":0,\"text\":\" shepherd\","
      "\"logprobs\":null,\"finish_reason\":null}]}\n\n";

  void Open(const http::Request& request, std::shared_ptr<http::ResponseWriter> writer) {
    const auto body = nlohmann::json::parse(request.body, nullptr, /*allow_exceptions=*/false);
    const int max_tokens = body.is_object() ? body.value("max_tokens", 0) : 0;
    if (max_tokens < 1) return writer->Respond(http::ErrorResponse(400, "bad", "max_tokens"));
    writer->StartStream({.content_type = "text/event-stream"});
    const CallId call = next_call_.fetch_add(1);
    {
      absl::MutexLock lock(&mutex_);
      writers_[call] = std::move(writer);
    }
    DecodeOpened opened{.call = call, .request = {.prefill = 1, .tokens = {0}, .prompt_length = 1}};
    opened.request.sampling.max_tokens = max_tokens;
    thread_.Post(std::move(opened));
  }

  std::shared_ptr<http::ResponseWriter> WriterOf(CallId call) {
    absl::MutexLock lock(&mutex_);
    const auto it = writers_.find(call);
    return it == writers_.end() ? nullptr : it->second;
  }

  std::atomic<CallId> next_call_ = 1;
  absl::Mutex mutex_;
  absl::flat_hash_map<CallId, std::shared_ptr<http::ResponseWriter>> writers_
      ABSL_GUARDED_BY(mutex_);
  NodeThread<DecodeMail> thread_{{.name = "mock-upstream"}};
  MockDecodeNode node_;
  std::unique_ptr<http::HttpServer> server_;
};

absl::Status Run(const Options& options) {
  StopSignal stop;
  ASSIGN_OR_RETURN(const auto decode_tls, TlsOf(options, Role::kDecode));
  ASSIGN_OR_RETURN(const auto prefill_tls, TlsOf(options, Role::kPrefill));
  MockWorkers workers(options, decode_tls.get(), prefill_tls.get());
  MockUpstream upstream(options);
  RETURN_IF_ERROR(workers.Start());
  RETURN_IF_ERROR(upstream.Start());
  const nlohmann::json said = {{"prefill", workers.prefill()},
                               {"decode", workers.decode()},
                               {"upstream", upstream.url()}};
  std::printf("%s\n", said.dump().c_str());
  std::fflush(stdout);
  stop.Wait();
  upstream.Stop();
  workers.Stop();
  return absl::OkStatus();
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  CLI::App app("A prefill and a decode worker without a model, and an HTTP server that streams");
  baton::bench::Options options;
  app.add_option("--pace-ms", options.pace_ms, "Of a decode step")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--max-running", options.max_running, "Sequences of the decode worker")
      ->capture_default_str();
  app.add_option("--prompt-us", options.prompt_us, "Of each prompt, one after another")
      ->capture_default_str();
  app.add_option("--tokens-per-s", options.tokens_per_s, "As workers tell; 0 = not known yet")
      ->capture_default_str();
  app.add_option("--max-model-len", options.max_model_len)->capture_default_str();
  app.add_option("--vocab-size", options.vocab_size)->capture_default_str();
  app.add_option("--certs", options.certs, "Folder of `baton certs`: workers over mutual TLS");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = baton::bench::Run(options);
  if (!status.ok()) std::fprintf(stderr, "mock_workers: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
