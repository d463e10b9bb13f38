#pragma once

#include <string>

#include "deploy/cli/remote_cluster.h"
#include "deploy/cli/run_dir.h"
#include "nlohmann/json.hpp"

namespace baton::cli {

struct StatusOptions {
  std::string dir = ".baton";
  RemoteOptions remote;
  bool json = false;
  bool watch = false;
  int interval_ms = 1000;  // Between two looks with `watch`.
};

// `baton status`: 0 when every server is healthy, 1 otherwise.
int ShowStatus(const StatusOptions& options);

// The body of GET /status of the cluster's router, or null when there was no answer.
nlohmann::json AskRouterStatus(const RunState& state);

// The answer of `baton status --json`: what the supervisor recorded, joined by address with what
// the router says. `router_says` is the body of GET /status, or null when there was no answer;
// `now` is the present of SteadyNow().
nlohmann::json JoinStatus(const RunState& state, const nlohmann::json& router_says, Time now);

// The same of a cluster elsewhere, of whose processes nothing is known but what its router says.
nlohmann::json RemoteStatus(const std::string& router, const nlohmann::json& router_says);

// The same for people.
std::string StatusTable(const nlohmann::json& status);

}  // namespace baton::cli
