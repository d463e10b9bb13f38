#include "common/worker/nccl_carriers.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"

namespace baton {
namespace {

struct Exported {
  const char* name;
  const char* help;
  int64_t nccl::CarrierCounters::*value;
  MetricKind kind = MetricKind::kCounter;
};

constexpr Exported kExported[] = {
    {"baton_nccl_pairs_up_total", "Communicators between two ranks that could be used.",
     &nccl::CarrierCounters::pairs_up},
    {"baton_nccl_pairs_failed_total", "Communicators given up while their connection stood.",
     &nccl::CarrierCounters::pairs_failed},
    {"baton_nccl_pairs_condemned_total", "Communicators given up for what the peer said.",
     &nccl::CarrierCounters::pairs_condemned},
    {"baton_nccl_pairs_stuck_total", "Communicators whose abort did not return in time.",
     &nccl::CarrierCounters::pairs_stuck},
    {"baton_nccl_leaked_slots", "Staging slots that NCCL may touch for ever.",
     &nccl::CarrierCounters::leaked_slots, MetricKind::kGauge},
    {"baton_nccl_held_slots", "Staging slots that batches hold now.",
     &nccl::CarrierCounters::held_slots, MetricKind::kGauge},
};

absl::StatusOr<std::shared_ptr<const nccl::Library>> OpenNccl(const Device& device) {
  if (device.info().unified) {
    return absl::FailedPreconditionError("it lies in the CPU's memory, which NCCL does not carry");
  }
  const std::string path = nccl::LibraryPath();
  if (absl::StartsWith(device.info().name, "emulated") && path == nccl::kLibrary) {
    return absl::FailedPreconditionError(
        absl::StrCat("the GPU is emulated, and ", nccl::kLibraryVariable,
                     " names no emulated NCCL"));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<nccl::Library> library, nccl::Library::Open(path));
  return std::shared_ptr<const nccl::Library>(std::move(library));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const nccl::Library>> ChooseNccl(const Device& device,
                                                                const std::string& kv_transport,
                                                                bool kv_tls) {
  if (kv_transport == "tcp") return absl::FailedPreconditionError("--kv-transport tcp");
  const bool is_asked_for = kv_transport == "nccl";
  if (kv_tls && !is_asked_for) {
    return absl::FailedPreconditionError("K/V goes over TLS, and NCCL does not encrypt");
  }
  auto nccl = OpenNccl(device);
  if (!nccl.ok()) {
    Log(is_asked_for ? LogLevel::kWarning : LogLevel::kInfo, "K/V goes over TCP",
        {{"why", std::string(nccl.status().message())}});
  } else if (kv_tls) {
    Log(LogLevel::kWarning, "K/V over NCCL is not encrypted, though over TCP it goes over TLS",
        {{"cure", "--kv-transport auto, or a network between the GPUs that nobody else reaches"}});
  }
  return nccl;
}

nccl::Staging::Options StagingFor(const DeviceMemory& memory) {
  constexpr int64_t kLarge = int64_t{8} << 30;
  nccl::Staging::Options options;
  if (memory.total < kLarge) options.slot_bytes = int64_t{2} << 20;
  return options;
}

void LogPath(const std::string& peer, bool up, const std::string& why) {
  if (up && why.empty()) {
    Log(LogLevel::kInfo, "K/V goes over NCCL", {{"peer", peer}});
  } else if (up) {
    Log(LogLevel::kWarning, "K/V goes over NCCL, but not all", {{"peer", peer}, {"why", why}});
  } else {
    Log(LogLevel::kWarning, "K/V goes over TCP", {{"peer", peer}, {"why", why}});
  }
}

std::vector<KvPeer> KvPeersOf(const std::vector<nccl::LinkState>& links) {
  std::map<Incarnation, KvPeer> peers;
  for (const nccl::LinkState& link : links) {
    uint64_t incarnation = 0;
    if (!link.sends ||
        !absl::SimpleHexAtoi(link.peer.substr(0, link.peer.find(' ')), &incarnation)) {
      continue;
    }
    KvPeer& peer = peers[incarnation];
    peer.incarnation = incarnation;
    ++(link.is_up ? peer.links_over_nccl : peer.links_over_tcp);
    if (!link.is_up) peer.why_tcp = link.why;
  }
  std::vector<KvPeer> most;
  for (auto& [incarnation, peer] : peers) most.push_back(std::move(peer));
  std::ranges::stable_sort(most, std::greater{}, [](const KvPeer& peer) {
    return peer.links_over_nccl + peer.links_over_tcp;
  });
  if (most.size() > kMostKvPeers) most.resize(kMostKvPeers);
  return most;
}

void ExportCarriers(std::function<nccl::CarrierCounters()> read, Metrics* metrics) {
  for (const Exported& one : kExported) {
    metrics->Export(one.name, one.help, one.kind, [read, value = one.value] {
      return std::vector<MetricSample>{
          {.labels = {}, .value = static_cast<double>(read().*value)}};
    });
  }
  metrics->Export("baton_kv_links", "Connections between ranks, by what carries their K/V.",
                  MetricKind::kGauge, [read = std::move(read)] {
                    const nccl::CarrierCounters counters = read();
                    return std::vector<MetricSample>{
                        {.labels = {{"transport", "nccl"}},
                         .value = static_cast<double>(counters.links_over_nccl)},
                        {.labels = {{"transport", "tcp"}},
                         .value = static_cast<double>(counters.links_over_tcp)}};
                  });
}

}  // namespace baton
