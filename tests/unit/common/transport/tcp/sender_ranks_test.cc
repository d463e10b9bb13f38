// Several ranks of one sender send to one rank: what their links do for each other. All connections
// of both sides, in one thread and in virtual time.

#include <sys/socket.h>

#include <array>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "common/transport/tcp/connections.h"
#include "common/transport/tcp/socket.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int32_t kSenders = 2;
constexpr int32_t kTokens = 64;
constexpr TicketId kSlow{1, 8};
constexpr TicketId kOpen{1, 16};
constexpr TicketId kOther{1, 24};

// One rank of a process: pool and connections.
class Rank : public Network {
 public:
  using Accept = std::function<void(std::unique_ptr<ByteStream>)>;

  // `accept`: of the rank that it connects to.
  Rank(Incarnation incarnation, RankPlace place, Accept accept)
      : accept_(std::move(accept)), epochs_(8) {
    const KvLayout layout{.block_size = 16,
                          .groups = {{.num_layers = 1,
                                      .num_kv_heads = HeadsOf(place.rank, place.size, 2).count,
                                      .k_dim = 8,
                                      .v_dim = 8}}};
    cache_ = *KvCache::Create(layout, 8);
    options_.transport = {.incarnation = incarnation,
                          .cache = cache_.get(),
                          .epochs = &epochs_,
                          .sink = [this](TransferEvent event) { events.push_back(event); },
                          .place = place,
                          .kv_heads = 2};
    options_.transport.secret.fill(3);
    connections_ = std::make_unique<Connections>(options_, &counters_, this);
  }
  ~Rank() override { connections_->Shutdown(); }

  absl::StatusOr<std::unique_ptr<ByteStream>> Connect(const std::string&) override {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) != 0) {
      return absl::InternalError("no pair of sockets");
    }
    accept_(std::make_unique<SocketStream>(FileDescriptor(fds[1])));
    return std::make_unique<SocketStream>(FileDescriptor(fds[0]));
  }
  bool Watch(uint64_t id, ByteStream&, const Interest&, bool is_new) override {
    if (is_new) links.push_back(id);
    return true;
  }
  void ExecuteCalls() override {}

  void Turn(Time now) {
    connections_->BeginTurn(now);
    for (const uint64_t id : std::vector<uint64_t>(links)) {
      if (!unread.contains(id)) connections_->Serve(id, true, true);
    }
    connections_->EndTurn();
  }
  Connections& connections() { return *connections_; }
  TransportCounters counters() const { return counters_.Read(); }
  // Of events, the status of the ticket's end; NOT_FOUND without one.
  absl::Status EndOf(TicketId ticket) const {
    for (const TransferEvent& event : events) {
      if (event.kind == TransferEvent::Kind::kEnded && event.ticket == ticket) return event.status;
    }
    return absl::NotFoundError("it has not ended");
  }

  std::vector<uint64_t> links;  // In the order in which they came.
  std::set<uint64_t> unread;    // Of these.
  std::vector<TransferEvent> events;

 private:
  const Accept accept_;
  BlockEpochs epochs_;
  std::unique_ptr<KvCache> cache_;
  TcpOptions options_;
  CounterBoard counters_;
  std::unique_ptr<Connections> connections_;
};

class SenderRanksTest : public testing::Test {
 protected:
  SenderRanksTest() {
    to_ = std::make_unique<Rank>(2, RankPlace{}, nullptr);
    for (int32_t r = 0; r < kSenders; ++r) {
      from_[r] = std::make_unique<Rank>(1, RankPlace{r, kSenders}, [this](auto stream) {
        to_->connections().Accept(std::move(stream));
      });
    }
    for (const TicketId ticket : {kSlow, kOpen, kOther}) {
      to_->connections().Execute(ExpectArgs{.ticket = ticket,
                                            .sender = 1,
                                            .blocks = {{4, 0}, {5, 0}, {6, 0}, {7, 0}},
                                            .num_tokens = kTokens});
    }
    Start(0, kSlow);
    Start(1, kSlow);
    Start(0, kOpen);
    for (int32_t r = 0; r < kSenders; ++r) Push(r, kSlow, 0, kTokens);
    Push(0, kOpen, 0, 16);  // Its first chunk; rank 1 has not begun.
    Turns({0, 1});
  }

  void Start(int32_t rank, TicketId ticket) {
    from_[rank]->connections().Execute(
        StartArgs{.ticket = ticket,
                  .endpoint = "there",
                  .key = DerivePairKey(TransportSecretOf(3), 1, 2),
                  .sender = 1,
                  .receiver = 2,
                  .blocks = {0, 1, 2, 3},
                  .num_tokens = kTokens});
  }
  static TransportSecret TransportSecretOf(uint8_t byte) {
    TransportSecret secret;
    secret.fill(byte);
    return secret;
  }
  void Push(int32_t rank, TicketId ticket, int32_t first, int32_t count) {
    from_[rank]->connections().BeginTurn(now_);
    from_[rank]->connections().Execute(
        PushArgs{.ticket = ticket, .first_token = first, .num_tokens = count});
  }
  void Finish(int32_t rank, TicketId ticket) {
    from_[rank]->connections().BeginTurn(now_);
    from_[rank]->connections().Execute(FinishArgs{.ticket = ticket});
  }
  // The receiver reads nothing of what this rank sends.
  void HoldLinkOf(int32_t rank) { to_->unread.insert(to_->links[rank]); }

