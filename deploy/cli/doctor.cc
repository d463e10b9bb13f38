#include "deploy/cli/doctor.h"

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/process/command_line.h"
#include "common/transport/nccl/nccl_library.h"
#include "deploy/cli/cert_ends.h"
#include "deploy/cli/gpus.h"
#include "deploy/cli/kv_pairs.h"
#include "deploy/cli/launch_plan.h"
#include "deploy/cli/status.h"
#include "nlohmann/json.hpp"

namespace baton::cli {
namespace {

constexpr int64_t kWantedOpenFiles = 4096;  // For each rank, which has links of its own.
constexpr Duration kGpuLimit = std::chrono::seconds(60);  // Drivers of many GPUs start slowly.
constexpr int64_t kHeadroomBytes = int64_t{512} << 20;  // Router, buffers and the system.

int64_t IntOf(const nlohmann::json& config, const char* key) {
  const auto it = config.find(key);
  return it != config.end() && it->is_number_integer() ? it->get<int64_t>() : 0;
}

Finding ExamineFit(const Machine& machine, const ModelNeed& need) {
  // One full-length sequence on a prefill and on a decode worker, weights mapped once and packed
  // once by each.
  const int64_t sequence = need.kv_bytes_per_token * need.max_positions;
  const int64_t needed = 3 * need.weight_bytes + 2 * sequence + kHeadroomBytes;
  Finding finding{
      .subject = "model fit",
      .fact = absl::StrFormat("weights %s, KV %s for one sequence of %d tokens; about %s for 1P-1D",
                              HumanBytes(need.weight_bytes), HumanBytes(sequence),
                              need.max_positions, HumanBytes(needed))};
  const int64_t available = machine.share.available_bytes;
  if (available > 0 && needed > available) {
    finding.cure = absl::StrCat("only ", HumanBytes(available),
                                " are available: stop other programs, lower --max-model-len and ",
                                "--num-blocks, or take a smaller model");
  }
  return finding;
}

// What a worker without --threads takes, and what narrows it.
std::string CoresText(const MachineShare& share) {
  std::string text = absl::StrCat(share.cores(), " usable cores");
  if (share.quota_cores > 0) {
    absl::StrAppend(&text, " (control group: ", share.quota_cores, " of ", share.allowed_cores,
                    ")");
  }
  return text;
}

std::string MemoryText(const MachineShare& share) {
  std::string text = absl::StrCat(HumanBytes(share.available_bytes), " available of ",
                                  HumanBytes(share.memory_bytes()));
  if (share.limit_bytes > 0) {
    absl::StrAppend(&text, " (control group; the machine has ", HumanBytes(share.physical_bytes),
                    ")");
  }
  return text;
}

Finding ExamineRanks(const Machine& machine, int tp) {
  return {.subject = "ranks",
          .fact = absl::StrCat("--tp ", tp, " on ", machine.share.cores(), " cores"),
          .cure = tp <= machine.share.cores()
                      ? ""
                      : absl::StrCat("ranks on one core wait for each other, slower than one rank "
                                     "would be: choose --tp ", machine.share.cores(), " or less")};
}

// The cluster that `baton up` has started here, if any.
std::vector<Finding> ExamineRunning(const std::string& dir) {
  const absl::StatusOr<RunState> running = RunDir(dir).LoadRunning();
  std::vector<Finding> findings = {
      {.subject = "cluster", .fact = absl::StrCat(running.ok() ? "running in " : "none in ", dir)}};
  if (!running.ok()) return findings;
  const std::vector<Finding> pairs =
      ExamineKvPairs(JoinStatus(*running, AskRouterStatus(*running), SteadyNow()));
  findings.insert(findings.end(), pairs.begin(), pairs.end());
  const std::vector<Finding> ends = ExamineCertEnds(AskCertEnds(*running), UnixSeconds());
  findings.insert(findings.end(), ends.begin(), ends.end());
  return findings;
}

std::vector<Finding> AskRemote(const RemoteOptions& options) {
  const absl::StatusOr<RemoteCluster> cluster = RemoteCluster::Open(options);
  if (!cluster.ok()) {
    return {{.subject = "cluster",
             .fact = "not asked",
             .cure = std::string(cluster.status().message())}};
  }
  const absl::StatusOr<nlohmann::json> says = cluster->Status();
  std::vector<Finding> findings = ExamineRemote(options.router, says);
  if (!says.ok()) return findings;
  const std::vector<Finding> pairs = ExamineKvPairs(RemoteStatus(options.router, *says));
  findings.insert(findings.end(), pairs.begin(), pairs.end());
  const std::vector<Finding> ends = cluster->ExamineCerts(*says, UnixSeconds());
  findings.insert(findings.end(), ends.begin(), ends.end());
  return findings;
}

}  // namespace

ModelNeed ReadModelNeed(const std::string& model) {
  ModelNeed need;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(model, error)) {
    if (entry.path().extension() == ".safetensors") {
      need.weight_bytes += static_cast<int64_t>(entry.file_size(error));
    }
  }
  const nlohmann::json config =
      nlohmann::json::parse(ReadSmallFile(model + "/config.json"), nullptr, false);
  if (!config.is_object()) return need;
  const int64_t heads = IntOf(config, "num_attention_heads");
  const int64_t kv_heads =
      config.contains("num_key_value_heads") ? IntOf(config, "num_key_value_heads") : heads;
  int64_t head_dim = IntOf(config, "head_dim");
  if (head_dim == 0 && heads > 0) head_dim = IntOf(config, "hidden_size") / heads;
  need.kv_bytes_per_token = 2 * IntOf(config, "num_hidden_layers") * kv_heads * head_dim * 4;
  need.max_positions = IntOf(config, "max_position_embeddings");
  return need;
}

