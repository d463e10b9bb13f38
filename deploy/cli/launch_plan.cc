#include "deploy/cli/launch_plan.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/process/command_line.h"
#include "deploy/cli/json_fields.h"
#include "deploy/cli/machine.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;

absl::Status CheckRange(const std::string& option, std::optional<int> value, int low, int high) {
  return value ? CheckOption(option, *value, low, high) : absl::OkStatus();
}

void Add(std::vector<std::string>& arguments, const char* option,
         const std::optional<std::string>& value) {
  if (value) arguments.insert(arguments.end(), {option, *value});
}

void Add(std::vector<std::string>& arguments, const char* option, std::optional<int> value) {
  if (value) arguments.insert(arguments.end(), {option, absl::StrCat(*value)});
}

// What stands between the last colon of "host:port" or "http://host:port/path" and the path.
std::string PortOf(const std::string& address) {
  const size_t colon = address.rfind(':');
  return colon == std::string::npos
             ? ""
             : address.substr(colon + 1, address.find('/', colon) - colon - 1);
}

std::string PortsOf(const std::vector<std::string>& addresses) {
  return absl::StrJoin(addresses, ",", [](std::string* to, const std::string& address) {
    to->append(PortOf(address));
  });
}

absl::Status CheckRanks(const char* option, std::optional<int> size) {
  return size ? CheckRankCount(option, *size) : absl::OkStatus();
}

absl::Status CheckDifferent(const char* one, std::optional<int> port, const char* other,
                            std::optional<int> other_port) {
  if (!port || *port == 0 || port != other_port) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(one, " and ", other, " are both ", *port,
                                                 ": give two different ports, or 0 for any"));
}

bool PortIsFree(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool is_free =
      bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && listen(fd, 1) == 0;
  close(fd);
  return is_free;
}

void AddTls(const UpOptions& options, ProcessSpec* spec) {
  if (!options.tls) return;
  spec->arguments.insert(spec->arguments.end(),
                         {"--tls-dir", absl::StrCat(CertsOf(options), "/", spec->role)});
}

}  // namespace

std::string CertsOf(const UpOptions& options) {
  std::error_code error;
  return (fs::absolute(options.dir, error) / "certs").string();
}

absl::Status UpOptions::Validate() const {
  RETURN_IF_ERROR(CheckRange("--prefill", prefill, 1, kMaxWorkersPerRole));
  RETURN_IF_ERROR(CheckRange("--decode", decode, 1, kMaxWorkersPerRole));
  RETURN_IF_ERROR(CheckRange("--http", http_port, 0, 65535));
  RETURN_IF_ERROR(CheckRange("--grpc", grpc_port, 0, 65535));
  RETURN_IF_ERROR(CheckRange("--ops", ops_port, 0, 65535));
  RETURN_IF_ERROR(CheckDifferent("--http", http_port, "--grpc", grpc_port));
  RETURN_IF_ERROR(CheckDifferent("--http", http_port, "--ops", ops_port));
  RETURN_IF_ERROR(CheckDifferent("--grpc", grpc_port, "--ops", ops_port));
  RETURN_IF_ERROR(CheckRange("--start-timeout-s", start_timeout_s, 1, 24 * 3600));
  if (!(gpu_memory_fraction > 0 && gpu_memory_fraction <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("--gpu-memory-fraction ", gpu_memory_fraction,
                                                   ": must be above 0 and at most 1"));
  }
  RETURN_IF_ERROR(CheckRanks("--tp", tp));
  RETURN_IF_ERROR(CheckRanks("--tp-prefill", tp_prefill));
  RETURN_IF_ERROR(CheckRanks("--tp-decode", tp_decode));
  if (kv_transport) RETURN_IF_ERROR(CheckKvTransport(*kv_transport));
  RETURN_IF_ERROR(CheckRange("--block-size", block_size, 1, 1 << 16));
  RETURN_IF_ERROR(CheckRange("--num-blocks", num_blocks, 1, 1 << 30));
  RETURN_IF_ERROR(CheckRange("--chunk-tokens", chunk_tokens, 1, 1 << 24));
  RETURN_IF_ERROR(CheckRange("--max-batch-sequences", max_batch_sequences, 1, 1 << 16));
  RETURN_IF_ERROR(CheckRange("--finish-together", finish_together, 0, 1 << 16));
  RETURN_IF_ERROR(CheckRange("--steps-in-flight", steps_in_flight, 1, 2));
  RETURN_IF_ERROR(CheckRange("--threads", threads, 1, 1 << 12));
  RETURN_IF_ERROR(CheckRange("--max-model-len", max_model_len, 1, 1 << 30));
  if (dir.empty()) return absl::InvalidArgumentError("--dir is empty: name a folder");
  return absl::OkStatus();
}

