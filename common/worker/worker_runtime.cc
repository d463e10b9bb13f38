#include "common/worker/worker_runtime.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/machine_share.h"
#include "common/base/status.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/model_files.h"
#include "common/kv_cache/kv_layout.h"
#include "common/model/rank_shape.h"
#include "common/process/command_line.h"
#include "common/process/identity.h"
#include "common/process/lost_device.h"
#include "common/process/ready_file.h"
#include "common/rpc/tls_metrics.h"
#include "common/telemetry/log.h"
#include "common/worker/backlog_metrics.h"
#include "common/worker/default_pool.h"
#include "common/worker/ops_server.h"
#include "common/worker/rank_ports.h"
#include "common/worker/tcp_ranks.h"

namespace baton {
namespace {

const char* NameOf(Role role) { return role == Role::kPrefill ? "prefill" : "decode"; }

// The longest sequence that is served: the option's, if that is within the model's.
absl::StatusOr<int32_t> ServedLength(int32_t wanted, int32_t model) {
  if (wanted == 0) return model;
  if (wanted <= model) return wanted;
  return absl::InvalidArgumentError(absl::StrCat("--max-model-len ", wanted,
                                                 ": the model supports ", model,
                                                 " tokens; choose at most that, or 0"));
}

std::vector<MetricSample> BlocksByState(const BlockCounts& blocks) {
  const auto sample = [](const char* state, int32_t value) {
    return MetricSample{.labels = {{"state", state}}, .value = static_cast<double>(value)};
  };
  return {sample("free", blocks.free),       sample("reserved", blocks.reserved),
          sample("filling", blocks.filling), sample("ready", blocks.ready),
          sample("cached", blocks.cached),   sample("draining", blocks.draining)};
}

struct CountedMetric {
  const char* name;
  const char* help;
  int64_t WorkerCounters::*value;
};
constexpr CountedMetric kCounted[] = {
    {"baton_calls_total", "Calls of routers.", &WorkerCounters::calls},
    {"baton_calls_refused_total", "Of those, refused.", &WorkerCounters::refused},
    {"baton_duplicate_calls_total", "Calls for an attempt that is live: refused.",
     &WorkerCounters::duplicates},
    {"baton_stale_mail_total", "Late, duplicate or unknown mail: no-ops.",
     &WorkerCounters::stale_mail},
    {"baton_prefix_cache_queries_tokens_total", "Prompt tokens looked up.",
     &WorkerCounters::prompt_tokens},
    {"baton_prefix_cache_hits_tokens_total", "Prompt tokens found.",
     &WorkerCounters::cached_tokens},
    {"baton_handoffs_total", "Transfers: started (prefill), verified (decode).",
     &WorkerCounters::handoffs},
    {"baton_handoffs_failed_total", "Transfers that ended without success.",
     &WorkerCounters::handoffs_failed},
};
static_assert(sizeof(WorkerCounters) == std::size(kCounted) * sizeof(int64_t),
              "a counter was added that is not exported");

// Memory of a GPU that is not there is cured by one option or another, which the error shall name.
absl::Status WithCure(bool is_cpu, const absl::Status& status) {
  if (is_cpu || !absl::IsResourceExhausted(status) || absl::StrContains(status.message(), "--")) {
    return status;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(status.message(),
                   ": lower --chunk-tokens or --max-batch-sequences here, or the "
                   "--gpu-memory-fraction of what else runs on this GPU, or take a smaller model"));
}

void EndWithDevice(const absl::Status& status) {
  EndForLostDevice([&] {
    Log(LogLevel::kError, "lost the device", {{"error", status.message()}});
    FlushLog();
  });
}

// Nothing of a device that is lost can be taken apart in order.
[[noreturn]] void EndWithDeviceAtStart(Role role, const std::string& device,
                                       const absl::Status& status) {
  EndForLostDevice([&] {
    FailToStart(absl::StrCat("baton-", NameOf(role)),
                absl::UnavailableError(absl::StrCat(
                    "--device ", device, ": ", status.message(),
                    ", while the model was loading; see dmesg for an Xid error, reset the GPU by "
                    "nvidia-smi --gpu-reset, or take another by --device cuda:N")));
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerRuntime>> WorkerRuntime::Create(const WorkerConfig& config,
                                                                     Role role) {
  RETURN_IF_ERROR(config.Validate());
  std::unique_ptr<WorkerRuntime> runtime(new WorkerRuntime(config, role));
  if (!config.tls_dir.empty()) {
    ASSIGN_OR_RETURN(runtime->tls_, ClusterTls::Create(config.tls_dir, TlsRoleOf(role)));
  }
  RETURN_IF_ERROR(runtime->Load());
  RETURN_IF_ERROR(runtime->Listen());
  return runtime;
}

WorkerRuntime::WorkerRuntime(const WorkerConfig& config, Role role)
    : config_(config),
      role_(role),
      incarnation_(NewIncarnation()),
      metrics_(NameOf(role), kVersion),
      thread_(role == Role::kDecode ? WorkerThread(std::in_place_index<0>, ThreadOptions())
                                    : WorkerThread(std::in_place_index<1>, ThreadOptions())),
      inbox_(std::visit([](auto& thread) { return WorkerInbox(&thread); }, thread_)),
      mailing_runner_(inbox_, &metrics_),
      transport_("tcp", inbox_, &metrics_) {}

WorkerRuntime::~WorkerRuntime() { Stop(); }

NodeThreadOptions WorkerRuntime::ThreadOptions() const {
  return {.name = absl::StrCat("engine-", NameOf(role_)),
          .max_offered_requests = static_cast<size_t>(config_.max_queued_requests)};
}

absl::StatusOr<DType> WorkerRuntime::ComputeDType(DType weights) const {
  const Device& device = *processors_[0].device;
  std::string wanted = config_.compute_dtype;
  if (wanted.empty()) wanted = device.info().unified ? "f32" : "auto";
  if (wanted != "auto") return ParseDType("--compute-dtype", wanted);
  const DType compute = device.FastestCompute(weights);
  if (weights == DType::kF32 && compute != weights) {
    Log(LogLevel::kInfo, "f32 weights are computed in another type",
        {{"compute_dtype", std::string(ToString(compute))}, {"device", device.info().name}});
  }
  return compute;
}

absl::Status WorkerRuntime::MakeProcessors(int32_t threads) {
  ASSIGN_OR_RETURN(processors_, MakeRanks({.kernels = config_.kernels,
                                           .device = config_.device,
                                           .num_threads = threads,
                                           .nice = config_.compute_nice},
                                          config_.tp));
  if (!processors_[0].why_no_gpu.empty()) {
    Log(LogLevel::kInfo, "the CPU computes", {{"no_gpu", processors_[0].why_no_gpu}});
  }
  for (size_t rank = 0; rank < processors_.size(); ++rank) {
    const DeviceInfo& info = processors_[rank].device->info();
    if (info.foregone.empty()) continue;
    Log(LogLevel::kWarning,
        "wgmma adds otherwise than mma.sync: the slower kernels of sm_80 give the right bits",
        {{"device", info.name}, {"rank", rank}, {"differs", info.foregone}});
  }
  return absl::OkStatus();
}

absl::Status WorkerRuntime::Load() {
  absl::StatusOr<ModelConfig> model = LoadModelConfig(config_.model);
  if (!model.ok()) return AtModelOption(config_.model, model.status());
  RETURN_IF_ERROR(AtModelOption(config_.model, CheckRanks(*model, config_.tp)));
  ASSIGN_OR_RETURN(const int32_t max_model_len,
                   ServedLength(config_.max_model_len, model->max_model_len));
  const MachineShare share = ReadMachineShare();
  Log(LogLevel::kInfo, "share of this machine",
      {{"cores", share.cores()}, {"memory_bytes", share.memory_bytes()}});
  const int32_t threads = config_.threads > 0 ? config_.threads : share.cores();
  RETURN_IF_ERROR(MakeProcessors(threads));
  const bool is_cpu = on_cpu();
  ASSIGN_OR_RETURN(const DType compute_dtype, ComputeDType(model->dtype));
  ASSIGN_OR_RETURN(const DType kv_dtype,
                   ParseKvDType("--kv-dtype", config_.kv_dtype, compute_dtype));
  int32_t num_blocks = config_.num_blocks;
  if (num_blocks == 0 && is_cpu) {
    num_blocks =
        DefaultNumBlocks(EntryBytesOfRanks(*model, config_.tp, kv_dtype, config_.block_size),
                         config_.block_size, max_model_len, share.memory_bytes() / 4);
  }
  // A prefill worker preempts nobody.
  const bool is_mixed = role_ == Role::kDecode && std::ranges::count(model->windows, 0) > 0 &&
                        std::ranges::max(model->windows) > 0;
  const bool swaps = config_.preemption == "swap" || (config_.preemption == "auto" && is_mixed);
  std::vector<Device*> devices;
  for (const Processors& rank : processors_) devices.push_back(rank.device.get());
  absl::StatusOr<LoadedModel> loaded =
      LoadModel({.model_dir = config_.model,
                 .max_model_len = max_model_len,
                 .compute_dtype = compute_dtype,
                 .kv_dtype = kv_dtype,
                 .block_size = config_.block_size,
                 .num_blocks = num_blocks,
                 .memory_fraction = is_cpu ? 0 : config_.gpu_memory_fraction,
                 .swap_blocks = !swaps                    ? 0
                                : config_.swap_blocks > 0 ? config_.swap_blocks
                                                          : -1,
                 .load_threads = threads,
                 .compute_nice = config_.compute_nice,
                 // A prompt gets a token of each step, whatever the decodes have taken.
                 .max_step_tokens = config_.chunk_tokens + 1,
                 .max_step_rows = config_.max_batch_sequences,
                 .graphs = config_.gpu_graphs == "on",
                 .follow_ups = config_.steps_in_flight > 1},
                devices, *processors_[0].host, &mailing_runner_, EndWithDevice);
  if (!is_cpu && absl::IsUnavailable(loaded.status())) {
    EndWithDeviceAtStart(role_, config_.device, loaded.status());
  }
  if (!loaded.ok()) return AtModelOption(config_.model, WithCure(is_cpu, loaded.status()));
  model_ = *std::move(loaded);
  if (!is_cpu) ExportMemory(model_, &metrics_);
  ExportRanks(model_, &metrics_);
  mailing_runner_.set_runner(model_.runner.get());
  num_blocks = model_.ranks[0].cache->num_blocks();
  allocator_ = std::make_unique<BlockAllocator>(num_blocks, config_.block_size, SystemRandom64(),
                                                WindowsOf(model_.info.layout));
  Log(LogLevel::kInfo, "model loaded",
      {{"model", config_.model},
       {"numerics", model_.info.numerics_id},
       {"kernels", devices[0]->info().name},
       {"slower", model_.slower},
       {"tp", config_.tp},
       {"max_model_len", model_.info.max_model_len},
       {"graphs", model_.num_graphs},
       {"blocks", num_blocks},
       {"layer_groups", NumGroups(model_.info.layout)},
       {"pool_bytes", num_blocks * BlockBytes(model_.info.layout)}});
  return absl::OkStatus();
}

absl::Status WorkerRuntime::Listen() {
  ASSIGN_OR_RETURN(secret_, NewSecret());
  ASSIGN_OR_RETURN(const std::vector<int> ports, ParseDataPorts(config_.data_port, config_.tp));
  TcpRanksOptions options;
  options.kv_heads = model_.info.layout.groups[0].num_kv_heads;
  options.sink = [this](TransferEvent event) { transport_.OnEvent(std::move(event)); };
  options.lost = EndWithDevice;
  const auto nccl =
      ChooseNccl(*processors_[0].device, config_.kv_transport, config_.kv_tls());
  if (nccl.ok()) options.nccl = *nccl;
  if (!nccl.ok()) options.why_no_nccl = std::string(nccl.status().message());
  options.tcp.transport.secret = secret_;
  options.tcp.transport.incarnation = incarnation_;
  options.tcp.transport.epochs = &allocator_->epochs();
  options.tcp.tls = config_.kv_tls();
  options.tcp.bind_host = config_.host == "localhost" ? "127.0.0.1" : config_.host;
  for (int r = 0; r < config_.tp; ++r) {
    options.ranks.push_back({.device = processors_[r].device.get(),
                             .cache = model_.ranks[r].cache.get(),
                             .port = ports[r]});
  }
  ASSIGN_OR_RETURN(std::unique_ptr<TcpRanks> ranks, TcpRanks::Create(std::move(options)));
  data_endpoints_ = ranks->endpoints();
  const TcpRanks* const transport = ranks.get();
  if (nccl.ok()) {
    ExportCarriers([transport] { return transport->carrier_counters(); }, &metrics_);
  }
  transport_.set_transport(std::move(ranks), [transport] { return transport->counters(); });
  server_ = std::make_unique<WorkerServer>(
      WorkerServerOptions{.hello = Hello(transport->nccl()),
                          .host = config_.host,
                          .port = config_.port,
                          .data_ranks = DataRanks(),
                          .tls = tls_.get(),
                          .status =
                              [this, transport] {
                                WorkerStatus status = snapshot().status;
                                status.kv_peers = transport->kv_peers();
                                return status;
                              },
                          .in_turn_for = [this] { return InTurnFor(); }},
      inbox_);
  return absl::OkStatus();
}

std::vector<DataRank> WorkerRuntime::DataRanks() const {
  if (role_ != Role::kDecode) return {};
  // Checked when the configuration was.
  const auto advertised = ParseDataAddresses(config_.advertise_data_address, config_.tp);
  const std::vector<std::string>& endpoints =
      advertised.ok() && !advertised->empty() ? *advertised : data_endpoints_;
  std::vector<DataRank> ranks;
  for (int r = 0; r < config_.tp; ++r) {
    ranks.push_back({.endpoint = endpoints[r], .heads = model_.ranks[r].shape.kv_heads});
  }
  return ranks;
}

HelloInfo WorkerRuntime::Hello(const NcclHere& nccl) const {
  return {.role = role_,
          .incarnation = incarnation_,
          .numerics_id = model_.info.numerics_id,
          .layout_digest = LayoutDigest(model_.info.layout),
          .model_digest = model_.info.model_digest,
          .tp_size = config_.tp,
          .block_size = config_.block_size,
          .num_blocks = allocator_->num_blocks(),
          .layer_groups = allocator_->num_groups(),
          .max_model_len = static_cast<int32_t>(
              std::min<int64_t>(model_.info.max_model_len, allocator_->most_tokens())),
          .vocab_size = model_.info.vocab_size,
          .computes_prompts = role_ == Role::kDecode,
          .scores_prompts = role_ == Role::kDecode,
          .kv_tls = config_.kv_tls(),
          .nccl_version = nccl.version,
          .why_no_nccl = nccl.why_none};
}

WorkerParts WorkerRuntime::parts() {
  const KvCache* const swap = model_.ranks[0].swap.get();
  return {.incarnation = incarnation_,
          .engine = {.chunk_tokens = config_.chunk_tokens,
                     .max_batch_sequences = config_.max_batch_sequences,
                     .step_budget = std::chrono::milliseconds(config_.step_budget_ms),
                     .swap_blocks = swap == nullptr ? 0 : swap->num_blocks(),
                     .steps_in_flight = config_.steps_in_flight},
          .model = model_.info,
          .allocator = *allocator_,
          .runner = mailing_runner_,
          .transport = transport_,
          .outbox = *server_};
}

PairKey WorkerRuntime::KeyOf(Incarnation prefill) const {
  return DerivePairKey(secret_, prefill, incarnation_);
}

WorkerSnapshot WorkerRuntime::snapshot() const {
  absl::MutexLock lock(&mutex_);
  return snapshot_;
}

absl::Status WorkerRuntime::Serve(WorkerNodePtr node, std::function<WorkerSnapshot()> read) {
  absl::Status status = Begin(node, std::move(read));
  if (!status.ok()) Stop();  // The node may go.
  return status;
}

absl::Status WorkerRuntime::Begin(WorkerNodePtr node, std::function<WorkerSnapshot()> read) {
  {
    absl::MutexLock lock(&mutex_);
    snapshot_ = read();
  }
  ExportMetrics();
  ExportBacklog([this] { return snapshot().status; }, &metrics_);
  ExportOwn();
  ExportTls(tls_.get(), &metrics_);
  RETURN_IF_ERROR(ServeOps());
  const auto publish = [this, read = std::move(read)](Time) {
    server_->Flush();
    WorkerSnapshot snapshot = read();
    absl::MutexLock lock(&mutex_);
    snapshot_ = snapshot;
  };
  const auto start = [&]<typename Mail>(Node<Mail>* one) {
    std::get<NodeThread<Mail>>(thread_).Start(one, publish);
  };
  std::visit(start, node);
  RETURN_IF_ERROR(server_->Start());
  const std::string address = absl::StrCat(config_.host, ":", server_->port());
  const std::string metrics_url =
      absl::StrCat("http://", config_.host, ":", ops_server_->port(), "/metrics");
  Log(LogLevel::kInfo, "listening",
      {{"role", NameOf(role_)},
       {"address", address},
       {"data_addresses", absl::StrJoin(data_endpoints_, ",")},
       {"metrics", metrics_url},
       {"incarnation", absl::StrCat(absl::Hex(incarnation_, absl::kZeroPad16))}});
  return WriteReadyFile(config_.ready_file, {.role = NameOf(role_),
                                             .address = address,
                                             .data_addresses = data_endpoints_,
                                             .metrics_url = metrics_url,
                                             .incarnation = incarnation_});
}

absl::Status WorkerRuntime::ServeOps() {
  ASSIGN_OR_RETURN(ops_server_, MakeOpsServer({.host = config_.host,
                                               .port = config_.metrics_port,
                                               .metrics = [this] { return metrics_.Render(); },
                                               .why_dead = [this] { return StandsStill(); }}));
  ops_server_->Start();
  return absl::OkStatus();
}

Duration WorkerRuntime::InTurnFor() const {
  return std::visit([](const auto& thread) { return thread.InTurnFor(SteadyNow()); }, thread_);
}

std::string WorkerRuntime::StandsStill() const {
  if (InTurnFor() >= kMostTurn) return "stands still";
  absl::MutexLock lock(&mutex_);
  return snapshot_.stands_still ? "a step stands still" : "";
}

void WorkerRuntime::ExportMetrics() {
  using Read = std::function<double(const WorkerSnapshot&)>;
  const auto add = [this](const char* name, const char* help, MetricKind kind,
                          const MetricLabels& labels, Read read) {
    metrics_.Export(name, help, kind, [this, labels, read] {
      return std::vector<MetricSample>{{.labels = labels, .value = read(snapshot())}};
    });
  };
  metrics_.Export("baton_kv_blocks", "Blocks by state.", MetricKind::kGauge,
                  [this] { return BlocksByState(snapshot().status.blocks); });
  add("baton_kv_cache_usage_ratio", "Blocks neither free nor cached, of all.", MetricKind::kGauge,
      {}, [](const WorkerSnapshot& s) {
        const BlockCounts& blocks = s.status.blocks;
        const double total = std::max(blocks.total(), 1);
        return (total - blocks.free - blocks.cached) / total;
      });
  add("baton_draining", "1 while it takes nothing new, to stop.", MetricKind::kGauge, {},
      [](const WorkerSnapshot& s) { return s.status.draining ? 1.0 : 0.0; });
  add("baton_requests_running", "Sequences in the running batch.", MetricKind::kGauge,
      {{"role", NameOf(role_)}},
      [](const WorkerSnapshot& s) { return static_cast<double>(s.status.running); });
  add("baton_requests_waiting", "Sequences that wait, by what for.", MetricKind::kGauge,
      {{"stage", role_ == Role::kPrefill ? "prefill" : "transfer"}},
      [](const WorkerSnapshot& s) { return static_cast<double>(s.status.waiting); });
  add("baton_preemptions_total", "Sequences that gave up their blocks: computed again or swapped.",
      MetricKind::kCounter, {},
      [](const WorkerSnapshot& s) { return static_cast<double>(s.preemptions); });
  for (const CountedMetric& one : kCounted) {
    add(one.name, one.help, MetricKind::kCounter, {}, [value = one.value](const WorkerSnapshot& s) {
      return static_cast<double>(s.counted.*value);
    });
  }
}

const char* WorkerRuntime::HelpOf(std::string_view counter) {
  static const std::map<std::string_view, const char*> kHelp = {
      {"revoked_reservations", "Reservations taken back for a running sequence."},
      {"swapped_sequences", "Preemptions that moved K/V to host memory."},
      {"rebinds", "Reservations moved to another transfer."},
      {"self_prefills", "Prompts computed here: no handoff worked, or no prefill worker."},
      {"joined_choices", "Further choices of a prompt whose K/V was here, without a handoff."},
      {"copied_tokens", "Tokens of further choices whose K/V was copied from the first's block."},
      {"returned_answers", "Answers that went on here after their router's session had ended."},
      {"resumed_answers", "Of those, answers of which nothing was computed again."},
      {"unbound_expired", "Reservations given up because no other transfer came in time."},
      {"sends", "Finished KV sent to another decode worker without prefill."},
      {"kept_expired", "Finished KV given up because nobody asked for it in time."}};
  return kHelp.at(counter);
}

void WorkerRuntime::ExportOwn() {
  for (const auto& [name, value] : snapshot().own) {
    metrics_.Export(absl::StrCat("baton_", name, "_total"), HelpOf(name), MetricKind::kCounter,
                    [this, key = std::string(name)] {
                      std::vector<MetricSample> samples;
                      for (const auto& [one, count] : snapshot().own) {
                        if (one == key) samples.push_back({.labels = {}, .value = double(count)});
                      }
                      return samples;
                    });
  }
}

void WorkerRuntime::Drain(const std::function<bool()>& hurry) {
  Post(inbox_, baton::Drain{});
  Log(LogLevel::kInfo, "draining", {{"limit_s", config_.drain_timeout_s}});
  const Time deadline = SteadyNow() + std::chrono::seconds(config_.drain_timeout_s);
  const auto drained = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return snapshot_.idle && snapshot_.status.draining;
  };
  bool done = false;
  while (!done && SteadyNow() < deadline && !hurry()) {
    absl::MutexLock lock(&mutex_);
    done = mutex_.AwaitWithTimeout(absl::Condition(&drained), absl::Milliseconds(50));
  }
  Log(done ? LogLevel::kInfo : LogLevel::kWarning, done ? "drained" : "drain gave up");
  Stop();
}

void WorkerRuntime::Stop() {
  if (server_ != nullptr) server_->Shutdown(std::chrono::milliseconds(100));
  if (ops_server_ != nullptr) ops_server_->Stop(Duration::zero());
  std::visit([](auto& thread) { thread.Stop(); }, thread_);
}

}  // namespace baton
