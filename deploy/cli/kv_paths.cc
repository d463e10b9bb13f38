#include "deploy/cli/kv_paths.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "boost/asio/io_context.hpp"
#include "deploy/cli/http_client.h"
#include "deploy/cli/json_fields.h"

namespace baton::cli {
namespace {

using nlohmann::json;

constexpr Duration kLimit = std::chrono::seconds(1);

// The ranks of one worker that send to those of another.
struct Pair {
  int over_nccl = 0;
  int over_tcp = 0;
  std::set<std::string> why;
};

// "http://127.0.0.1:9/metrics" without its path.
std::string BaseOf(const std::string& metrics_url) {
  return metrics_url.substr(0, metrics_url.find('/', metrics_url.find("//") + 2));
}

// Written as a number or as sixteen digits.
std::string IncarnationText(const json& incarnation) {
  if (incarnation.is_string()) return incarnation.get<std::string>();
  if (!incarnation.is_number_unsigned()) return "";
  return absl::StrCat(absl::Hex(incarnation.get<uint64_t>(), absl::kZeroPad16));
}

std::string NcclOf(const json& worker) { return StringOr(worker, "nccl"); }

bool IsTrue(const json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key] == json(true);
}

json EmptyIfNone(const json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object[key] : json::array();
}

std::map<std::pair<std::string, std::string>, Pair> PairsOf(const json& paths) {
  std::map<std::pair<std::string, std::string>, Pair> pairs;
  for (const auto& [name, worker] : paths.items()) {
    for (const json& link : EmptyIfNone(worker, "links")) {
      if (IsTrue(link, "sends")) {
        const std::string peer = StringOr(link, "peer");
        Pair& pair = pairs[{name, peer.substr(0, peer.find(' '))}];
        if (StringOr(link, "transport") == "nccl") {
          ++pair.over_nccl;
        } else {
          ++pair.over_tcp;
          pair.why.insert(StringOr(link, "why"));
        }
      }
    }
  }
  return pairs;
}

// `worker` sends.
std::string LineOf(const Pair& pair, const json& worker) {
  const int all = pair.over_nccl + pair.over_tcp;
  const std::string of = all == 1 ? "" : absl::StrCat(" (", all, " links)");
  const std::string nccl = absl::StrCat(
      "NCCL ", NcclOf(worker), IsTrue(worker, "tls") ? ", unlike TCP here not encrypted" : "");
  if (pair.over_tcp == 0) return absl::StrCat(nccl, of);
  const std::string why = absl::StrJoin(pair.why, "; ");
  if (pair.over_nccl == 0) return absl::StrCat("TCP", of, ": ", why);
  return absl::StrCat(nccl, ", but ", pair.over_tcp, " of ", all, " links TCP: ", why);
}

}  // namespace

json AskKvPaths(const RunState& state, const std::vector<std::string>& names) {
  json pages = json::object();
  boost::asio::io_context io;
  for (const ServerRecord& server : state.servers) {
    if (server.metrics_url.empty() || !std::ranges::count(names, server.name)) continue;
    const auto done = [&pages, name = server.name](const absl::StatusOr<HttpResult>& answer) {
      if (!answer.ok() || answer->code != 200) return;
      json page = json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
      if (page.is_object()) pages[name] = std::move(page);
    };
    StartHttpCall(io, {.url = BaseOf(server.metrics_url), .target = "/kv", .idle_timeout = kLimit},
                  {.on_done = done});
  }
  io.run();
  return JoinKvPaths(state, pages);
}

json JoinKvPaths(const RunState& state, const json& pages) {
  std::map<std::string, std::string> names;
  for (const ServerRecord& server : state.servers) {
    names[IncarnationText(server.incarnation)] = server.name;
  }
  json joined = json::object();
  for (const auto& [name, page] : pages.items()) {
    json links = json::array();
    for (json link : EmptyIfNone(page, "links")) {
      const std::pair<std::string, std::string> peer =
          absl::StrSplit(StringOr(link, "peer"), absl::MaxSplits(' ', 1));
      const auto known = names.find(peer.first);
      if (known == names.end()) continue;
      link["peer"] = absl::StrCat(known->second, " ", peer.second);
      links.push_back(std::move(link));
    }
    joined[name] = {{"asked_for", IsTrue(page, "asked_for")},
                    {"tls", IsTrue(page, "tls")},
                    {"nccl", NcclOf(page)},
                    {"why", StringOr(page, "why")},
                    {"links", links}};
  }
  return joined;
}

std::vector<std::string> KvPathLines(const json& paths) {
  std::vector<std::string> lines;
  for (const auto& [names, pair] : PairsOf(paths)) {
    lines.push_back(absl::StrCat(names.first, " -> ", names.second, ": K/V over ",
                                 LineOf(pair, paths[names.first])));
  }
  bool is_of_interest = false;
  for (const auto& [name, worker] : paths.items()) {
    is_of_interest |= !NcclOf(worker).empty() || IsTrue(worker, "asked_for");
    if (NcclOf(worker).empty()) {
      lines.push_back(absl::StrCat(name, ": no NCCL, K/V over TCP: ", StringOr(worker, "why")));
    }
  }
  return is_of_interest ? lines : std::vector<std::string>();
}

std::vector<Finding> ExamineKvPaths(const json& paths) {
  std::map<std::string, std::vector<std::string>> workers;  // By version.
  for (const auto& [name, worker] : paths.items()) {
    if (!NcclOf(worker).empty()) workers[NcclOf(worker)].push_back(name);
  }
  if (workers.empty()) return {};
  std::vector<std::string> facts;
  for (const auto& [version, names] : workers) {
    facts.push_back(absl::StrCat(version, " in ", absl::StrJoin(names, ", ")));
  }
  std::vector<Finding> findings = {
      {.subject = "NCCL used",
       .fact = absl::StrJoin(facts, "; "),
       .cure = workers.size() == 1 ? ""
                                   : "workers of different versions hand over by TCP: give all of "
                                     "them the same NCCL"}};
  for (std::string& line : KvPathLines(paths)) {
    findings.push_back({.subject = "K/V path", .fact = std::move(line)});
  }
  return findings;
}

}  // namespace baton::cli
