#include "deploy/cli/kv_pairs.h"

#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "deploy/cli/json_fields.h"

namespace baton::cli {
namespace {

using nlohmann::json;

json ListOr(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_array() ? *it : json::array();
}

int64_t NumberOr(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_integer() ? it->get<int64_t>() : 0;
}

std::string NameOf(const json& status, const std::string& address) {
  for (const json& worker : ListOr(status, "workers")) {
    if (worker.is_object() && StringOr(worker, "address") == address) {
      return StringOr(worker, "name");
    }
  }
  return address;
}

std::string NamesOf(const json& status, const json& pair) {
  return absl::StrCat(NameOf(status, StringOr(pair, "prefill")), " -> ",
                      NameOf(status, StringOr(pair, "decode")));
}

bool DoPair(const json& pair) { return StringOr(pair, "transport") != "none"; }

std::string LineOf(const json& pair) {
  const std::string transport = StringOr(pair, "transport");
  const std::string why = StringOr(pair, "why");
  const int64_t over_tcp = NumberOr(pair, "links_over_tcp");
  const int64_t all = over_tcp + NumberOr(pair, "links_over_nccl");
  const std::string of = all > 1 ? absl::StrCat(" (", all, " links)") : "";
  const bool is_tls = StringOr(pair, "security") == "tls";
  const std::string nccl = absl::StrCat("NCCL ", StringOr(pair, "nccl"), of, ", not encrypted",
                                        is_tls ? ", unlike what goes over TCP here" : "");
  const std::string tcp =
      absl::StrCat("TCP", of, is_tls ? ", TLS" : ", authenticated by HMAC, not encrypted");
  if (!DoPair(pair)) return absl::StrCat("none: ", why);
  if (transport == "nccl") return nccl;
  if (transport == "nccl?") return absl::StrCat("nothing yet, then over ", nccl);
  if (transport == "tcp") return absl::StrCat(tcp, why.empty() ? "" : ": ", why);
  return absl::StrCat(nccl, ", but ", over_tcp, " of ", all, " links TCP: ", why);
}

std::string LeftOut(const json& status) {
  const int64_t left_out = NumberOr(status, "kv_pairs_left_out");
  return left_out == 0 ? "" : absl::StrCat("K/V of ", left_out, " more pairs is not shown");
}

}  // namespace

std::vector<std::string> KvPairLines(const json& status) {
  std::vector<std::string> lines;
  for (const json& pair : ListOr(status, "kv_pairs")) {
    if (!pair.is_object()) continue;
    lines.push_back(absl::StrCat(NamesOf(status, pair), ": K/V over ", LineOf(pair)));
  }
  if (!LeftOut(status).empty()) lines.push_back(LeftOut(status));
  return lines;
}

std::vector<Finding> ExamineKvPairs(const json& status) {
  std::map<std::string, std::vector<std::string>> workers;  // By version.
  for (const json& worker : ListOr(status, "workers")) {
    if (!worker.is_object() || StringOr(worker, "nccl").empty()) continue;
    workers[StringOr(worker, "nccl")].push_back(StringOr(worker, "name"));
  }
  std::vector<std::string> facts;
  for (const auto& [version, names] : workers) {
    facts.push_back(absl::StrCat(version, " in ", absl::StrJoin(names, ", ")));
  }
  std::vector<Finding> findings;
  if (!workers.empty()) {
    findings.push_back({.subject = "NCCL used",
                        .fact = absl::StrJoin(facts, "; "),
                        .cure = workers.size() == 1
                                    ? ""
                                    : "workers of different versions hand over by TCP: give all "
                                      "of them the same NCCL"});
  }
  for (const json& pair : ListOr(status, "kv_pairs")) {
    if (!pair.is_object()) continue;
    findings.push_back(
        {.subject = "K/V path",
         .fact = absl::StrCat(NamesOf(status, pair), ": K/V over ",
                              DoPair(pair) ? LineOf(pair) : "nothing: they do not pair"),
         .cure = DoPair(pair) ? "" : StringOr(pair, "why")});
  }
  const std::string left_out = LeftOut(status);
  if (!left_out.empty()) findings.push_back({.subject = "K/V path", .fact = left_out});
  return findings;
}

}  // namespace baton::cli
