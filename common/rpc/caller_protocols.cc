#include "common/rpc/caller_protocols.h"

#include <algorithm>

#include "common/base/protocol_version.h"
#include "common/rpc/wire_fields.h"
#include "common/telemetry/log.h"

namespace baton {
namespace {

constexpr char kTooLong[] =
    "--advertise-data-address is too long for routers before protocol 3, which carry the addresses "
    "of all ranks in 256 bytes and are refused; give numeric addresses, or upgrade them first";

}  // namespace

CallerProtocols::CallerProtocols(const std::vector<DataRank>& ranks)
    : fits_one_endpoint_(ranks.empty() || FitsOneEndpoint(ranks)) {
  if (!fits_one_endpoint_) Log(LogLevel::kWarning, kTooLong, {});
}

absl::Status CallerProtocols::Check(int32_t protocol) const {
  const bool is_before_ranks = protocol != 0 && protocol < kFirstProtocolOfRanks;
  if (fits_one_endpoint_ || !is_before_ranks) return absl::OkStatus();
  return absl::FailedPreconditionError(kTooLong);
}

void CallerProtocols::Note(const std::string& connection, int32_t protocol) {
  absl::MutexLock lock(&mutex_);
  if (first_.erase(connection) > 0) in_order_.erase(std::ranges::find(in_order_, connection));
  if (protocol == 0 || protocol >= kFirstProtocolOfRanks) return;
  first_[connection] = protocol;
  in_order_.push_back(connection);
  if (in_order_.size() <= kKeptCallers) return;
  first_.erase(in_order_.front());
  in_order_.pop_front();
}

int32_t CallerProtocols::Of(const std::string& connection) const {
  absl::MutexLock lock(&mutex_);
  const auto it = first_.find(connection);
  return it == first_.end() ? kProtocolVersion : it->second;
}

}  // namespace baton
