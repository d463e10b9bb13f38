#include "deploy/cli/cert_ends.h"

#include <chrono>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "boost/asio/io_context.hpp"
#include "common/tls/certificate_authority.h"
#include "deploy/cli/http_client.h"

namespace baton::cli {
namespace {

using nlohmann::json;

constexpr Duration kLimit = std::chrono::seconds(1);
constexpr int64_t kSoonS = 7 * kDayS;

std::string EndText(int64_t end_s, int64_t now_s) {
  const std::string date = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(end_s),
                                            absl::UTCTimeZone());
  if (end_s <= now_s) return absl::StrCat("certificate has ended on ", date);
  return absl::StrCat("certificate ends ", date, ", in ", (end_s - now_s) / kDayS, " days");
}

}  // namespace

json AskCertEnds(const RunState& state) {
  json ends = json::object();
  boost::asio::io_context io;
  for (const ServerRecord& server : state.servers) {
    const size_t path = server.metrics_url.rfind('/');
    if (path == std::string::npos) continue;
    const auto done = [&ends, name = server.name](const absl::StatusOr<HttpResult>& answer) {
      if (!answer.ok() || answer->code != 200) return;
      if (const auto end = CertEndIn(answer->body); end.has_value()) ends[name] = *end;
    };
    StartHttpCall(io,
                  {.url = server.metrics_url.substr(0, path),
                   .target = server.metrics_url.substr(path),
                   .idle_timeout = kLimit},
                  {.on_done = done});
  }
  io.run();
  return ends;
}

std::optional<int64_t> CertEndIn(absl::string_view metrics) {
  for (absl::string_view line : absl::StrSplit(metrics, '\n')) {
    double seconds = 0;
    if (!absl::ConsumePrefix(&line, "baton_tls_not_after_seconds ")) continue;
    if (absl::SimpleAtod(line, &seconds)) return static_cast<int64_t>(seconds);
  }
  return std::nullopt;
}

std::vector<std::string> CertEndLines(const json& ends, int64_t now_s) {
  std::vector<std::string> lines;
  for (const auto& [name, end] : ends.items()) {
    lines.push_back(absl::StrCat(name, ": ", EndText(end.get<int64_t>(), now_s)));
  }
  return lines;
}

std::vector<Finding> ExamineCertEnds(const json& ends, int64_t now_s) {
  std::vector<Finding> findings;
  for (const auto& [name, end] : ends.items()) {
    const auto end_s = end.get<int64_t>();
    findings.push_back({.subject = "TLS", .fact = absl::StrCat(name, ": ", EndText(end_s, now_s))});
    if (end_s - now_s >= kSoonS) continue;
    findings.back().cure = "`baton certs renew` in the folder of the certificates; the server "
                           "takes the new ones without a restart";
  }
  return findings;
}

}  // namespace baton::cli
