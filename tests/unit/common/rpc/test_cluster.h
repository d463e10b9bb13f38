#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/worker_links.h"
#include "common/rpc/worker_server.h"
#include "tests/unit/common/rpc/eager_server.h"
#include "tests/unit/common/rpc/fake_inbox.h"
#include "tests/unit/common/rpc/wire_samples.h"

// A worker and a router without nodes, joined by real sockets: the test answers for both.
namespace baton {

inline HelloInfo HelloOf(Role role, Incarnation incarnation) {
  return {.role = role,
          .incarnation = incarnation,
          .numerics_id = "test",
          .block_size = 16,
          .num_blocks = 100,
          .max_model_len = kLimits.max_model_len,
          .vocab_size = kLimits.vocab_size};
}

// A worker without a node: the test answers for it.
struct TestWorker {
  explicit TestWorker(Role role, Incarnation incarnation = 7, int port = 0, bool full = false,
                      bool serves_sessions = true, int64_t max_unsent_bytes = kMostUnsentBytes,
                      int64_t max_open_bytes = kMostOpenBytes)
      : inbox(full),
        server({.hello = HelloOf(role, incarnation),
                .port = port,
                .serves_sessions = serves_sessions,
                .status =
                    [this, incarnation] {
                      WorkerStatus status;
                      status.incarnation = incarnation;
                      status.running = running;
                      return status;
                    },
                .in_turn_for = [this] { return Duration(std::chrono::seconds(turn_s)); },
                .max_unsent_bytes = max_unsent_bytes,
                .max_open_bytes = max_open_bytes},
               inbox.Of(role)) {
    const absl::Status status = server.Start();
    EXPECT_TRUE(status.ok()) << status;
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", server.port()); }

  FakeWorkerInbox inbox;
  std::atomic<int> running = 0;
  std::atomic<int> turn_s = 0;  // Of the node.
  EagerServer server;
};

struct TestRouter {
  explicit TestRouter(std::vector<WorkerAddress> workers,
                      int64_t max_unsent_bytes = kMostUnsentBytes,
                      int64_t max_untaken_bytes = kMostUntakenBytes)
      : links({.workers = std::move(workers),
               .max_unsent_bytes = max_unsent_bytes,
               .max_untaken_bytes = max_untaken_bytes,
               .in_turn_for = [this] { return Duration(std::chrono::seconds(turn_s)); }},
              &inbox) {
    links.Start();
  }
  FakeInbox<RouterMail> inbox;
  std::atomic<int> turn_s = 0;  // Of the node.
  WorkerLinks links;
};

inline DecodeRequest SampleDecode() {
  DecodeRequest request = WireSamples(1).Decode();
  request.worker = 7;  // TestWorker's.
  request.sampling.max_tokens = 8;
  request.timeout = std::chrono::seconds(60);
  return request;
}

inline PrefillRequest SamplePrefill() {
  PrefillRequest request = WireSamples(1).Prefill();
  request.worker = 7;
  request.timeout = std::chrono::seconds(60);
  return request;
}

}  // namespace baton
