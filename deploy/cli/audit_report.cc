#include "deploy/cli/audit_report.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "deploy/cli/json_fields.h"

namespace baton::cli {
namespace {

using nlohmann::json;

// What makes a call on a worker the same one in both samples.
using CallKey = std::tuple<Incarnation, SequenceId, Attempt>;

std::string Hex(Incarnation incarnation) { return absl::StrFormat("%016x", incarnation); }

AuditedCall FindOwner(const AuditSample& sample, const AuditedWorker& worker,
                      const HeldCall& call) {
  const auto sequence = sample.sequences.find(ToString(call.sequence));
  const auto refuse = [&](std::string reason) {
    const bool is_known = sequence != sample.sequences.end();
    return AuditedCall{.call = call,
                       .request = is_known ? sequence->second.request : "",
                       .owner = "",
                       .reason = std::move(reason)};
  };
  if (!sample.has_all_routers && !sample.routers.contains(Hex(call.sequence.router))) {
    return {.call = call, .request = "", .owner = "another router's", .reason = ""};
  }
  if (sequence == sample.sequences.end()) return refuse("no router knows the sequence");
  const OwnedSequence& owned = sequence->second;
  const std::string& process = worker.role == "prefill" ? owned.prefill : owned.decode;
  if (process != Hex(worker.held.incarnation)) {
    return refuse(absl::StrCat("the router has no ", worker.role, " call open here"));
  }
  if (call.attempt > owned.attempt) {
    return refuse(absl::StrCat("the router is at attempt ", owned.attempt));
  }
  const bool is_superseded =
      std::any_of(worker.held.calls.begin(), worker.held.calls.end(), [&](const HeldCall& other) {
        return other.sequence == call.sequence && other.attempt > call.attempt &&
               other.attempt <= owned.attempt;
      });
  if (is_superseded) return refuse("the worker has a newer call for the sequence");
  return {.call = call, .request = owned.request, .owner = owned.state, .reason = ""};
}

std::set<CallKey> CallsWithoutOwner(const AuditSample& sample) {
  std::set<CallKey> keys;
  for (const AuditedWorker& worker : sample.workers) {
    for (const HeldCall& call : worker.held.calls) {
      if (!FindOwner(sample, worker, call).owner.empty()) continue;
      keys.emplace(worker.held.incarnation, call.sequence, call.attempt);
    }
  }
  return keys;
}

int32_t UnownedBlocks(const AuditSample& sample, Incarnation incarnation) {
  for (const AuditedWorker& worker : sample.workers) {
    if (worker.held.incarnation == incarnation) return worker.held.num_unowned;
  }
  return 0;
}

// Of each rank as many as both looks saw.
std::vector<int32_t> LeakedLegs(const AuditSample& before, const AuditedWorker& now) {
  const auto sorted = [](std::vector<int32_t> ranks) {
    std::ranges::sort(ranks);
    return ranks;
  };
  std::vector<int32_t> leaked;
  for (const AuditedWorker& worker : before.workers) {
    if (worker.held.incarnation != now.held.incarnation) continue;
    std::ranges::set_intersection(sorted(worker.held.unowned_leg_ranks),
                                  sorted(now.held.unowned_leg_ranks), std::back_inserter(leaked));
  }
  return leaked;
}

// "0,1,1": of the transfer that a call has open, a rank for each leg.
std::string LegsText(const std::vector<int32_t>& ranks) {
  return ranks.empty() ? "-" : absl::StrJoin(ranks, ",");
}

std::string OwnerText(const AuditedCall& call) {
  if (!call.owner.empty()) return call.owner;
  return absl::StrCat(call.is_leak ? "NONE: " : "settling: ", call.reason);
}

std::string AgeText(double seconds) { return absl::StrFormat("%.1fs", seconds); }

// What a client chose, as one word: no byte of it moves the cursor.
std::string OneWord(std::string request) {
  for (char& c : request) {
    if (c <= ' ' || c > '~') c = '?';
  }
  return request.empty() ? "-" : request;
}

// Worker, state, sequence, attempt, blocks, ranks with an open leg, age, request, owner.
std::string TableLine(const std::array<std::string, 9>& c) {
  return absl::StrFormat("%-11s %-10s %-22s %7s %6s %8s %8s  %-41s  %s\n", c[0], c[1], c[2], c[3],
                         c[4], c[5], c[6], c[7], c[8]);
}

}  // namespace

absl::Status AddRouterAudit(const json& answer, AuditSample* sample) {
  const auto refuse = [] {
    return absl::InvalidArgumentError("the router's /audit is not an audit of this version");
  };
  if (!answer.is_object() || !answer.contains("sequences") || !answer["sequences"].is_array()) {
    return refuse();
  }
  std::map<std::string, OwnedSequence> sequences;
  for (const json& entry : answer["sequences"]) {
    const std::string id = entry.is_object() ? StringOr(entry, "sequence") : "";
    if (id.empty() || !entry.contains("attempt") || !entry["attempt"].is_number_unsigned()) {
      return refuse();
    }
    sequences[id] = {
        .request = StringOr(entry, "request"),
        .attempt = entry["attempt"].get<uint32_t>(),
        .state = StringOr(entry, "state"),
        .prefill = StringOr(entry, "prefill"),
        .decode = StringOr(entry, "decode"),
        .age_s = entry.value("age_s", json()).is_number() ? entry["age_s"].get<double>() : 0};
    if (sequences[id].state.empty()) return refuse();
  }
  sample->sequences.merge(sequences);
  sample->routers.insert(StringOr(answer, "incarnation"));
  return absl::OkStatus();
}

AuditReport Reconcile(const AuditSample& before, const AuditSample& now) {
  const std::set<CallKey> suspects = CallsWithoutOwner(before);
  AuditReport report{.workers = {}, .sequences = now.sequences};
  for (const AuditedWorker& worker : now.workers) {
    WorkerReport one{.worker = worker, .calls = {}};
    for (const HeldCall& call : worker.held.calls) {
      AuditedCall audited = FindOwner(now, worker, call);
      audited.is_leak = audited.owner.empty() &&
                        suspects.contains({worker.held.incarnation, call.sequence, call.attempt});
      report.leaked_calls += audited.is_leak ? 1 : 0;
      one.calls.push_back(std::move(audited));
    }
    one.leaked_blocks =
        std::min(worker.held.num_unowned, UnownedBlocks(before, worker.held.incarnation));
    report.leaked_blocks += one.leaked_blocks;
    one.leaked_legs = LeakedLegs(before, worker);
    report.leaked_legs += static_cast<int32_t>(one.leaked_legs.size());
    report.workers.push_back(std::move(one));
  }
  return report;
}

std::string AuditTable(const AuditReport& report) {
  std::string text = TableLine(
      {"worker", "state", "sequence", "attempt", "blocks", "legs", "age", "request", "owner"});
  int num_calls = 0;
  std::set<std::string> shown;
  for (const WorkerReport& one : report.workers) {
    for (const AuditedCall& audited : one.calls) {
      const HeldCall& call = audited.call;
      const std::string sequence = ToString(call.sequence);
      ++num_calls;
      shown.insert(sequence);
      text += TableLine({one.worker.name, call.state, sequence, absl::StrCat(call.attempt),
                         absl::StrCat(call.num_blocks), LegsText(call.leg_ranks),
                         AgeText(ToSeconds(call.age)), OneWord(audited.request),
                         OwnerText(audited)});
    }
    if (one.leaked_blocks == 0 && one.leaked_legs.empty()) continue;
    text += TableLine({one.worker.name, "-", "-", "-", absl::StrCat(one.leaked_blocks),
                       LegsText(one.leaked_legs), "-", "-",
                       "NONE: no call of the worker holds them"});
  }
  for (const auto& [sequence, owned] : report.sequences) {
    if (shown.contains(sequence)) continue;
    text += TableLine({"-", "-", sequence, absl::StrCat(owned.attempt), "0", "-",
                       AgeText(owned.age_s), OneWord(owned.request), owned.state});
  }
  if (report.ok()) {
    return absl::StrCat(text, "OK: ", num_calls, " calls on ", report.workers.size(),
                        " workers, no block without owner\n");
  }
  return absl::StrCat(text, report.leaked_calls + report.leaked_blocks + report.leaked_legs,
                      " without owner: ", report.leaked_calls, " calls, and ", report.leaked_blocks,
                      " blocks and ", report.leaked_legs, " legs that no call holds\n");
}

json AuditJson(const AuditReport& report) {
  json workers = json::array();
  for (const WorkerReport& one : report.workers) {
    json calls = json::array();
    for (const AuditedCall& audited : one.calls) {
      const HeldCall& call = audited.call;
      calls.push_back({{"sequence", ToString(call.sequence)},
                       {"request", audited.request},
                       {"attempt", call.attempt},
                       {"state", call.state},
                       {"blocks", call.num_blocks},
                       {"transfer_open", call.transfer_open},
                       {"leg_ranks", call.leg_ranks},
                       {"age_s", ToSeconds(call.age)},
                       {"owner", audited.owner.empty() ? json() : json(audited.owner)},
                       {"reason", audited.reason},
                       {"leak", audited.is_leak}});
    }
    const BlockCounts& blocks = one.worker.held.blocks;
    workers.push_back({{"name", one.worker.name},
                       {"role", one.worker.role},
                       {"incarnation", Hex(one.worker.held.incarnation)},
                       {"blocks",
                        {{"free", blocks.free},
                         {"cached", blocks.cached},
                         {"reserved", blocks.reserved},
                         {"filling", blocks.filling},
                         {"ready", blocks.ready},
                         {"draining", blocks.draining}}},
                       {"leaked_blocks", one.leaked_blocks},
                       {"leaked_leg_ranks", one.leaked_legs},
                       {"calls", std::move(calls)}});
  }
  json sequences = json::array();
  for (const auto& [sequence, owned] : report.sequences) {
    sequences.push_back({{"sequence", sequence},
                         {"request", owned.request},
                         {"attempt", owned.attempt},
                         {"state", owned.state},
                         {"prefill", owned.prefill},
                         {"decode", owned.decode},
                         {"age_s", owned.age_s}});
  }
  return {{"ok", report.ok()},
          {"leaked_calls", report.leaked_calls},
          {"leaked_blocks", report.leaked_blocks},
          {"leaked_legs", report.leaked_legs},
          {"sequences", std::move(sequences)},
          {"workers", std::move(workers)}};
}

}  // namespace baton::cli
