#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/node/message.h"
#include "common/telemetry/metrics.h"
#include "common/transport/nccl/nccl_carrier.h"
#include "common/transport/nccl/nccl_library.h"
#include "kernels/api/device.h"

namespace baton {

// NCCL for K/V that lies on this device, as --kv-transport says. The status tells why K/V goes over
// TCP, with all workers: memory of the CPU, no library or an old one; an emulated GPU takes only
// one that BATON_NCCL_LIBRARY names. NCCL does not encrypt: where the K/V plane is under TLS it is
// taken only if it was asked for by name, and the log warns.
absl::StatusOr<std::shared_ptr<const nccl::Library>> ChooseNccl(const Device& device,
                                                                const std::string& kv_transport,
                                                                bool kv_tls);

// Memory of the staging slots: less on small GPUs.
nccl::Staging::Options StagingFor(const DeviceMemory& memory);

// Says in the log which way the K/V of a connection goes from now on.
void LogPath(const std::string& peer, bool up, const std::string& why);

// The NCCL of this process, for operators.
struct NcclHere {
  std::string version;  // "2.23.4"; empty: none, and
  std::string why_none;
};

// The connections on which this process sends, together for each process that receives: those that
// carry most come first, kMostKvPeers at most.
std::vector<KvPeer> KvPeersOf(const std::vector<nccl::LinkState>& links);

// baton_nccl_* and baton_kv_links. `read` may be called from any thread.
void ExportCarriers(std::function<nccl::CarrierCounters()> read, Metrics* metrics);

}  // namespace baton
