#include "common/process/ready_file.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace baton {

absl::Status WriteReadyFile(const std::string& path, const ReadyInfo& info) {
  if (path.empty()) return absl::OkStatus();
  const std::string first = info.data_addresses.empty() ? "" : info.data_addresses[0];
  const nlohmann::json json = {{"pid", getpid()},
                               {"role", info.role},
                               {"address", info.address},
                               {"data_address", first},
                               {"data_addresses", info.data_addresses},
                               {"http_url", info.http_url},
                               {"metrics_url", info.metrics_url},
                               {"admin_address", info.admin_address},
                               {"incarnation", absl::StrFormat("%016x", info.incarnation)}};
  const std::string temporary = absl::StrCat(path, ".", getpid());
  std::ofstream out(temporary);
  out << json.dump() << "\n";
  out.close();
  if (out.good() && std::rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  std::remove(temporary.c_str());
  return absl::UnavailableError(absl::StrCat("--ready-file ", path,
                                             ": cannot be written; name a file in a folder that "
                                             "exists and is writable"));
}

}  // namespace baton
