#include "router/openai/status_json.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "router/openai/kv_pairs_json.h"
#include "router/pair_fit.h"

namespace baton {
namespace {

const char* RoleName(Role role) {
  switch (role) {
    case Role::kRouter:
      return "router";
    case Role::kPrefill:
      return "prefill";
    case Role::kDecode:
      return "decode";
  }
  return "unknown";
}

Json WorkerJson(const WorkerView& worker) {
  const BlockCounts& blocks = worker.status.blocks;
  return {{"role", RoleName(worker.role)},
          {"address", worker.address},
          {"incarnation", absl::StrFormat("%016x", worker.hello.incarnation)},
          {"healthy", worker.healthy},
          {"reason", worker.reason},
          {"alone", worker.alone},
          {"protocol", worker.hello.protocol_version},
          {"kv_wire", worker.hello.kv_wire_version},
          {"kv_security", KvSecurityOf(worker.hello)},
          {"nccl", worker.hello.nccl_version},
          {"why_no_nccl", worker.hello.why_no_nccl},
          {"numerics_id", worker.hello.numerics_id},
          {"tp", worker.hello.tp_size},
          {"layer_groups", worker.hello.layer_groups},
          {"blocks",
           {{"free", blocks.free},
            {"cached", blocks.cached},
            {"reserved", blocks.reserved},
            {"filling", blocks.filling},
            {"ready", blocks.ready},
            {"draining", blocks.draining},
            {"total", worker.hello.num_blocks}}},
          {"running", worker.status.running},
          {"waiting", worker.status.waiting},
          {"preempted", worker.status.preempted},
          {"queued_tokens", worker.status.queued_tokens},
          {"tokens_per_s", worker.status.tokens_per_s},
          {"draining", worker.status.draining}};
}

}  // namespace

Json StatusJson(const RouterView& view, bool ready, const std::string& model) {
  Json workers = Json::array();
  for (const WorkerView& worker : view.workers) workers.push_back(WorkerJson(worker));
  Json pairs = KvPairsJson(view);
  return {{"workers", std::move(workers)},
          {"kv_pairs", std::move(pairs["kv_pairs"])},
          {"kv_pairs_left_out", pairs["kv_pairs_left_out"]},
          {"router",
           {{"model", model},
            {"ready", ready},
            {"queued_requests", view.queued_requests},
            {"queued_tokens", view.queued_tokens},
            {"running_requests", view.running_requests}}}};
}

Json AuditJson(const RouterAudit& audit) {
  const auto hex = [](Incarnation incarnation) {
    return incarnation == 0 ? std::string("0")
                            : absl::StrCat(absl::Hex(incarnation, absl::kZeroPad16));
  };
  Json sequences = Json::array();
  for (const LiveSequence& one : audit.sequences) {
    Json lost = Json::array();
    for (const Incarnation worker : one.lost) lost.push_back(hex(worker));
    sequences.push_back({{"sequence", ToString(one.sequence)},
                         {"request", one.label},
                         {"attempt", one.attempt},
                         {"state", one.state},
                         {"prefill", hex(one.prefill)},
                         {"decode", hex(one.decode)},
                         {"age_s", ToSeconds(one.age)},
                         {"moves", one.moves},
                         {"retries", one.retries},
                         {"handoff_failures", one.handoff_failures},
                         {"lost", std::move(lost)}});
  }
  Json blamed = Json::array();
  for (const BlamedPair& pair : audit.blamed) {
    blamed.push_back({{"prefill_worker", pair.prefill},
                      {"decode_worker", pair.decode},
                      {"left_s", ToSeconds(pair.left)}});
  }
  return {{"incarnation", hex(audit.incarnation)},
          {"sequences", std::move(sequences)},
          {"blamed", std::move(blamed)}};
}

}  // namespace baton
