#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/transport/nccl/nccl_carrier.h"
#include "kernels/make_device.h"
#include "tests/transport/transport_cluster.h"

namespace baton {

// An Endpoint whose pool is an emulated GPU's. Its `cache` is an image: Upload brings it to the
// device, Download back.
struct GpuEndpoint {
  GpuEndpoint() : owned(std::make_unique<Endpoint>()), endpoint(*owned) {}
  ~GpuEndpoint();

  void Upload();
  void Download();
  nccl::CarrierCounters carrier_counters() const { return carrier->counters(); }
  // Why K/V of a connection, or some of it, did not go over NCCL, so far.
  std::vector<std::string> reasons() const;

  Processors processors;
  std::unique_ptr<nccl::NcclCarrier> carrier;
  Buffer bytes;  // Pinned: the pool's, and a list for them.
  std::atomic<bool> lost = false;
  std::unique_ptr<Endpoint> owned;  // May go to another owner, who lets it go first.
  Endpoint& endpoint;

 private:
  friend std::unique_ptr<GpuEndpoint> MakeGpuEndpoint(
      const EndpointSpec& spec, int gpu, std::shared_ptr<const nccl::Library> library,
      KvTransport::EventSink also, const nccl::Staging::Options& staging);
  void Copy(bool up);
  int64_t pool_bytes_ = 0;
  mutable std::mutex mutex_;
  std::vector<std::string> reasons_;
};

// What the emulated NCCL of this process does from now on ("" = all as it should be): see
// kernels/emulation/nccl/nccl_options.h. Fails the test if the text is not understood.
void ConfigureEmulatedNccl(const std::string& text);

// Slots of a megabyte, into which any frame fits.
inline constexpr nccl::Staging::Options kStaging = {
    .slots = 4, .slot_bytes = int64_t{1} << 20, .max_pieces = 8192};

// Without a library it has no carrier. `also`: told of each event too, after the endpoint's log.
std::unique_ptr<GpuEndpoint> MakeGpuEndpoint(const EndpointSpec& spec, int gpu,
                                             std::shared_ptr<const nccl::Library> library,
                                             KvTransport::EventSink also = nullptr,
                                             const nccl::Staging::Options& staging = kStaging);

}  // namespace baton
