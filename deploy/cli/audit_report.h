#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/node/message.h"
#include "nlohmann/json.hpp"

namespace baton::cli {

// One worker's own account of what it holds.
struct AuditedWorker {
  std::string name;  // "decode-1".
  std::string role;  // "prefill" or "decode".
  WorkerAudit held;
};

// A sequence that a router answers for, and the processes it holds calls open on (empty = none).
struct OwnedSequence {
  std::string request;  // The id in the client's answer.
  uint32_t attempt = 0;
  std::string state;
  std::string prefill;  // Incarnation, 16 hex digits.
  std::string decode;
  double age_s = 0;
};

// Workers and routers of a cluster, asked one after the other, so not at the same moment.
struct AuditSample {
  std::vector<AuditedWorker> workers;
  std::map<std::string, OwnedSequence> sequences;  // By "<router>-<counter>".
  std::set<std::string> routers;  // Incarnations of those that were asked, 16 hex digits.
  bool has_all_routers = true;    // False: calls of others are theirs to judge.
};

// One call on a worker, and who owns its blocks.
struct AuditedCall {
  HeldCall call;
  std::string request;  // The id in the client's answer, if a router knows the sequence.
  std::string owner;    // State of the sequence at its router; empty = no owner was found.
  std::string reason;  // Why not.
  bool is_leak = false;
};

struct WorkerReport {
  AuditedWorker worker;
  std::vector<AuditedCall> calls;
  int32_t leaked_blocks = 0;         // That no call of the worker holds.
  std::vector<int32_t> leaked_legs;  // The ranks of transfers that no call of the worker has.
};

// The newest sample, judged by itself and the one before.
struct AuditReport {
  std::vector<WorkerReport> workers;
  std::map<std::string, OwnedSequence> sequences;
  int32_t leaked_calls = 0;
  int32_t leaked_blocks = 0;
  int32_t leaked_legs = 0;
  bool ok() const { return leaked_calls == 0 && leaked_blocks == 0 && leaked_legs == 0; }
};

// Adds the answer of a router's GET /audit. INVALID_ARGUMENT, and nothing added, if it is not one.
absl::Status AddRouterAudit(const nlohmann::json& answer, AuditSample* sample);

// A call has an owner if its sequence is live at a router that holds a call open on this very
// process, on this side, in this attempt or a later one (the worker learns of an attempt after the
// router), and if the worker has no newer call for it; or if its router is another than those that
// were asked, where these are not all. Calls, blocks and legs without owner are leaks if they were
// so in `before` too, in the same process.
AuditReport Reconcile(const AuditSample& before, const AuditSample& now);

// For people: a table of the calls, of the sequences that hold none, and last one line that begins
// with "OK" or "<n> without owner".
std::string AuditTable(const AuditReport& report);

nlohmann::json AuditJson(const AuditReport& report);

}  // namespace baton::cli
