#pragma once

#include <array>
#include <cstdint>
#include <mutex>

#include "common/transport/wire.h"

namespace baton {

// Since the transport was made.
struct TransportCounters {
  int64_t frames_sent = 0;      // Data frames.
  int64_t frames_accepted = 0;  // Data frames written to blocks and verified by checksum.
  int64_t bytes_sent = 0;       // Payload.
  int64_t bytes_accepted = 0;
  // The same, of frames that went beside the connection, which are not among those above.
  int64_t nccl_frames_sent = 0;
  int64_t nccl_frames_accepted = 0;
  int64_t nccl_bytes_sent = 0;
  int64_t nccl_bytes_accepted = 0;
  int64_t nccl_checksum_failures = 0;
  int64_t duplicate_frames = 0;                   // A sequence number again.
  int64_t duplicate_ranges = 0;                   // A range again.
  std::array<int64_t, kNumAbortCodes> refused{};  // Frames, by AbortCode.
  int64_t checksum_failures = 0;                  // Payloads.
  int64_t abandoned_frames = 0;                   // The sender gave up in the middle.
  int64_t malformed = 0;                          // Connections dropped for a bad header or a gap.
  int64_t failed_handshakes = 0;                  // Wrong key, wrong receiver, or too slow.
  int64_t refused_connections = 0;                // Over a cap.
  int64_t accepted_connections = 0;
  int64_t opened_connections = 0;
  int64_t closed_connections = 0;
  int64_t authenticated_connections = 0;  // Both directions.
  int64_t ignored_calls = 0;  // Calls for a ticket that is unknown, ended or known already.
};

// Written by the transport, read by anyone.
class CounterBoard {
 public:
  void Add(int64_t TransportCounters::*field, int64_t n = 1) {
    std::lock_guard lock(mutex_);
    counters_.*field += n;
  }
  void AddRefused(AbortCode code) {
    std::lock_guard lock(mutex_);
    ++counters_.refused[static_cast<size_t>(code)];
  }
  TransportCounters Read() const {
    std::lock_guard lock(mutex_);
    return counters_;
  }

 private:
  mutable std::mutex mutex_;
  TransportCounters counters_;
};

}  // namespace baton
