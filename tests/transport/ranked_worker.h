#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/transport/ranked_transport.h"
#include "tests/transport/transport_cluster.h"

namespace baton {

// A worker of several ranks: each with a pool and a transport, all under one RankedTransport.
struct RankedWorker {
  // `spec.place.size` is the number of ranks.
  RankedWorker(TransportCluster* cluster, const EndpointSpec& spec);
  // By another's hand; the sink is to be told of each event too.
  using MakeRank =
      std::function<std::unique_ptr<Endpoint>(const EndpointSpec&, KvTransport::EventSink also)>;
  RankedWorker(const EndpointSpec& spec, const MakeRank& make);
  ~RankedWorker();

  int32_t size() const { return static_cast<int32_t>(ranks.size()); }
  std::vector<DataRank> addresses() const;

  EventLog log;  // What the node is told.
  RankedTransport transport;
  std::vector<std::unique_ptr<Endpoint>> ranks;
};

// One handoff between two of them, as both nodes would drive it.
struct RankedHandoff {
  TicketId ticket;
  RankedWorker* from = nullptr;
  RankedWorker* to = nullptr;
  std::vector<BlockId> from_blocks;
  std::vector<BlockId> to_blocks;
  int32_t first_token = 0;
  int32_t num_tokens = 0;
  std::vector<DataRank> via;  // Instead of the receiver's own addresses.

  void Expect() const;
  void Start() const;
  void PushAll(int32_t chunk_tokens) const;
  void Finish() const;
  void Run(int32_t chunk_tokens) const;  // All of it.

  // Both sides ended OK, once, and each rank of the receiver holds its heads of these tokens, and
  // else what it held before.
  void ExpectVerified() const;
  // Both sides ended once, with an error.
  void ExpectFailed() const;
  // The same KV into the same blocks, for a later attempt.
  RankedHandoff Again() const;
  // Runs it where a link broke before: who has not heard of it yet may lose an attempt to it, so a
  // few more may follow, and the last is verified.
  void RunToTheEnd(int32_t chunk_tokens) const;
  // The payload that the receiver's ranks want.
  int64_t bytes() const;
  TokenRange tokens() const { return {first_token, num_tokens - first_token}; }
};

// As MakeHandoff; fills the blocks of all ranks of the sender, and the receiver's with a canary.
RankedHandoff MakeRankedHandoff(RankedWorker* from, RankedWorker* to, TokenRange tokens,
                                int32_t index = 0);

}  // namespace baton
