#include "common/worker/worker_config.h"

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/process/command_line.h"
#include "common/telemetry/log.h"
#include "common/worker/rank_ports.h"

namespace baton {
namespace {

absl::Status CheckWord(const char* option, const std::string& value,
                       std::initializer_list<const char*> allowed) {
  std::string list;
  for (const char* word : allowed) {
    if (value == word) return absl::OkStatus();
    absl::StrAppend(&list, list.empty() ? "" : ", ", word);
  }
  return absl::InvalidArgumentError(absl::StrCat(option, " ", value, ": must be one of ", list));
}

absl::Status CheckDevice(const std::string& device) {
  constexpr absl::string_view kPrefix = "cuda:";
  int index = 0;
  if (device == "auto" || device == "cpu" || device == "cuda") return absl::OkStatus();
  if (absl::StartsWith(device, kPrefix) &&
      absl::SimpleAtoi(absl::string_view(device).substr(kPrefix.size()), &index) && index >= 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--device ", device, ": must be auto, cpu, cuda or cuda:N, N from 0"));
}

absl::Status CheckNetwork(const WorkerConfig& config) {
  RETURN_IF_ERROR(CheckHost(config.host, !config.tls_dir.empty()));
  if (!config.kv_security.empty()) {
    RETURN_IF_ERROR(CheckWord("--kv-security", config.kv_security, {"tls", "authenticated"}));
  }
  if (IsLoopback(config.host)) return absl::OkStatus();
  if (config.host == "0.0.0.0" && config.advertise_data_address.empty()) {
    return absl::InvalidArgumentError(
        "--host 0.0.0.0: other machines cannot connect to that; tell them a numeric address by "
        "--advertise-data-address, or listen on one");
  }
  return absl::OkStatus();
}

void AddNetworkOptions(CLI::App& app, WorkerConfig& c) {
  const char* network = "Network";
  app.add_option("--host", c.host, "IPv4 address to listen on; beyond loopback with --tls-dir only")
      ->group(network)
      ->capture_default_str();
  app.add_option("--tls-dir", c.tls_dir,
                 "Folder of tls.key, tls.crt and ca.crt: mutual TLS on --port. Read again each "
                 "second")
      ->group(network);
  app.add_option("--kv-security", c.kv_security,
                 "K/V between workers, the same on all: tls, or authenticated, which proves whose "
                 "it is and does not encrypt it (default: authenticated on loopback, else tls)")
      ->group(network);
  app.add_option("--port", c.port, "gRPC port; 0 = any free one")
      ->group(network)
      ->capture_default_str();
  app.add_option("--data-port", c.data_port,
                 "Ports for KV transfers: one of each rank, comma separated, or only the first, "
                 "and the others follow; 0 = any free ones")
      ->group(network)
      ->capture_default_str();
  app.add_option("--advertise-data-address", c.advertise_data_address,
                 "host:port that prefill workers send KV to, if a proxy stands before --data-port; "
                 "a list like that one")
      ->group(network);
  app.add_option("--kv-transport", c.kv_transport,
                 "What carries K/V between GPUs: auto (NCCL where both ends can, else TCP), "
                 "tcp, or nccl (auto, with a warning where it cannot)")
      ->group(network)
      ->capture_default_str();
  app.add_option("--metrics-port", c.metrics_port, "HTTP port of /metrics and /health; 0 = any")
      ->group(network)
      ->capture_default_str();
}

void AddMemoryOptions(CLI::App& app, WorkerConfig& c) {
  const char* memory = "Memory and batching";
  app.add_option("--threads", c.threads,
                 "Threads of computation, shared out among the ranks; 0 = all cores")
      ->group(memory)
      ->capture_default_str();
  app.add_option("--compute-nice", c.compute_nice,
                 "Added to the niceness of those threads, so that others on the cores come first")
      ->group(memory)
      ->capture_default_str();
  app.add_option("--block-size", c.block_size, "Tokens per KV block")
      ->group(memory)
      ->capture_default_str();
  app.add_option("--preemption", c.preemption,
                 "What becomes of K/V of a sequence that must give way: recompute; swap, to memory "
                 "outside the pool; or auto (default): swap where some layers have a window and "
                 "others none")
      ->group(memory);
  app.add_option(
         "--swap-blocks", c.swap_blocks,
         "Where sequences are swapped: blocks there, counted as --num-blocks (default: 0 = as many "
         "as the pool's, within a quarter of the memory)")
      ->group(memory);
  app.add_option("--gpu-memory-fraction", c.gpu_memory_fraction,
                 "Of a GPU's memory, for all that this process takes")
      ->group(memory)
      ->capture_default_str();
  app.add_option("--gpu-graphs", c.gpu_graphs,
                 "on or off: decode steps of up to 128 sequences are launched as graphs on a GPU")
      ->group(memory)
      ->capture_default_str();
  app.add_option("--num-blocks", c.num_blocks,
                 "KV blocks, of each group of layers where some have a window and others none; 0 = "
                 "32 longest sequences, within a quarter of the memory, or what the fraction of "
                 "the GPU's leaves")
      ->group(memory)
      ->capture_default_str();
  app.add_option("--chunk-tokens", c.chunk_tokens, "Most tokens of one step")
      ->group(memory)
      ->capture_default_str();
  app.add_option("--max-batch-sequences", c.max_batch_sequences, "Most sequences of one step")
      ->group(memory)
      ->capture_default_str();
  app.add_option("--step-budget-ms", c.step_budget_ms, "Predicted time of a step, milliseconds")
      ->group(memory)
      ->capture_default_str();
  app.add_option("--max-queued-requests", c.max_queued_requests,
                 "Requests taken and not yet looked at; more are refused")
      ->group(memory)
      ->capture_default_str();
}

}  // namespace

absl::StatusOr<DType> ParseDType(const std::string& option, const std::string& text) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const auto name = ToString(dtype);
    if (text == absl::string_view(name.data(), name.size())) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(option, " ", text, ": must be one of f32, bf16, f16"));
}