absl::StatusOr<ReadyFile> ReadReadyFile(const std::string& path) {
  const nlohmann::json json =
      nlohmann::json::parse(ReadSmallFile(path), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || StringOr(json, "address").empty()) {
    return absl::UnavailableError(absl::StrCat(path, ": not written yet"));
  }
  return ReadyFile{.address = StringOr(json, "address"),
                   .data_addresses = StringsOf(json, "data_addresses"),
                   .http_url = StringOr(json, "http_url"),
                   .metrics_url = StringOr(json, "metrics_url"),
                   .incarnation = json.value("incarnation", nlohmann::json())};
}

std::vector<ProcessSpec> PlanWorkers(const UpOptions& options, const std::string& bin,
                                     const RunDir& dir, int cores) {
  std::vector<ProcessSpec> specs;
  // Each role gets all cores: the prefill workers' threads yield to those of the decode workers.
  const auto add = [&](const std::string& role, int count) {
    const int threads = options.threads.value_or(ThreadsPerWorker(cores, count));
    for (int i = 0; i < count; ++i) {
      ProcessSpec spec;
      spec.role = role;
      spec.name = absl::StrCat(role, "-", i);
      spec.program = absl::StrCat(bin, "/baton-", role);
      spec.arguments = {"--model",
                        options.model,
                        "--host",
                        "127.0.0.1",
                        "--port",
                        "0",
                        "--data-port",
                        "0",
                        "--metrics-port",
                        "0",
                        "--ready-file",
                        dir.ReadyFile(spec.name),
                        "--threads",
                        absl::StrCat(threads),
                        "--drain-timeout-s",
                        absl::StrCat(kServerDrainSeconds)};
      AddTls(options, &spec);
      if (options.tls) Add(spec.arguments, "--kv-security", std::optional<std::string>("tls"));
      Add(spec.arguments, "--device", options.device);
      if (options.device != "cpu") {
        const double share = options.gpu_memory_fraction / (options.prefill + options.decode);
        spec.arguments.insert(spec.arguments.end(),
                              {"--gpu-memory-fraction", absl::StrFormat("%.4g", share)});
      }
      Add(spec.arguments, "--gpu-graphs", options.gpu_graphs);
      const std::optional<int> of_role =
          role == "prefill" ? options.tp_prefill : options.tp_decode;
      Add(spec.arguments, "--tp", of_role ? of_role : options.tp);
      Add(spec.arguments, "--kv-transport", options.kv_transport);
      Add(spec.arguments, "--compute-dtype", options.compute_dtype);
      Add(spec.arguments, "--kv-dtype", options.kv_dtype);
      Add(spec.arguments, "--kernels", options.kernels);
      Add(spec.arguments, "--block-size", options.block_size);
      Add(spec.arguments, "--num-blocks", options.num_blocks);
      Add(spec.arguments, "--chunk-tokens", options.chunk_tokens);
      Add(spec.arguments, "--max-batch-sequences", options.max_batch_sequences);
      Add(spec.arguments, "--preemption", options.preemption);
      if (role == "prefill") Add(spec.arguments, "--finish-together", options.finish_together);
      if (role == "decode") Add(spec.arguments, "--steps-in-flight", options.steps_in_flight);
      Add(spec.arguments, "--max-model-len", options.max_model_len);
      specs.push_back(std::move(spec));
    }
  };
  add("prefill", options.prefill);
  add("decode", options.decode);
  return specs;
}

