#include "common/transport/loopback.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/late_stager.h"

// What loopback shares with the other transports is tested in tests/transport.
namespace baton {
namespace {

struct Side {
  Side(std::shared_ptr<LoopbackHub> hub, Incarnation incarnation) : epochs(64) {
    const KvLayout layout{.block_size = 4,
                          .groups = {{.num_layers = 1, .num_kv_heads = 1, .k_dim = 4, .v_dim = 4}}};
    cache = *KvCache::Create(layout, 64);
    auto made = LoopbackKvTransport::Create(hub, std::to_string(incarnation),
                                            {.incarnation = incarnation,
                                             .cache = cache.get(),
                                             .epochs = &epochs,
                                             .sink = [this](TransferEvent event) {
                                               if (event.kind == TransferEvent::Kind::kEnded) {
                                                 (event.status.ok() ? verified : failed) += 1;
                                               }
                                             }});
    EXPECT_TRUE(made.ok()) << made.status();
    transport = *std::move(made);
  }
  BlockEpochs epochs;
  std::unique_ptr<KvCache> cache;
  std::atomic<int> verified = 0;
  std::atomic<int> failed = 0;
  std::unique_ptr<LoopbackKvTransport> transport;
};

void Send(Side* from, Side* to, uint64_t n) {
  const TicketId ticket{n, n};
  const BlockId block = static_cast<BlockId>(n % 64);
  const Incarnation a = from->transport->endpoint() == "1" ? 1 : 2;
  to->transport->Expect({.ticket = ticket, .sender = a, .blocks = {{block, 0}}, .num_tokens = 4});
  from->transport->Start({.ticket = ticket,
                          .endpoint = to->transport->endpoint(),
                          .key = DerivePairKey({}, a, 3 - a),
                          .sender = a,
                          .receiver = 3 - a,
                          .blocks = {block},
                          .num_tokens = 4});
  from->transport->Push({ticket, 0, 0, 4});
  if (n % 5 == 0) to->transport->Abort(ticket);
  from->transport->Finish({.ticket = ticket});
}

TEST(LoopbackTest, TakesNoStager) {
  auto hub = std::make_shared<LoopbackHub>();
  Side side(hub, 1);
  LateStager stager(side.cache->base(), {});
  auto made = LoopbackKvTransport::Create(hub, "staged",
                                          {.incarnation = 2,
                                           .cache = side.cache.get(),
                                           .stager = &stager,
                                           .epochs = &side.epochs,
                                           .sink = [](TransferEvent) {}});
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(LoopbackTest, TwoThreadsInBothDirectionsEndEveryTicketOnce) {
  auto hub = std::make_shared<LoopbackHub>();
  Side a(hub, 1);
  Side b(hub, 2);
  std::thread other([&] {
    for (uint64_t n = 1; n <= 500; ++n) Send(&a, &b, 2 * n);
  });
  for (uint64_t n = 1; n <= 500; ++n) Send(&b, &a, 2 * n + 1);
  other.join();
  a.transport.reset();
  b.transport.reset();
  EXPECT_EQ(a.verified + b.verified, 2 * (1000 - 200));
  EXPECT_EQ(a.failed + b.failed, 2 * 200);
}

TEST(LoopbackTest, ANameIsTakenOnceAndFreeAgainAfterwards) {
  auto hub = std::make_shared<LoopbackHub>();
  auto first = std::make_unique<Side>(hub, 1);
  TransportOptions options = {.incarnation = 7,
                              .cache = first->cache.get(),
                              .epochs = &first->epochs,
                              .sink = [](TransferEvent) {}};
  EXPECT_TRUE(absl::IsAlreadyExists(LoopbackKvTransport::Create(hub, "1", options).status()));
  first->transport.reset();
  EXPECT_TRUE(LoopbackKvTransport::Create(hub, "1", options).ok());
}

// A sink may call the transport again; the call's own events come after.
TEST(LoopbackTest, TheSinkMayCallTheTransport) {
  auto hub = std::make_shared<LoopbackHub>();
  Side to(hub, 2);
  BlockEpochs epochs(64);
  std::vector<TransferEvent::Kind> kinds;
  LoopbackKvTransport* raw = nullptr;
  auto from = *LoopbackKvTransport::Create(hub, "1",
                                           {.incarnation = 1,
                                            .cache = to.cache.get(),
                                            .epochs = &epochs,
                                            .sink = [&](TransferEvent event) {
                                              kinds.push_back(event.kind);
                                              raw->Abort(event.ticket);
                                            }});
  raw = from.get();
  from->Start({.ticket = {1, 1}, .endpoint = "nobody", .sender = 1, .receiver = 2});
  EXPECT_EQ(kinds.size(), 1u);
  EXPECT_EQ(from->counters().ignored_calls, 1);
}

}  // namespace
}  // namespace baton