absl::StatusOr<DType> ParseKvDType(const std::string& option, const std::string& text,
                                   DType compute) {
  if (text.empty() || text == "auto") return compute;
  for (const DType dtype : {DType::kFp8E4M3, DType::kFp8E5M2}) {
    const auto name = ToString(dtype);
    if (text == absl::string_view(name.data(), name.size())) return dtype;
  }
  const absl::StatusOr<DType> wide = ParseDType(option, text);
  if (wide.ok()) return wide;
  return absl::InvalidArgumentError(
      absl::StrCat(option, " ", text, ": must be one of auto, f32, f16, bf16, fp8_e4m3, fp8_e5m2"));
}

bool WorkerConfig::kv_tls() const {
  return kv_security.empty() ? !IsLoopback(host) : kv_security == "tls";
}

absl::Status WorkerConfig::Validate() const {
  if (model.empty()) {
    return absl::InvalidArgumentError("--model is missing: name a folder in Hugging Face layout");
  }
  RETURN_IF_ERROR(CheckNetwork(*this));
  RETURN_IF_ERROR(CheckOption("--port", port, 0, 65535));
  RETURN_IF_ERROR(CheckOption("--metrics-port", metrics_port, 0, 65535));
  RETURN_IF_ERROR(CheckRankCount("--tp", tp));
  RETURN_IF_ERROR(ParseDataPorts(data_port, tp).status());
  RETURN_IF_ERROR(ParseDataAddresses(advertise_data_address, tp).status());
  RETURN_IF_ERROR(CheckKvTransport(kv_transport));
  RETURN_IF_ERROR(CheckDevice(device));
  if (!(gpu_memory_fraction > 0 && gpu_memory_fraction <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("--gpu-memory-fraction ", gpu_memory_fraction,
                                                   ": must be above 0 and at most 1"));
  }
  RETURN_IF_ERROR(CheckWord("--gpu-graphs", gpu_graphs, {"on", "off"}));
  if (!compute_dtype.empty()) {
    RETURN_IF_ERROR(CheckWord("--compute-dtype", compute_dtype, {"auto", "f32", "bf16", "f16"}));
  }
  RETURN_IF_ERROR(ParseKvDType("--kv-dtype", kv_dtype, DType::kF32).status());
  RETURN_IF_ERROR(
      CheckWord("--kernels", kernels,
                {"auto", "x86_64_amx", "x86_64_v4_bf16", "x86_64_v4", "x86_64_v3", "portable"}));
  RETURN_IF_ERROR(CheckOption("--threads", threads, 0, 1024));
  RETURN_IF_ERROR(CheckOption("--compute-nice", compute_nice, 0, 19));
  RETURN_IF_ERROR(CheckOption("--block-size", block_size, 1, 1024));
  RETURN_IF_ERROR(CheckWord("--preemption", preemption, {"auto", "recompute", "swap"}));
  RETURN_IF_ERROR(CheckOption("--swap-blocks", swap_blocks, 0, 1 << 28));
  RETURN_IF_ERROR(CheckOption("--num-blocks", num_blocks, 0, 1 << 28));
  RETURN_IF_ERROR(CheckOption("--max-model-len", max_model_len, 0, 1 << 28));
  RETURN_IF_ERROR(CheckOption("--chunk-tokens", chunk_tokens, 1, 1 << 20));
  RETURN_IF_ERROR(CheckOption("--max-batch-sequences", max_batch_sequences, 1, 1 << 16));
  RETURN_IF_ERROR(CheckOption("--step-budget-ms", step_budget_ms, 1, 60'000));
  RETURN_IF_ERROR(CheckOption("--max-queued-requests", max_queued_requests, 1, 1 << 20));
  RETURN_IF_ERROR(CheckOption("--drain-timeout-s", drain_timeout_s, 0, 86'400));
  return CheckWord("--log-level", log_level, {"debug", "info", "warning", "error"});
}

void AddWorkerOptions(CLI::App& app, WorkerConfig& c) {
  app.add_option("--model", c.model, "Model folder in Hugging Face layout")->group("Model");
  app.add_option("--max-model-len", c.max_model_len,
                 "Tokens of prompt and answer together; 0 = what the model supports")
      ->group("Model")
      ->capture_default_str();

  AddNetworkOptions(app, c);

  const char* numerics = "Numerics (the same on all workers)";
  app.add_option("--device", c.device,
                 "auto (the first GPU, if there is one), cpu, cuda (the first) or cuda:N. Several "
                 "ranks take the GPUs from it on")
      ->group(numerics)
      ->capture_default_str();
  app.add_option("--tp", c.tp,
                 "Ranks that share each layer (tensor parallel): 1, 2, 4 or 8. The bits are the "
                 "same, so workers with different ones belong together")
      ->group(numerics)
      ->capture_default_str();
  app.add_option("--compute-dtype", c.compute_dtype,
                 "f32 (reference), bf16, f16 (GPUs), or auto: on a CPU bf16 if the weights are and "
                 "its family multiplies it faster; on a GPU f16 or bf16, as the weights (default: "
                 "f32 on a CPU, auto on a GPU)")
      ->group(numerics);
  app.add_option("--kv-dtype", c.kv_dtype,
                 "auto (the compute dtype), f32, f16, bf16, fp8_e4m3 or fp8_e5m2 (scale 1)")
      ->group(numerics);
  app.add_option("--kernels", c.kernels,
                 "auto, x86_64_amx, x86_64_v4_bf16, x86_64_v4, x86_64_v3 or portable: in f32 the "
                 "same bits")
      ->group(numerics)
      ->capture_default_str();

  AddMemoryOptions(app, c);

  const char* operation = "Operation";
  app.add_option("--drain-timeout-s", c.drain_timeout_s, "After SIGTERM for what runs, seconds")
      ->group(operation)
      ->capture_default_str();
  app.add_option("--ready-file", c.ready_file, "JSON with pid and addresses, once listening")
      ->group(operation);
  app.add_option("--log-level", c.log_level, "debug, info, warning or error")
      ->group(operation)
      ->capture_default_str();
}

}  // namespace baton