std::vector<Finding> Examine(const Machine& machine, const ModelNeed* need, int tp) {
  std::vector<Finding> findings;
  findings.push_back(
      {.subject = "CPU",
       .fact = absl::StrCat(machine.cpu_model.empty() ? "unknown" : machine.cpu_model, ", ",
                            CoresText(machine.share)),
       .cure = machine.share.cores() >= 2 ? ""
                                  : "a worker needs a core of its own: expect a "
                                    "slow cluster, or give it 2 cores or more"});
  findings.push_back(
      {.subject = "ISA",
       .fact = machine.isa,
       .cure = machine.isa != "portable"
                   ? ""
                   : "the CPU has no AVX2 and FMA: the portable kernels run, slowly"});
  findings.push_back({.subject = "memory",
                      .fact = MemoryText(machine.share)});
  findings.push_back(
      {.subject = "open files",
       .fact = absl::StrCat("limit ", machine.open_files),
       .cure = machine.open_files >= tp * kWantedOpenFiles
                   ? ""
                   : absl::StrCat("1,024 client connections and the links of ", tp, " rank",
                                  tp == 1 ? "" : "s", " need more: run `ulimit -n ",
                                  tp * kWantedOpenFiles, "` first")});
  if (tp > 1) findings.push_back(ExamineRanks(machine, tp));
  if (need != nullptr) findings.push_back(ExamineFit(machine, *need));
  return findings;
}

Finding ExamineNccl(const std::string& path) {
  const auto library = nccl::Library::Open(path);
  return {.subject = "NCCL",
          .fact = library.ok() ? absl::StrCat(nccl::VersionText((*library)->version()), " (", path,
                                              "): carries K/V between GPUs whose workers "
                                              "have that version too")
                               : absl::StrCat("none, K/V goes over TCP: ",
                                              library.status().message())};
}

int Doctor(const DoctorOptions& options) {
  if (const absl::Status status = CheckRankCount("--tp", options.tp); !status.ok()) {
    std::fprintf(stderr, "baton doctor: %s\n", std::string(status.message()).c_str());
    return 2;
  }
  const absl::StatusOr<std::string> model = FindModel(options.model, ProgramFolder());
  const ModelNeed need = model.ok() ? ReadModelNeed(*model) : ModelNeed();
  const Machine machine = ReadMachine();
  std::vector<Finding> findings = Examine(machine, model.ok() ? &need : nullptr, options.tp);
  const std::string worker = ProgramFolder() + "/baton-prefill";
  if (std::filesystem::exists(worker)) {
    const auto gpus = ExamineGpus(AskForGpus(worker, kGpuLimit), machine.gpu);
    findings.insert(findings.end(), gpus.begin(), gpus.end());
  }
  findings.push_back(ExamineNccl(nccl::LibraryPath()));
  if (model.ok()) {
    findings.push_back({.subject = "model", .fact = *model});
  } else {
    findings.push_back(
        {.subject = "model", .fact = "not found", .cure = std::string(model.status().message())});
  }
  for (const char* program : {"baton-router", "baton-prefill", "baton-decode"}) {
    const std::string path = absl::StrCat(ProgramFolder(), "/", program);
    if (std::filesystem::exists(path)) continue;
    findings.push_back({.subject = "programs",
                        .fact = absl::StrCat(path, " is missing"),
                        .cure = "build it with `ninja -C build/release`"});
  }
  const std::vector<Finding> cluster =
      options.remote.router.empty() ? ExamineRunning(options.dir) : AskRemote(options.remote);
  findings.insert(findings.end(), cluster.begin(), cluster.end());
  int problems = 0;
  for (const Finding& finding : findings) {
    std::printf("%-4s %-10s %s\n", finding.cure.empty() ? "ok" : "!!", finding.subject.c_str(),
                finding.fact.c_str());
    if (finding.cure.empty()) continue;
    ++problems;
    std::printf("     %-10s -> %s\n", "", finding.cure.c_str());
  }
  std::printf(problems == 0 ? "No problem found.\n" : "%d problem(s) found.\n", problems);
  return problems == 0 ? 0 : 1;
}

}  // namespace baton::cli
