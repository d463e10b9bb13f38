#include "common/worker/tcp_ranks.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton {
namespace {

void AddTo(const TransportCounters& from, TransportCounters* to) {
  const auto add = [&](auto... fields) { ((to->*fields += from.*fields), ...); };
  using C = TransportCounters;
  add(&C::frames_sent, &C::frames_accepted, &C::bytes_sent, &C::bytes_accepted,
      &C::duplicate_frames, &C::duplicate_ranges, &C::checksum_failures, &C::abandoned_frames,
      &C::malformed, &C::failed_handshakes, &C::refused_connections, &C::accepted_connections,
      &C::opened_connections, &C::closed_connections, &C::authenticated_connections,
      &C::ignored_calls, &C::nccl_frames_sent, &C::nccl_frames_accepted, &C::nccl_bytes_sent,
      &C::nccl_bytes_accepted, &C::nccl_checksum_failures);
  for (size_t code = 0; code < from.refused.size(); ++code) to->refused[code] += from.refused[code];
  static_assert(sizeof(C) == (21 + kNumAbortCodes) * sizeof(int64_t),
                "a counter was added that is not summed");
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpRanks>> TcpRanks::Create(TcpRanksOptions options) {
  std::unique_ptr<TcpRanks> made(new TcpRanks(options.kv_heads, std::move(options.sink)));
  const auto size = static_cast<int32_t>(options.ranks.size());
  made->why_no_nccl_ = options.why_no_nccl;
  std::vector<KvTransport*> ranks;
  for (int32_t r = 0; r < size; ++r) {
    TcpOptions tcp = options.tcp;
    tcp.transport.place = {.rank = r, .size = size};
    tcp.transport.kv_heads = options.kv_heads;
    tcp.transport.sink = made->group_.SinkOf(r);
    made->carriers_.emplace_back();
    if (options.nccl != nullptr) {
      const absl::Status added =
          made->AddCarrier(options.nccl, options.ranks[r], options.lost, &tcp);
      if (!added.ok()) {
        made->why_no_nccl_ = std::string(added.message());
        LogPath("all", /*up=*/false, made->why_no_nccl_);
      }
    }
    RETURN_IF_ERROR(made->Add(std::move(tcp), options.ranks[r], options.lost));
    ranks.push_back(made->ranks_.back().get());
  }
  made->group_.SetRanks(std::move(ranks));
  return made;
}

TcpRanks::~TcpRanks() {
  group_.Close();
  ranks_.clear();
}

absl::Status TcpRanks::AddCarrier(std::shared_ptr<const nccl::Library> library,
                                  const TcpRanksOptions::Rank& rank, LostFn lost,
                                  TcpOptions* tcp) {
  ASSIGN_OR_RETURN(const DeviceMemory memory, rank.device->Memory());
  ASSIGN_OR_RETURN(auto carrier,
                   nccl::NcclCarrier::Create(std::move(library), *rank.device, *rank.cache,
                                             {.staging = StagingFor(memory),
                                              .time_scale = tcp->time_scale,
                                              .on_path = LogPath,
                                              .on_lost = std::move(lost)}));
  tcp->transport.carrier = carrier.get();
  carriers_.back() = std::move(carrier);
  return absl::OkStatus();
}

absl::Status TcpRanks::Add(TcpOptions tcp, const TcpRanksOptions::Rank& rank, LostFn lost) {
  tcp.port = rank.port;
  tcp.transport.cache = rank.cache;
  if (!rank.cache->host()) {
    ASSIGN_OR_RETURN(stagers_.emplace_back(),
                     DeviceStager::Create(*rank.device, *rank.cache, std::move(lost)));
    tcp.transport.stager = stagers_.back().get();
  }
  absl::StatusOr<std::unique_ptr<TcpKvTransport>> made = TcpKvTransport::Create(std::move(tcp));
  if (!made.ok()) {
    return absl::Status(made.status().code(),
                        absl::StrCat("--data-port ", rank.port, ": ", made.status().message(),
                                     "; choose a free port, or 0"));
  }
  ranks_.push_back(*std::move(made));
  return absl::OkStatus();
}

std::vector<std::string> TcpRanks::endpoints() const {
  std::vector<std::string> endpoints;
  for (const auto& rank : ranks_) endpoints.push_back(rank->endpoint());
  return endpoints;
}

TransportCounters TcpRanks::counters() const {
  TransportCounters sum;
  for (const auto& rank : ranks_) AddTo(rank->counters(), &sum);
  sum.ignored_calls += group_.ignored_calls();
  return sum;
}

nccl::CarrierCounters TcpRanks::carrier_counters() const {
  nccl::CarrierCounters sum;
  for (const auto& carrier : carriers_) {
    if (carrier == nullptr) continue;
    const nccl::CarrierCounters one = carrier->counters();
    sum.pairs_up += one.pairs_up;
    sum.pairs_failed += one.pairs_failed;
    sum.pairs_condemned += one.pairs_condemned;
    sum.pairs_stuck += one.pairs_stuck;
    sum.leaked_slots += one.leaked_slots;
    sum.held_slots += one.held_slots;
    sum.links_over_nccl += one.links_over_nccl;
    sum.links_over_tcp += one.links_over_tcp;
  }
  return sum;
}

NcclHere TcpRanks::nccl() const {
  for (const auto& carrier : carriers_) {
    if (carrier == nullptr) continue;
    return {.version = nccl::VersionText(nccl::LibraryVersionOf(carrier->version()))};
  }
  return {.why_none = why_no_nccl_};
}

std::vector<KvPeer> TcpRanks::kv_peers() const {
  std::vector<nccl::LinkState> links;
  for (const auto& carrier : carriers_) {
    if (carrier == nullptr) continue;
    std::ranges::move(carrier->links(), std::back_inserter(links));
  }
  return KvPeersOf(links);
}

}  // namespace baton
