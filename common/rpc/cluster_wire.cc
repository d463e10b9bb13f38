// Of message_wire.h: what the calls of Cluster carry.
#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/wire_fields.h"

namespace baton {
namespace {

constexpr int64_t kMostKvLinks = 64;  // 8 ranks at either end.

void WriteBlocks(const BlockCounts& from, v1::BlockCounts* to) {
  to->set_free(from.free);
  to->set_reserved(from.reserved);
  to->set_filling(from.filling);
  to->set_ready(from.ready);
  to->set_cached(from.cached);
  to->set_draining(from.draining);
}

absl::StatusOr<BlockCounts> ReadBlocks(const v1::BlockCounts& from) {
  // The sum must stay an int32 too.
  constexpr int64_t kMaxBlocks = kMaxInt32 / 6;
  RETURN_IF_ERROR(CheckRange("blocks.free", from.free(), 0, kMaxBlocks));
  RETURN_IF_ERROR(CheckRange("blocks.reserved", from.reserved(), 0, kMaxBlocks));
  RETURN_IF_ERROR(CheckRange("blocks.filling", from.filling(), 0, kMaxBlocks));
  RETURN_IF_ERROR(CheckRange("blocks.ready", from.ready(), 0, kMaxBlocks));
  RETURN_IF_ERROR(CheckRange("blocks.cached", from.cached(), 0, kMaxBlocks));
  RETURN_IF_ERROR(CheckRange("blocks.draining", from.draining(), 0, kMaxBlocks));
  return BlockCounts{.free = from.free(),
                     .reserved = from.reserved(),
                     .filling = from.filling(),
                     .ready = from.ready(),
                     .cached = from.cached(),
                     .draining = from.draining()};
}

using KvPeers = google::protobuf::RepeatedPtrField<v1::KvPeer>;

absl::StatusOr<std::vector<KvPeer>> ReadKvPeers(const KvPeers& from) {
  RETURN_IF_ERROR(CheckRange("kv_peers.size", from.size(), 0, kMostKvPeers));
  std::vector<KvPeer> peers;
  for (const v1::KvPeer& one : from) {
    RETURN_IF_ERROR(CheckIncarnation("kv_peers.incarnation", one.incarnation()));
    RETURN_IF_ERROR(CheckRange("kv_peers.links_over_nccl", one.links_over_nccl(), 0, kMostKvLinks));
    RETURN_IF_ERROR(CheckRange("kv_peers.links_over_tcp", one.links_over_tcp(), 0, kMostKvLinks));
    RETURN_IF_ERROR(CheckLabel("kv_peers.why_tcp", one.why_tcp()));
    peers.push_back({.incarnation = one.incarnation(),
                     .links_over_nccl = one.links_over_nccl(),
                     .links_over_tcp = one.links_over_tcp(),
                     .why_tcp = one.why_tcp()});
  }
  return peers;
}

}  // namespace

void ToProto(const WorkerAudit& from, v1::AuditResponse* to) {
  to->set_incarnation(from.incarnation);
  WriteBlocks(from.blocks, to->mutable_blocks());
  to->set_num_unowned(from.num_unowned);
  to->mutable_unowned_leg_ranks()->Assign(from.unowned_leg_ranks.begin(),
                                          from.unowned_leg_ranks.end());
  for (const HeldCall& call : from.calls) {
    v1::HeldCall* one = to->add_calls();
    ToProto(call.sequence, one->mutable_sequence());
    one->set_attempt(call.attempt);
    one->set_state(call.state);
    one->set_num_blocks(call.num_blocks);
    one->set_transfer_open(call.transfer_open);
    one->mutable_leg_ranks()->Assign(call.leg_ranks.begin(), call.leg_ranks.end());
    one->set_age_us(std::clamp<int64_t>(ToMicros(call.age), 0, kMaxWaitUs));
  }
}

absl::StatusOr<WorkerAudit> FromProto(const v1::AuditResponse& from) {
  WorkerAudit audit;
  RETURN_IF_ERROR(CheckIncarnation("incarnation", from.incarnation()));
  audit.incarnation = from.incarnation();
  ASSIGN_OR_RETURN(audit.blocks, ReadBlocks(from.blocks()));
  RETURN_IF_ERROR(CheckRange("num_unowned", from.num_unowned(), 0, kMaxInt32));
  audit.num_unowned = from.num_unowned();
  ASSIGN_OR_RETURN(audit.unowned_leg_ranks,
                   ReadLegRanks("unowned_leg_ranks", from.unowned_leg_ranks()));
  for (const v1::HeldCall& one : from.calls()) {
    HeldCall call;
    ASSIGN_OR_RETURN(call.sequence, FromProto(one.sequence()));
    call.attempt = one.attempt();
    RETURN_IF_ERROR(CheckLabel("calls.state", one.state()));
    call.state = one.state();
    RETURN_IF_ERROR(CheckRange("calls.num_blocks", one.num_blocks(), 0, kMaxInt32));
    call.num_blocks = one.num_blocks();
    call.transfer_open = one.transfer_open();
    ASSIGN_OR_RETURN(call.leg_ranks, ReadLegRanks("calls.leg_ranks", one.leg_ranks()));
    RETURN_IF_ERROR(CheckRange("calls.age_us", one.age_us(), 0, kMaxWaitUs));
    call.age = std::chrono::microseconds(one.age_us());
    audit.calls.push_back(std::move(call));
  }
  return audit;
}

void ToProto(const HelloInfo& from, v1::HelloResponse* to) {
  to->set_protocol_version(from.protocol_version);
  to->set_role(from.role == Role::kPrefill  ? v1::ROLE_PREFILL
               : from.role == Role::kDecode ? v1::ROLE_DECODE
                                            : v1::ROLE_UNSPECIFIED);
  to->set_incarnation(from.incarnation);
  to->set_numerics_id(from.numerics_id);
  to->set_layout_digest(from.layout_digest);
  to->set_model_digest(from.model_digest);
  to->set_tp_size(from.tp_size);
  to->set_block_size(from.block_size);
  to->set_num_blocks(from.num_blocks);
  if (from.layer_groups > 1) to->set_layer_groups(from.layer_groups);
  to->set_max_model_len(from.max_model_len);
  to->set_vocab_size(from.vocab_size);
  to->set_computes_prompts(from.computes_prompts);
  to->set_serves_sessions(from.serves_sessions);
  to->set_kv_wire_version(from.kv_wire_version);
  to->set_scores_prompts(from.scores_prompts);
  if (from.kv_tls) to->set_kv_tls(*from.kv_tls);
  to->set_nccl_version(from.nccl_version);
  to->set_why_no_nccl(LabelOf(from.why_no_nccl));
}

absl::StatusOr<HelloInfo> FromProto(const v1::HelloResponse& from) {
  RETURN_IF_ERROR(CheckRange("protocol_version", from.protocol_version(), 1, kMaxInt32));
  RETURN_IF_ERROR(CheckRange("role", from.role(), v1::ROLE_PREFILL, v1::ROLE_DECODE));
  RETURN_IF_ERROR(CheckIncarnation("incarnation", from.incarnation()));
  if (from.numerics_id().empty()) {
    return absl::InvalidArgumentError("numerics_id is empty: must name kernels and dtypes");
  }
  RETURN_IF_ERROR(CheckLabel("numerics_id", from.numerics_id()));
  const bool tells_kv_wire = from.protocol_version() > 3 || from.kv_wire_version() != 0;
  const int32_t kv_wire = tells_kv_wire ? from.kv_wire_version() : kKvWireOfProtocol3;
  RETURN_IF_ERROR(CheckRange("kv_wire_version", kv_wire, 1, 65535));
  RETURN_IF_ERROR(CheckRange("tp_size", from.tp_size(), 1, 1024));
  RETURN_IF_ERROR(CheckRange("block_size", from.block_size(), 1, 65536));
  RETURN_IF_ERROR(CheckRange("num_blocks", from.num_blocks(), 1, kMaxInt32));
  RETURN_IF_ERROR(CheckRange("layer_groups", from.layer_groups(), 0, 1024));
  RETURN_IF_ERROR(CheckRange("max_model_len", from.max_model_len(), 1, kMaxInt32 / 2));
  RETURN_IF_ERROR(CheckRange("vocab_size", from.vocab_size(), 1, kMaxInt32 / 2));
  RETURN_IF_ERROR(CheckLabel("nccl_version", from.nccl_version()));
  RETURN_IF_ERROR(CheckLabel("why_no_nccl", from.why_no_nccl()));
  return HelloInfo{.protocol_version = from.protocol_version(),
                   .kv_wire_version = kv_wire,
                   .role = from.role() == v1::ROLE_PREFILL ? Role::kPrefill : Role::kDecode,
                   .incarnation = from.incarnation(),
                   .numerics_id = from.numerics_id(),
                   .layout_digest = from.layout_digest(),
                   .model_digest = from.model_digest(),
                   .tp_size = from.tp_size(),
                   .block_size = from.block_size(),
                   .num_blocks = from.num_blocks(),
                   .layer_groups = std::max(1, from.layer_groups()),
                   .max_model_len = from.max_model_len(),
                   .vocab_size = from.vocab_size(),
                   .computes_prompts = from.computes_prompts(),
                   .serves_sessions = from.serves_sessions(),
                   .scores_prompts = from.scores_prompts(),
                   .kv_tls = from.has_kv_tls() ? std::optional(from.kv_tls()) : std::nullopt,
                   .nccl_version = from.nccl_version(),
                   .why_no_nccl = from.why_no_nccl()};
}

void ToProto(const WorkerStatus& from, v1::WorkerStatus* to) {
  to->set_incarnation(from.incarnation);
  WriteBlocks(from.blocks, to->mutable_blocks());
  to->set_running(from.running);
  to->set_waiting(from.waiting);
  to->set_preempted(from.preempted);
  to->set_queued_tokens(from.queued_tokens);
  to->set_tokens_per_s(from.tokens_per_s);
  to->set_draining(from.draining);
  to->set_progress(from.progress);
  to->set_computing(from.computing);
  to->set_longest_layer_us(std::clamp<int64_t>(ToMicros(from.longest_layer), 0, kMaxWaitUs));
  for (const KvPeer& peer : from.kv_peers) {
    v1::KvPeer* one = to->add_kv_peers();
    one->set_incarnation(peer.incarnation);
    one->set_links_over_nccl(peer.links_over_nccl);
    one->set_links_over_tcp(peer.links_over_tcp);
    one->set_why_tcp(LabelOf(peer.why_tcp));
  }
}

absl::StatusOr<WorkerStatus> FromProto(const v1::WorkerStatus& from) {
  RETURN_IF_ERROR(CheckIncarnation("incarnation", from.incarnation()));
  WorkerStatus status;
  ASSIGN_OR_RETURN(status.blocks, ReadBlocks(from.blocks()));
  RETURN_IF_ERROR(CheckRange("running", from.running(), 0, kMaxInt32));
  RETURN_IF_ERROR(CheckRange("waiting", from.waiting(), 0, kMaxInt32));
  RETURN_IF_ERROR(CheckRange("preempted", from.preempted(), 0, kMaxInt32));
  RETURN_IF_ERROR(CheckRange("queued_tokens", from.queued_tokens(), 0, int64_t{1} << 50));
  RETURN_IF_ERROR(CheckRange("tokens_per_s", from.tokens_per_s(), 0, int64_t{1} << 50));
  RETURN_IF_ERROR(CheckRange("longest_layer_us", from.longest_layer_us(), 0, kMaxWaitUs));
  status.incarnation = from.incarnation();
  status.running = from.running();
  status.waiting = from.waiting();
  status.preempted = from.preempted();
  status.queued_tokens = from.queued_tokens();
  status.tokens_per_s = from.tokens_per_s();
  status.draining = from.draining();
  status.progress = from.progress();
  status.computing = from.computing();
  status.longest_layer = std::chrono::microseconds(from.longest_layer_us());
  ASSIGN_OR_RETURN(status.kv_peers, ReadKvPeers(from.kv_peers()));
  return status;
}

}  // namespace baton
