#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/kv_cache/kv_cache.h"
#include "common/transport/block_stager.h"
#include "common/transport/handshake.h"
#include "common/transport/kv_transport.h"
#include "common/transport/pair_key.h"
#include "common/transport/payload_carrier.h"
#include "common/transport/wire.h"

namespace baton {

// What every transport needs to know of its process. Cache and epochs must outlive it.
struct TransportOptions {
  TransportSecret secret{};     // Pair keys of incoming transfers are derived from it.
  Incarnation incarnation = 0;  // This process.
  const KvCache* cache = nullptr;
  BlockStager* stager = nullptr;  // Of a cache whose memory sockets cannot touch; outlives the
                                  // transport. Null: they read and write it.
  PayloadCarrier* carrier = nullptr;  // Of payload beside the connections, with a stager; outlives
                                      // the transport. Null: all goes over them.
  const BlockEpochs* epochs = nullptr;  // [cache->num_blocks()].
  KvTransport::EventSink sink;
  RankPlace place;         // Which of this process's ranks.
  int32_t kv_heads = 0;    // Of the whole model; 0: the pool's, of the only rank.
  uint32_t max_frame_bytes = kMaxDataPayloadBytes;  // Of the frames sent here. Lower it for
                                                    // fairness on slow links only.
};

// INVALID_ARGUMENT names the missing field.
absl::Status Validate(const TransportOptions& options);

// KV heads of the whole model, and those that a rank holds.
int32_t KvHeads(const TransportOptions& options);
HeadRange HeadsAt(const TransportOptions& options, RankPlace place);

// The pool as a peer must know it to plan frames for it.
PoolShape ShapeOf(const TransportOptions& options);

}  // namespace baton
