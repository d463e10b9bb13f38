#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"

namespace baton {

// What a server tells whoever started it, once it listens.
struct ReadyInfo {
  std::string role;     // "router", "prefill" or "decode".
  std::string address;  // gRPC, "host:port".
  std::vector<std::string> data_addresses;  // KV transfers, of each rank; workers only.
  std::string http_url;                     // The API; router only.
  std::string metrics_url;
  std::string admin_address;  // "host:port"; router with certificates only.
  Incarnation incarnation = 0;
};

// Writes {"pid", "role", "address", "data_addresses", "http_url", "metrics_url", "admin_address",
// "incarnation"} and
// "data_address", the first of those, as JSON: to a file beside `path`, which then takes its name,
// so that a reader sees all or nothing.
// An empty path writes nothing. UNAVAILABLE names --ready-file and the cure.
absl::Status WriteReadyFile(const std::string& path, const ReadyInfo& info);

}  // namespace baton
