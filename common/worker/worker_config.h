#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/dtype.h"

namespace CLI {
class App;
}

namespace baton {

// The options that both kinds of worker have. Plain values; units last in names.
struct WorkerConfig {
  std::string model;  // Folder in Hugging Face layout.

  std::string host = "127.0.0.1";      // Beyond loopback with TLS only.
  std::string tls_dir;                 // As ReadTlsFiles; empty = plaintext, on loopback.
  std::string kv_security;             // tls, or authenticated: proved by HMAC, in plaintext. Empty
                                       // = the latter on loopback, tls beyond.
  int port = 0;                        // gRPC; 0 = any free one.
  std::string data_port = "0";         // KV transfers, as ParseDataPorts; 0 = any free ones.
  std::string advertise_data_address;  // As ParseDataAddresses; empty = where this worker listens.
                                       // For proxies between.
  std::string kv_transport = "auto";   // As CheckKvTransport.
  int metrics_port = 0;                // HTTP /metrics and /health; 0 = any free one.

  std::string device = "auto";       // Or cpu, cuda, cuda:N; auto: the first GPU, if there is one.
  int tp = 1;                        // Tensor-parallel ranks: 1, 2, 4 or 8; the same bits.
  double gpu_memory_fraction = 0.9;  // Of a GPU's memory, all that this process takes.
  std::string gpu_graphs = "on";     // Or off: decode steps as graphs.

  // f32 keeps everything in fp32 (the reference mode). bf16 rounds what enters a product, and KV.
  // auto: on a CPU bf16 if the weights are bf16 and this family multiplies it faster, else f32; on
  // a GPU f16 if the weights are, else bf16. Empty: f32 on a CPU, auto on a GPU.
  std::string compute_dtype;
  std::string kv_dtype;          // Empty = the compute dtype.
  std::string kernels = "auto";  // In f32 the same bits whichever; force one only to compare.
  int threads = 0;               // Of computation, of all ranks; 0 = all cores of this process.
  int compute_nice = 0;          // Added to their niceness: raise it where decode workers share the
                                 // cores and come first.

  int block_size = 16;  // Tokens per block.
  int num_blocks = 0;   // 0 = on a CPU room for 32 sequences of the longest length, within a
                        // quarter of the memory; on a GPU what its fraction leaves.
  // recompute; or swap: K/V of a preempted sequence waits in memory outside the pool. auto: swap
  // where layers are in several groups, as to be computed again a sequence takes more blocks than
  // it had.
  std::string preemption = "auto";
  int swap_blocks = 0;             // With swap: blocks there; 0 = as many as the pool's, within
                                   // a quarter of the memory.
  int max_model_len = 0;           // Tokens of prompt and answer; 0 = what the model supports.
  int chunk_tokens = 512;          // Most tokens of one step.
  int max_batch_sequences = 64;    // Most sequences of one step.
  int step_budget_ms = 250;        // A step is cut to this predicted time; lower it only for
                                   // smoother streams at the cost of throughput.
  int steps_in_flight = 1;  // Decode workers: 2 = a step starts before the one before it ends.
  int max_queued_requests = 1024;  // Not yet looked at; more are refused at once.

  int drain_timeout_s = 30;  // After SIGTERM, for what runs.
  std::string ready_file;    // Written once listening; empty = none.
  std::string log_level = "info";

  // Whether K/V goes over TLS.
  bool kv_tls() const;

  // INVALID_ARGUMENT names the option, its value and the cure.
  absl::Status Validate() const;
};

// Binds the options of `config` to command line flags, grouped and documented.
void AddWorkerOptions(CLI::App& app, WorkerConfig& config);

// "f32", "f16" or "bf16"; INVALID_ARGUMENT names `option`.
absl::StatusOr<DType> ParseDType(const std::string& option, const std::string& text);

// Also "fp8_e4m3" and "fp8_e5m2"; "" and "auto" are `compute`.
absl::StatusOr<DType> ParseKvDType(const std::string& option, const std::string& text,
                                   DType compute);

}  // namespace baton
