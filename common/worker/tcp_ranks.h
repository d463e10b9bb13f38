#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv_cache/kv_cache.h"
#include "common/model/transformer_runner.h"
#include "common/transport/device_stager.h"
#include "common/transport/kv_transport.h"
#include "common/transport/ranked_transport.h"
#include "common/transport/tcp/tcp_kv_transport.h"
#include "common/transport/transport_counters.h"
#include "common/worker/nccl_carriers.h"
#include "kernels/api/device.h"

namespace baton {

struct TcpRanksOptions {
  // Of each rank its pool, whose memory is the device's, and where it listens.
  struct Rank {
    Device* device = nullptr;
    const KvCache* cache = nullptr;
    int port = 0;  // 0 = any free one.
  };
  TcpOptions tcp;            // What the ranks have in common.
  std::vector<Rank> ranks;   // 1, 2, 4 or 8; what they name outlives the transport.
  int32_t kv_heads = 0;      // Of the whole model.
  KvTransport::EventSink sink;
  LostFn lost;               // A device, on a transport's thread.
  // For pools of devices: carries what both ends can. Null: all goes over TCP, and why.
  std::shared_ptr<const nccl::Library> nccl;
  std::string why_no_nccl;
};

// The K/V of all ranks of a worker over TCP: a listener, a thread and, for a pool that is a
// device's, a stager each, perhaps a carrier, and what makes one transport of them.
class TcpRanks : public KvTransport {
 public:
  // The status names --data-port where a port cannot be had.
  static absl::StatusOr<std::unique_ptr<TcpRanks>> Create(TcpRanksOptions options);
  ~TcpRanks() override;

  void Expect(ExpectArgs args) override { group_.Expect(std::move(args)); }
  void Start(StartArgs args) override { group_.Start(std::move(args)); }
  void Push(PushArgs args) override { group_.Push(args); }
  void Finish(FinishArgs args) override { group_.Finish(std::move(args)); }
  void Abort(TicketId ticket) override { group_.Abort(ticket); }
  std::vector<OpenLeg> OpenLegs() const override { return group_.OpenLegs(); }

  // Where each rank listens, "host:port".
  std::vector<std::string> endpoints() const;

  // Of all ranks together. Any thread.
  TransportCounters counters() const;
  nccl::CarrierCounters carrier_counters() const;
  NcclHere nccl() const;
  // The receivers of what this process sends, as far as it has NCCL.
  std::vector<KvPeer> kv_peers() const;

 private:
  TcpRanks(int32_t kv_heads, EventSink sink) : group_(kv_heads, std::move(sink)) {}
  absl::Status Add(TcpOptions tcp, const TcpRanksOptions::Rank& rank, LostFn lost);
  // Without it, where its memory cannot be had, all goes over TCP.
  absl::Status AddCarrier(std::shared_ptr<const nccl::Library> library,
                          const TcpRanksOptions::Rank& rank, LostFn lost, TcpOptions* tcp);

  RankedTransport group_;
  std::vector<std::unique_ptr<DeviceStager>> stagers_;
  std::vector<std::unique_ptr<nccl::NcclCarrier>> carriers_;  // By rank; null: none.
  std::string why_no_nccl_;
  std::vector<std::unique_ptr<TcpKvTransport>> ranks_;
};

}  // namespace baton
