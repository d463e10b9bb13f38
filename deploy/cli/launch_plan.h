#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deploy/cli/child_process.h"
#include "deploy/cli/run_dir.h"

namespace baton::cli {

inline constexpr int kMaxWorkersPerRole = 64;
inline constexpr int kDefaultHttpPort = 8000;
inline constexpr int kDefaultGrpcPort = 8001;
inline constexpr int kDefaultOpsPort = 9090;

// What a server may take to finish what runs after SIGTERM. Below the supervisor's own limit, so
// that a server ends by itself and with exit code 0.
inline constexpr int kServerDrainSeconds = 8;

// What `baton up` was asked for. Absent options are left to the servers' own defaults.
struct UpOptions {
  std::string dir = ".baton";
  std::string model;             // Empty = the tiny-kjv of this checkout.
  int prefill = 1;               // Workers.
  int decode = 1;                // Workers.
  std::optional<int> http_port;  // 0 = any free; absent = 8000, or any free when that is taken.
  std::optional<int> grpc_port;  // 0 = any free; absent = 8001, or any free when that is taken.
  // 0 = any free; absent = 9090, or any free when that is taken or `http_port` is 0.
  std::optional<int> ops_port;
  bool detach = false;
  int start_timeout_s = 300;  // For every server to load and the first token to come.
  bool tls = false;           // Between the servers, by certificates in RUN/certs.
  bool restart = true;        // A server that ended without `baton down` is started again.

  // Handed on to every worker; of one GPU each gets an equal share.
  std::optional<std::string> device;
  double gpu_memory_fraction = 0.9;  // Of all workers together.
  std::optional<std::string> gpu_graphs;
  std::optional<int> tp;  // Ranks of each worker, unless those of its role are given.
  std::optional<int> tp_prefill;
  std::optional<int> tp_decode;
  std::optional<std::string> kv_transport;
  std::optional<std::string> compute_dtype;
  std::optional<std::string> kv_dtype;
  std::optional<std::string> kernels;
  std::optional<int> block_size;  // Tokens.
  std::optional<int> num_blocks;
  std::optional<int> chunk_tokens;  // Tokens of prompt per step.
  std::optional<int> max_batch_sequences;  // Of a step.
  std::optional<std::string> preemption;
  std::optional<int> finish_together;  // Of prefill workers.
  std::optional<int> steps_in_flight;  // Of decode workers.
  std::optional<int> threads;       // Per worker; absent = cores / workers of its role.

  // Handed on to the router.
  std::optional<std::string> policy;
  std::optional<std::string> served_model_name;
  std::optional<int> max_model_len;  // Tokens; workers are told too.

  // Names the option, its value and the cure.
  absl::Status Validate() const;
};

// What a server writes to its --ready-file once it accepts work.
struct ReadyFile {
  std::string address;
  std::vector<std::string> data_addresses;
  std::string http_url;
  std::string metrics_url;
  nlohmann::json incarnation;
};

// UNAVAILABLE while the file is absent or half written.
absl::StatusOr<ReadyFile> ReadReadyFile(const std::string& path);

// Where its certificates are, with --tls.
std::string CertsOf(const UpOptions& options);

// The commands of the workers, prefill first. `bin` is the folder of the programs.
std::vector<ProcessSpec> PlanWorkers(const UpOptions& options, const std::string& bin,
                                     const RunDir& dir, int cores);

// The command of the router. Options carry real ports here (0 = any free).
ProcessSpec PlanRouter(const UpOptions& options, const std::string& bin, const RunDir& dir,
                       const std::vector<ServerRecord>& workers);

// The command that starts a server again on the ports it had: `spec` with the ports of `record` in
// place of "any free". Between the two starts nobody holds the ports, so another program may take
// one; the server then fails at its start and names the port.
ProcessSpec WithPortsOf(const ServerRecord& record, ProcessSpec spec);

// `wanted` if given and free on loopback; when absent `fallback` if free, else 0 (any free).
// `option` names the option in the error, e.g. "--http".
absl::StatusOr<int> ChoosePort(std::optional<int> wanted, int fallback, const std::string& option);

// The folder of this program's own executable.
std::string ProgramFolder();

// The model folder to serve, absolute. Names what is missing.
absl::StatusOr<std::string> FindModel(const std::string& model, const std::string& bin);

}  // namespace baton::cli
