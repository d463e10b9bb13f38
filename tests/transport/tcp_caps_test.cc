// How many connections there may be, and which one goes.

#include "gtest/gtest.h"
#include "tests/transport/transport_cluster.h"

namespace baton {
namespace {

class TcpCapsTest : public testing::TestWithParam<TransportKind> {
 protected:
  TransportCluster cluster_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Kinds, TcpCapsTest,
                         testing::Values(TransportKind::kTcp, TransportKind::kTls,
                                         TransportKind::kTcpStaged),
                         [](const auto& info) { return NameOf(info.param); });

// All ranks of 64 workers may come back to a restarted one at once.
TEST(TcpCapsDefaultsTest, LeaveRoomForEveryRankOfManyWorkers) {
  const TcpOptions options;
  EXPECT_GE(options.max_unauthenticated, 64 * kMaxRanks);
  EXPECT_GE(options.max_incoming, 2 * 64 * kMaxRanks);
  EXPECT_GE(options.max_outgoing, 64 * kMaxRanks);
}

// A worker that comes back is met by all ranks of all its peers at once.
TEST_P(TcpCapsTest, AllRanksOfManyPeersMayBeAmidTheirHandshakes) {
  auto to = cluster_.Make({.incarnation = 2});
  std::vector<FileDescriptor> waiting;
  for (int i = 0; i < 64 * kMaxRanks - 1; ++i) {
    auto connection = ConnectTcp(to->address);
    ASSERT_TRUE(connection.ok()) << connection.status();
    waiting.push_back(*std::move(connection));
  }
  auto from = cluster_.Make({.incarnation = 1});
  const Handoff h = MakeHandoff(from.get(), to.get(), {0, 20});
  h.Run(20);
  h.ExpectVerified();
  EXPECT_EQ(to->counters().refused_connections, 0);
}

TEST_P(TcpCapsTest, AnIdleConnectionMakesRoomForAnotherReceiver) {
  auto from = cluster_.Make({.incarnation = 1, .max_outgoing = 1});
  auto a = cluster_.Make({.incarnation = 2});
  auto b = cluster_.Make({.incarnation = 3});
  int32_t index = 0;
  for (Endpoint* to : {a.get(), b.get(), a.get()}) {
    const Handoff h = MakeHandoff(from.get(), to, {0, 20}, index++);
    h.Run(20);
    h.ExpectVerified();
  }
  EXPECT_EQ(from->counters().opened_connections, 3);
}

TEST_P(TcpCapsTest, WithoutAnIdleConnectionAnotherReceiverIsRefusedAndTheOthersGoOn) {
  auto from = cluster_.Make({.incarnation = 1, .max_outgoing = 2});
  auto a = cluster_.Make({.incarnation = 2});
  auto b = cluster_.Make({.incarnation = 3});
  auto c = cluster_.Make({.incarnation = 4});
  const Handoff to_a = MakeHandoff(from.get(), a.get(), {0, 20}, 0);
  const Handoff to_b = MakeHandoff(from.get(), b.get(), {0, 20}, 1);
  const Handoff to_c = MakeHandoff(from.get(), c.get(), {0, 20}, 2);
  for (const Handoff* h : {&to_a, &to_b}) {
    h->to->transport->Expect(h->expect());
    from->transport->Start(h->start());
  }
  from->transport->Start(to_c.start());
  const absl::Status refused = from->log.WaitEnded(to_c.ticket, false).status;
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("max_outgoing"), absl::string_view::npos);
  for (const Handoff* h : {&to_a, &to_b}) {
    h->PushAll(20);
    from->transport->Finish(h->finish());
    h->ExpectVerified();
  }
  EXPECT_EQ(from->counters().opened_connections, 2);
}

TEST_P(TcpCapsTest, AConnectionBeyondTheCapIsRefusedAndTheOldOnesStay) {
  auto first = cluster_.Make({.incarnation = 1});
  auto second = cluster_.Make({.incarnation = 2});
  auto to = cluster_.Make({.incarnation = 3, .max_incoming = 1});
  const Handoff known = MakeHandoff(first.get(), to.get(), {0, 20}, 0);
  known.Run(20);
  known.ExpectVerified();
  const Handoff refused = MakeHandoff(second.get(), to.get(), {0, 20}, 1);
  refused.Run(20);
  EXPECT_EQ(second->log.WaitEnded(refused.ticket, false).status.code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(to->counters().refused_connections, 1);
  const Handoff next = MakeHandoff(first.get(), to.get(), {0, 20}, 2);
  next.Run(20);
  next.ExpectVerified();
  EXPECT_EQ(first->counters().opened_connections, 1);
}

}  // namespace
}  // namespace baton