ProcessSpec PlanRouter(const UpOptions& options, const std::string& bin, const RunDir& dir,
                       const std::vector<ServerRecord>& workers) {
  ProcessSpec spec{.name = "router", .role = "router", .program = bin + "/baton-router"};
  spec.arguments = {"--model", options.model, "--host", "127.0.0.1"};
  AddTls(options, &spec);
  for (const ServerRecord& worker : workers) {
    spec.arguments.insert(spec.arguments.end(), {"--" + worker.role, worker.address});
  }
  Add(spec.arguments, "--http-port", options.http_port);
  Add(spec.arguments, "--grpc-port", options.grpc_port);
  Add(spec.arguments, "--ops-port", options.ops_port);
  // Its operator is here, and asks the API's port.
  if (options.tls) Add(spec.arguments, "--admin-port", std::optional<int>(0));
  spec.arguments.insert(spec.arguments.end(),
                        {"--ready-file", dir.ReadyFile(spec.name), "--drain-timeout-s",
                         absl::StrCat(kServerDrainSeconds)});
  Add(spec.arguments, "--policy", options.policy);
  Add(spec.arguments, "--served-model-name", options.served_model_name);
  Add(spec.arguments, "--max-model-len", options.max_model_len);
  return spec;
}

ProcessSpec WithPortsOf(const ServerRecord& record, ProcessSpec spec) {
  const std::map<std::string, std::string> ports = {{"--port", PortOf(record.address)},
                                                    {"--data-port", PortsOf(record.data_addresses)},
                                                    {"--metrics-port", PortOf(record.metrics_url)},
                                                    {"--grpc-port", PortOf(record.address)},
                                                    {"--ops-port", PortOf(record.metrics_url)},
                                                    {"--http-port", PortOf(record.http_url)}};
  for (size_t i = 0; i + 1 < spec.arguments.size(); ++i) {
    const auto port = ports.find(spec.arguments[i]);
    if (port != ports.end() && !port->second.empty()) spec.arguments[i + 1] = port->second;
  }
  return spec;
}

absl::StatusOr<int> ChoosePort(std::optional<int> wanted, int fallback, const std::string& option) {
  if (!wanted) return PortIsFree(fallback) ? fallback : 0;
  if (*wanted == 0 || PortIsFree(*wanted)) return *wanted;
  return absl::UnavailableError(absl::StrCat(
      option, " ", *wanted, ": the port is in use on 127.0.0.1 by another program; choose another ",
      "port, or 0 for any free one (`ss -ltnp` shows who holds it)"));
}

std::string ProgramFolder() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return error ? "." : self.parent_path().string();
}

absl::StatusOr<std::string> FindModel(const std::string& model, const std::string& bin) {
  std::error_code error;
  std::vector<fs::path> candidates = {model};
  if (model.empty()) {
    candidates = {fs::path(bin) / "../../../deploy/models/tiny-kjv", "deploy/models/tiny-kjv"};
  }
  for (const fs::path& candidate : candidates) {
    if (!fs::is_directory(candidate, error)) continue;
    if (!fs::exists(candidate / "config.json", error)) {
      return absl::NotFoundError(absl::StrCat("--model ", candidate.string(),
                                              ": the folder holds no config.json; name a ",
                                              "model folder in Hugging Face layout"));
    }
    return fs::canonical(candidate, error).string();
  }
  if (model.empty()) {
    return absl::NotFoundError(
        "no --model was given and deploy/models/tiny-kjv is not here; give --model DIR");
  }
  return absl::NotFoundError(absl::StrCat("--model ", model,
                                          ": no such folder; name a model folder in Hugging Face ",
                                          "layout (config.json, *.safetensors, tokenizer.json)"));
}

}  // namespace baton::cli