  // Of these senders, and of the receiver.
  void Turns(const std::vector<int32_t>& senders) {
    for (int i = 0; i < 20; ++i) {
      for (const int32_t r : senders) from_[r]->Turn(now_);
      to_->Turn(now_);
    }
  }
  void Pass(Duration time, const std::vector<int32_t>& senders) {
    for (const Time end = now_ + time; now_ < end;) {
      now_ += milliseconds(50);
      Turns(senders);
    }
  }
  void ExpectNoEnd(const Rank& rank) {
    for (const TransferEvent& event : rank.events) {
      EXPECT_NE(event.kind, TransferEvent::Kind::kEnded) << event.status;
    }
  }
  // What link 0 has open beside goes on over it.
  void ExpectTheOpenOneIsVerified() {
    Start(1, kOpen);
    Push(0, kOpen, 16, kTokens - 16);
    Push(1, kOpen, 0, kTokens);
    for (int32_t r = 0; r < kSenders; ++r) Finish(r, kOpen);
    Turns({0, 1});
    EXPECT_EQ(to_->EndOf(kOpen), absl::OkStatus());
    for (const auto& rank : from_) EXPECT_EQ(rank->EndOf(kOpen), absl::OkStatus());
    EXPECT_EQ(from_[0]->counters().opened_connections, 1);
    EXPECT_EQ(from_[0]->counters().closed_connections, 0);
  }

  Time now_{};
  std::unique_ptr<Rank> to_;
  std::array<std::unique_ptr<Rank>, kSenders> from_;  // They connect to it.
};

// Rank 1 takes its time; what keeps it within bounds is its own deadline, which is not run here.
TEST_F(SenderRanksTest, WhoHasSentAllWaitsAsLongAsTheReceiverWaitsForOthers) {
  HoldLinkOf(1);
  Finish(0, kSlow);
  EXPECT_EQ(to_->connections().NextDeadline(), kNever);
  Pass(seconds(30), {0});
  ExpectNoEnd(*from_[0]);
  ExpectNoEnd(*to_);
  to_->unread.clear();
  Finish(1, kSlow);
  Turns({0, 1});
  EXPECT_EQ(to_->EndOf(kSlow), absl::OkStatus());
  for (const auto& rank : from_) EXPECT_EQ(rank->EndOf(kSlow), absl::OkStatus());
  EXPECT_EQ(to_->connections().NextDeadline(), kNever);
  ExpectTheOpenOneIsVerified();
}

TEST_F(SenderRanksTest, TheReceiverSaysThatItWaitsFourTimesInADeadline) {
  Finish(0, kSlow);
  Turns({0});
  for (int i = 0; i < 8; ++i) {
    const Time next = to_->connections().NextDeadline();
    EXPECT_EQ(next, now_ + milliseconds(250));
    EXPECT_EQ(from_[0]->connections().NextDeadline(), now_ + seconds(1));
    now_ = next;
    Turns({0});
  }
}

// Its data came, its final frame does not: it hears nothing of the others' that would keep it.
TEST_F(SenderRanksTest, ALinkThatStallsEndsItsOwnLegInItsBoundAndLeavesTheOthers) {
  HoldLinkOf(1);
  for (int32_t r = 0; r < kSenders; ++r) Finish(r, kSlow);
  Pass(milliseconds(950), {0, 1});
  ExpectNoEnd(*from_[1]);
  Pass(milliseconds(50), {0, 1});
  EXPECT_TRUE(absl::IsDeadlineExceeded(from_[1]->EndOf(kSlow))) << from_[1]->EndOf(kSlow);
  EXPECT_EQ(from_[1]->counters().closed_connections, 1);
  ExpectNoEnd(*from_[0]);
  from_[0]->connections().Execute(AbortArgs{kSlow});  // By the handoff of which both are legs.
  Turns({0, 1});
  EXPECT_FALSE(to_->EndOf(kSlow).ok());
  to_->unread.clear();
  ExpectTheOpenOneIsVerified();
}

TEST_F(SenderRanksTest, WhatIsSaidOfOneTicketKeepsNoOther) {
  Start(1, kOther);
  Push(1, kOther, 0, kTokens);
  Finish(1, kOther);
  Turns({1});
  HoldLinkOf(1);
  Finish(1, kSlow);
  Pass(seconds(1), {1});
  EXPECT_TRUE(absl::IsDeadlineExceeded(from_[1]->EndOf(kSlow))) << from_[1]->EndOf(kSlow);
  Pass(seconds(10), {1});
  EXPECT_TRUE(absl::IsNotFound(from_[1]->EndOf(kOther))) << from_[1]->EndOf(kOther);
}

TEST_F(SenderRanksTest, AReceiverThatFallsSilentEndsTheLegAndTheConnection) {
  Finish(0, kSlow);
  Turns({0});
  now_ += seconds(1);
  from_[0]->Turn(now_);
  EXPECT_TRUE(absl::IsDeadlineExceeded(from_[0]->EndOf(kSlow))) << from_[0]->EndOf(kSlow);
  EXPECT_EQ(from_[0]->counters().closed_connections, 1);
}

}  // namespace
}  // namespace baton
