#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/kv_cache/kv_cache.h"
#include "common/transport/device_stager.h"
#include "common/transport/loopback.h"
#include "common/transport/tcp/tcp_kv_transport.h"
#include "gtest/gtest.h"
#include "tests/transport/late_copies.h"
#include "tests/transport/late_stager.h"

namespace baton {

// What a transport told its node.
class EventLog {
 public:
  void Add(TransferEvent event);

  // The kEnded of one side of a ticket; waits, and fails the test if it does not come.
  TransferEvent WaitEnded(TicketId ticket, bool receiver);
  bool WaitBegun(TicketId ticket);
  int Count(TransferEvent::Kind kind, TicketId ticket, bool receiver) const;

 private:
  const TransferEvent* Find(TransferEvent::Kind kind, TicketId ticket, bool receiver) const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TransferEvent> events_;
};

// kTls: sockets under TLS. kTcpStaged: sockets, and pools that only a stager reaches; kTcpDevice:
// that only a device does.
enum class TransportKind { kLoopback, kTcp, kTls, kTcpStaged, kTcpDevice };

std::string NameOf(TransportKind kind);

struct EndpointSpec {
  Incarnation incarnation = 1;
  int32_t block_size = 16;
  int32_t num_blocks = 64;
  RankPlace place;
  int32_t kv_heads = 4;  // Of the whole model.
  int32_t k_dim = 8;
  int32_t num_layers = 3;
  uint32_t max_frame_bytes = kMaxDataPayloadBytes;
  // Less than 1 only where any limit's end is the one that is expected: the test says nothing of
  // how fast this machine is.
  double time_scale = 1;
  int32_t patient_rank = -1;  // Of a RankedWorker: its limits are 20 times as long.
  int max_outgoing = 256;
  int max_incoming = 1024;
  int max_unauthenticated = TcpOptions{}.max_unauthenticated;
  LateStager::Options stager;
  HeadRange heads() const { return HeadsOf(place.rank, place.size, kv_heads); }
};

// One process: pool, transport, and what it was told.
struct Endpoint {
  EndpointSpec spec;
  EventLog log;
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<LateStager> stager;  // kTcpStaged: copies from and to the cache.
  std::unique_ptr<LateCopies> device;
  std::unique_ptr<DeviceStager> device_stager;  // kTcpDevice.
  std::unique_ptr<KvCache> untouched;  // With a stager: what the transport knows of the cache.
  std::unique_ptr<BlockEpochs> epochs;
  TransportSecret secret;
  std::string address;
  std::function<TransportCounters()> counters;
  std::unique_ptr<KvTransport> transport;  // Last: it uses the others until it is gone.

  // Every byte of the pool is the canary / these tokens of these blocks hold the pattern.
  void FillCanary(uint8_t canary);
  void FillPattern(const std::vector<BlockId>& blocks, TokenRange tokens, uint64_t salt);
  // The whole pool is as it was, but for the given writes.
  testing::AssertionResult IsCanaryBut(uint8_t canary) const;
  struct Write {
    std::vector<BlockId> blocks;
    TokenRange tokens;
    uint64_t salt = 0;
  };
  testing::AssertionResult IsCanaryBut(uint8_t canary, const std::vector<Write>& writes) const;
};

class TransportCluster {
 public:
  explicit TransportCluster(TransportKind kind) : kind_(kind) {}
  // `also`: told of each event too, after the endpoint's log.
  std::unique_ptr<Endpoint> Make(const EndpointSpec& spec, KvTransport::EventSink also = nullptr);

 private:
  // For kinds with a stager.
  void AddStager(Endpoint* e, TransportOptions* options) const;

  TransportKind kind_;
  std::shared_ptr<LoopbackHub> hub_ = std::make_shared<LoopbackHub>();
};

// One handoff, as both nodes would drive it.
struct Handoff {
  TicketId ticket;
  Endpoint* from = nullptr;
  Endpoint* to = nullptr;
  std::vector<BlockId> from_blocks;
  std::vector<BlockId> to_blocks;
  int32_t first_token = 0;
  int32_t num_tokens = 0;
  HandoffDigests digests{1, 2, 3};
  std::string via;  // Instead of the receiver's own address.

  ExpectArgs expect() const;
  StartArgs start() const;
  FinishArgs finish() const;
  void PushAll(int32_t chunk_tokens) const;  // Chunk by chunk, layer by layer.
  void Run(int32_t chunk_tokens) const;      // Expect, start, push, finish.
  TokenRange tokens() const { return {first_token, num_tokens - first_token}; }
  Endpoint::Write written() const { return {to_blocks, tokens(), ticket.lo}; }
  // Both sides ended OK, once, and begun once; the token arrived.
  void ExpectVerified() const;
};

// Blocks for num_tokens on both sides, drawn from the pools' ends in shuffled order: `index` keeps
// handoffs apart. Fills the sender's with the ticket's pattern.
Handoff MakeHandoff(Endpoint* from, Endpoint* to, TokenRange tokens, int32_t index = 0);

}  // namespace baton
