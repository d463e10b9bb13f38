#include "deploy/cli/status.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "deploy/cli/cert_ends.h"
#include "deploy/cli/http_client.h"
#include "deploy/cli/kv_pairs.h"

namespace baton::cli {
namespace {

using nlohmann::json;

constexpr const char* kBlockStates[] = {"free",    "cached", "reserved",
                                        "filling", "ready",  "draining"};

// object[key] if it is there, else `fallback`.
json Get(const json& object, const char* key, json fallback) {
  return object.is_object() && object.contains(key) ? object[key] : fallback;
}

const json& FindWorker(const json& router_says, const std::string& address) {
  static const json kNone;
  if (!router_says.is_object() || !router_says.contains("workers")) return kNone;
  for (const json& worker : router_says["workers"]) {
    if (Get(worker, "address", "") == json(address)) return worker;
  }
  return kNone;
}

// What the supervisor knows of a server's past ends and of its next start.
void AddRestarts(const ServerRecord& record, Time now, json* to) {
  (*to)["restarts"] = record.restarts;
  (*to)["last_exit"] = record.last_exit;
  (*to)["next_try_s"] = record.start_at == kNever
                            ? json()
                            : json(ToSeconds(std::max(record.start_at - now, Duration::zero())));
}

json BlocksOf(const json& said) {
  json blocks = json::object();
  for (const char* state : kBlockStates) {
    blocks[state] = Get(Get(said, "blocks", json::object()), state, 0);
  }
  return blocks;
}

// How it would exchange K/V.
void AddKv(const json& said, json* to) {
  for (const char* key : {"kv_security", "nccl", "why_no_nccl"}) (*to)[key] = Get(said, key, "");
}

// What the router says of the pairs of its workers.
json WithPairs(json status, const json& router_says) {
  status["kv_pairs"] = Get(router_says, "kv_pairs", json::array());
  status["kv_pairs_left_out"] = Get(router_says, "kv_pairs_left_out", 0);
  return status;
}

json WorkerStatus(const ServerRecord& record, const json& said, Time now) {
  const bool healthy = IsRunning(record.process) && Get(said, "healthy", false) == json(true);
  json status = {{"name", record.name},
                 {"role", record.role},
                 {"pid", record.process.pid},
                 {"address", record.address},
                 {"incarnation", record.incarnation},
                 {"healthy", healthy},
                 {"tp", Get(said, "tp", 0)},
                 {"blocks", BlocksOf(said)},
                 {"running", Get(said, "running", 0)},
                 {"waiting", Get(said, "waiting", 0)},
                 {"metrics_url", record.metrics_url}};
  AddKv(said, &status);
  AddRestarts(record, now, &status);
  return status;
}

std::string Text(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// A line for a server that has ended before; nothing for the others.
void AddRestartLine(const std::string& name, const json& server, std::string* text) {
  const std::string last_exit = Text(Get(server, "last_exit", ""));
  if (last_exit.empty()) return;
  absl::StrAppend(text, name, ": restarted ", Text(server["restarts"]), " times, last end: ",
                  last_exit);
  const json next_try = Get(server, "next_try_s", json());
  if (next_try.is_number()) {
    absl::StrAppend(text, absl::StrFormat("; next try in %.1f s", next_try.get<double>()));
  }
  absl::StrAppend(text, "\n");
}

absl::StatusOr<json> ReadStatus(const StatusOptions& options, const RemoteCluster* remote) {
  if (remote != nullptr) {
    ASSIGN_OR_RETURN(const json router_says, remote->Status());
    return RemoteStatus(remote->router(), router_says);
  }
  ASSIGN_OR_RETURN(const RunState state, RunDir(options.dir).LoadRunning());
  json status = JoinStatus(state, AskRouterStatus(state), SteadyNow());
  status["certificates_end"] = AskCertEnds(state);
  return status;
}

bool AllHealthy(const json& status) {
  bool healthy = status["router"]["healthy"] == json(true);
  for (const json& worker : status["workers"]) healthy &= worker["healthy"] == json(true);
  return healthy;
}

}  // namespace

json AskRouterStatus(const RunState& state) {
  const ServerRecord* router = state.Router();
  if (router == nullptr || router->http_url.empty()) return json();
  const absl::StatusOr<HttpResult> answer = HttpCall(
      {.url = router->http_url, .target = "/status", .idle_timeout = std::chrono::seconds(5)});
  if (!answer.ok() || answer->code != 200) return json();
  json body = json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
  return body.is_discarded() ? json() : body;
}

json JoinStatus(const RunState& state, const json& router_says, Time now) {
  json workers = json::array();
  for (const ServerRecord& server : state.servers) {
    if (server.role == "router") continue;
    workers.push_back(WorkerStatus(server, FindWorker(router_says, server.address), now));
  }
  json router = Get(router_says, "router", json::object());
  if (!router.is_object()) router = json::object();
  if (const ServerRecord* record = state.Router(); record != nullptr) {
    router["pid"] = record->process.pid;
    router["address"] = record->address;
    router["http_url"] = record->http_url;
    router["metrics_url"] = record->metrics_url;
    router["incarnation"] = record->incarnation;
    router["healthy"] = IsRunning(record->process) && router_says.is_object();
    AddRestarts(*record, now, &router);
  } else {
    router["healthy"] = false;
  }
  return WithPairs({{"workers", std::move(workers)}, {"router", std::move(router)}}, router_says);
}

json RemoteStatus(const std::string& router, const json& router_says) {
  json workers = json::array();
  size_t index = 0;
  for (const ListedWorker& worker : WorkersOf(router_says)) {
    const json& said = router_says["workers"][index++];
    workers.push_back({{"name", worker.name},
                       {"role", worker.role == Role::kPrefill ? "prefill" : "decode"},
                       {"address", worker.address},
                       {"incarnation", Get(said, "incarnation", "")},
                       {"healthy", worker.healthy},
                       {"reason", worker.reason},
                       {"tp", Get(said, "tp", 0)},
                       {"blocks", BlocksOf(said)},
                       {"running", Get(said, "running", 0)},
                       {"waiting", Get(said, "waiting", 0)}});
    AddKv(said, &workers.back());
  }
  json of_router = Get(router_says, "router", json::object());
  if (!of_router.is_object()) of_router = json::object();
  of_router["address"] = router;
  of_router["healthy"] = true;  // It has answered.
  return WithPairs({{"workers", std::move(workers)}, {"router", std::move(of_router)}},
                   router_says);
}

std::string StatusTable(const json& status) {
  const json& router = status["router"];
  std::string text =
      absl::StrFormat("router   pid %-7s %-21s %s  http %s  metrics %s\n",
                      Text(Get(router, "pid", "-")),
                      Text(Get(router, "address", "-")),
                      router["healthy"] == json(true) ? "healthy" : "NOT HEALTHY",
                      Text(Get(router, "http_url", "-")), Text(Get(router, "metrics_url", "-")));
  for (const char* key : {"queued_requests", "queued_tokens", "running_requests"}) {
    if (router.contains(key)) absl::StrAppend(&text, "  ", key, " ", Text(router[key]));
  }
  absl::StrAppend(
      &text, "\n",
      absl::StrFormat("%-8s %7s %-21s %-8s %2s %7s %7s  %s\n", "role", "pid", "address",
                      "healthy", "tp", "running", "waiting",
                      "blocks free/cached/reserved/filling/ready/draining"));
  for (const json& worker : status["workers"]) {
    std::string blocks;
    for (const char* state : kBlockStates) {
      absl::StrAppend(&blocks, blocks.empty() ? "" : "/", Text(worker["blocks"][state]));
    }
    absl::StrAppend(&text,
                    absl::StrFormat("%-8s %7s %-21s %-8s %2s %7s %7s  %s\n", Text(worker["role"]),
                                    Text(Get(worker, "pid", "-")), Text(worker["address"]),
                                    worker["healthy"] == json(true) ? "yes" : "NO",
                                    Text(worker["tp"]), Text(worker["running"]),
                                    Text(worker["waiting"]), blocks));
  }
  for (const std::string& line : KvPairLines(status)) absl::StrAppend(&text, line, "\n");
  const json ends = Get(status, "certificates_end", json::object());
  for (const std::string& line : CertEndLines(ends, UnixSeconds())) {
    absl::StrAppend(&text, line, "\n");
  }
  for (const json& worker : status["workers"]) {
    const std::string reason = Text(Get(worker, "reason", ""));
    if (!reason.empty()) absl::StrAppend(&text, Text(worker["name"]), ": ", reason, "\n");
  }
  AddRestartLine("router", router, &text);
  for (const json& worker : status["workers"]) AddRestartLine(Text(worker["name"]), worker, &text);
  return text;
}

int ShowStatus(const StatusOptions& options) {
  const auto fail = [](const absl::Status& why) {
    std::fprintf(stderr, "baton status: %s\n", std::string(why.message()).c_str());
    return 1;
  };
  std::optional<RemoteCluster> remote;
  if (!options.remote.router.empty()) {
    absl::StatusOr<RemoteCluster> opened = RemoteCluster::Open(options.remote);
    if (!opened.ok()) return fail(opened.status());
    remote = *std::move(opened);
  }
  while (true) {
    const absl::StatusOr<json> status =
        ReadStatus(options, remote.has_value() ? &*remote : nullptr);
    if (!status.ok()) return fail(status.status());
    const bool to_terminal = options.watch && isatty(STDOUT_FILENO) == 1;
    std::printf("%s%s", to_terminal ? "\033[H\033[2J" : "",
                options.json ? absl::StrCat(status->dump(options.watch ? -1 : 2), "\n").c_str()
                             : StatusTable(*status).c_str());
    std::fflush(stdout);
    if (!options.watch) return AllHealthy(*status) ? 0 : 1;
    poll(nullptr, 0, options.interval_ms);
  }
}

}  // namespace baton::cli
