// One link of a handoff between workers of several ranks: what breaks on it ends the whole handoff
// on both sides, and nothing else.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "gtest/gtest.h"
#include "tests/transport/fault_proxy.h"
#include "tests/transport/ranked_worker.h"

namespace baton {
namespace {

// A rank's transport that reaches one target by way of another address.
class Detour : public KvTransport {
 public:
  explicit Detour(KvTransport* to) : to_(to) {}
  void Lead(std::string target, std::string via) { via_[std::move(target)] = std::move(via); }

  void Expect(ExpectArgs args) override { to_->Expect(std::move(args)); }
  void Start(StartArgs args) override {
    if (auto it = via_.find(args.endpoint); it != via_.end()) args.endpoint = it->second;
    to_->Start(std::move(args));
  }
  void Push(PushArgs args) override { to_->Push(args); }
  void Finish(FinishArgs args) override { to_->Finish(std::move(args)); }
  void Abort(TicketId ticket) override { to_->Abort(ticket); }

 private:
  KvTransport* const to_;
  std::map<std::string, std::string> via_;
};

struct GroupSizes {
  int32_t from = 1;
  int32_t to = 1;
};

// Of 4 KV heads: each rank its own, and several ranks the same.
constexpr int32_t kLinkKvHeads = 4;
constexpr GroupSizes kGroups[] = {{1, 2}, {2, 1}, {2, 2}, {4, 2}, {2, 8}, {8, 4}};

class TpLinkTest : public testing::TestWithParam<TransportKind> {
 protected:
  void Reset(GroupSizes sizes) {
    from_ = Make(1, sizes.from, 8);
    to_ = Make(2, sizes.to, 16);
    LeadThroughDetours();
  }

  void LeadThroughDetours() {
    detours_.clear();
    std::vector<KvTransport*> children;
    for (auto& rank : from_->ranks) {
      detours_.push_back(std::make_unique<Detour>(rank->transport.get()));
      children.push_back(detours_.back().get());
    }
    from_->transport.SetRanks(children);
  }

  static EndpointSpec Spec(Incarnation incarnation, int32_t size, int32_t block_size) {
    return {.incarnation = incarnation,
            .block_size = block_size,
            .num_blocks = 256 / block_size,
            .place = {0, size},
            .kv_heads = kLinkKvHeads,
            .num_layers = 2,
            .max_frame_bytes = 700};
  }
  std::unique_ptr<RankedWorker> Make(Incarnation incarnation, int32_t size, int32_t block_size) {
    return std::make_unique<RankedWorker>(&cluster_, Spec(incarnation, size, block_size));
  }

  static int32_t NumSenders() { return GetParam() == TransportKind::kTcp ? 2 : 4; }

  // All ranks of the sender send to one, the last of them by way of the proxy; that one may be a
  // patient one. The others' limits are kPatience times the receiver's.
  std::unique_ptr<FaultProxy> ManyToOne(int32_t senders, bool patient) {
    to_ = Make(2, 1, 16);
    EndpointSpec spec = Spec(1, senders, 8);
    spec.time_scale = kPatience;
    if (patient) spec.patient_rank = senders - 1;
    from_ = std::make_unique<RankedWorker>(&cluster_, spec);
    LeadThroughDetours();
    auto proxy = std::make_unique<FaultProxy>(to_->addresses()[0].endpoint);
    detours_[senders - 1]->Lead(to_->addresses()[0].endpoint, proxy->endpoint());
    return proxy;
  }

  // Returns when the time has passed in which an impatient sender hears nothing at most.
  void PassADeadline() {
    auto from = cluster_.Make({.incarnation = 3, .time_scale = 2 * kPatience});
    auto to = cluster_.Make({.incarnation = 4});
    FaultProxy silence(to->address);
    silence.Set({.stall_at_byte = 1000});
    Handoff h = MakeHandoff(from.get(), to.get(), {0, 100});
    h.via = silence.endpoint();
    h.Run(20);
    EXPECT_TRUE(absl::IsDeadlineExceeded(from->log.WaitEnded(h.ticket, false).status));
    from.reset();  // Before the proxy.
  }

  static constexpr double kPatience = 2;

  // The receiver's node does not wait for a sender that has failed.
  static void ExpectGivenUp(const RankedHandoff& h) {
    EXPECT_FALSE(h.from->log.WaitEnded(h.ticket, false).status.ok());
    h.to->transport.Abort(h.ticket);
    h.ExpectFailed();
    EXPECT_LE(h.to->log.Count(TransferEvent::Kind::kBegun, h.ticket, true), 1);
  }

  // The link of rank p to rank d breaks before this byte. The others carry theirs whole, so their
  // legs may be verified: the handoff is not.
  void CutOneLink(int32_t p, int32_t d, int64_t byte) {
    const std::string target = to_->addresses()[d].endpoint;
    FaultProxy proxy(target);
    proxy.Set({.cut_at_byte = byte});
    detours_[p]->Lead(target, proxy.endpoint());
    const RankedHandoff first = MakeRankedHandoff(from_.get(), to_.get(), {0, 60});
    first.Run(20);
    ExpectGivenUp(first);
    // Who saw it break says so; the other may have heard first that its peer gave up.
    EXPECT_TRUE(absl::IsUnavailable(from_->log.WaitEnded(first.ticket, false).status) ||
                absl::IsUnavailable(to_->log.WaitEnded(first.ticket, true).status));
    proxy.Set({});
    first.Again().RunToTheEnd(20);
    from_.reset();  // Before the proxy.
  }

  TransportCluster cluster_{GetParam()};
  std::vector<std::unique_ptr<Detour>> detours_;  // The workers' ranks use them.
  std::unique_ptr<RankedWorker> to_;
  std::unique_ptr<RankedWorker> from_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, TpLinkTest,
                         testing::Values(TransportKind::kTcp, TransportKind::kTcpStaged),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(TpLinkTest, OneLinkThatIsCutFailsItsHandoffAlone) {
  Random random(3);
  for (const GroupSizes sizes : kGroups) {
    for (int32_t p = 0; p < sizes.from; ++p) {
      for (int32_t d = 0; d < sizes.to; ++d) {
        if (Sent({p, sizes.from}, {d, sizes.to}, kLinkKvHeads).count == 0) continue;
        // Within the handshake, or within the frames.
        const auto byte = static_cast<int64_t>(random.Below(2000));
        SCOPED_TRACE(testing::Message() << "rank " << p << " of " << sizes.from << " to " << d
                                        << " of " << sizes.to << ", cut at " << byte);
        Reset(sizes);
        CutOneLink(p, d, byte);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(TpLinkTest, ARevokedTicketWritesNothingAndTheNextOneTakesItsBlocks) {
  for (const GroupSizes sizes : kGroups) {
    SCOPED_TRACE(testing::Message() << sizes.from << " to " << sizes.to);
    Reset(sizes);
    const RankedHandoff first = MakeRankedHandoff(from_.get(), to_.get(), {3, 50});
    first.Expect();
    first.Start();
    from_->transport.Push({first.ticket, 0, 3, 20});
    ASSERT_TRUE(to_->log.WaitBegun(first.ticket));
    to_->transport.Abort(first.ticket);
    EXPECT_FALSE(to_->log.WaitEnded(first.ticket, true).status.ok());
    const RankedHandoff second = first.Again();
    from_->transport.Push({first.ticket, 0, 23, 30});
    first.Finish();
    second.Run(11);
    second.ExpectVerified();
    ExpectGivenUp(first);
  }
}

TEST_P(TpLinkTest, AnAbortOfOneHandoffLeavesTheOthersOnItsLinks) {
  for (const GroupSizes sizes : kGroups) {
    SCOPED_TRACE(testing::Message() << sizes.from << " to " << sizes.to);
    Reset(sizes);
    const RankedHandoff second = MakeRankedHandoff(from_.get(), to_.get(), {5, 60}, 1);
    RankedHandoff first = second;  // It never writes.
    first.ticket.lo += 8;
    for (const RankedHandoff& h : {first, second}) {
      h.Expect();
      h.Start();
    }
    from_->transport.Push({second.ticket, 0, 5, 60});
    ASSERT_TRUE(to_->log.WaitBegun(second.ticket));
    from_->transport.Abort(first.ticket);
    ExpectGivenUp(first);
    from_->transport.Push({second.ticket, 1, 5, 60});
    second.Finish();
    second.ExpectVerified();
  }
}

// One link is much slower than the others, within its own limits. Meanwhile another handoff is open
// on all of them, between two of its chunks.
TEST_P(TpLinkTest, AHandoffIsAsPatientAsItsSlowestLink) {
  const int32_t senders = NumSenders();
  const auto proxy = ManyToOne(senders, /*patient=*/true);
  const RankedHandoff open = MakeRankedHandoff(from_.get(), to_.get(), {0, 60}, 1);
  RankedHandoff slow = open;  // Of other blocks, which hold the canary on both sides.
  slow.ticket.lo += 8;
  for (BlockId& block : slow.from_blocks) block -= 8;
  for (BlockId& block : slow.to_blocks) block -= 4;
  open.Expect();
  open.Start();
  from_->transport.Push({open.ticket, 0, 0, 60});
  ASSERT_TRUE(to_->log.WaitBegun(open.ticket));
  proxy->Set({.stall_at_byte = 2000});
  slow.Run(20);
  ASSERT_TRUE(to_->log.WaitBegun(slow.ticket));
  PassADeadline();
  EXPECT_EQ(from_->log.Count(TransferEvent::Kind::kEnded, slow.ticket, false), 0);
  proxy->Set({});
  EXPECT_TRUE(to_->log.WaitEnded(slow.ticket, true).status.ok());
  EXPECT_TRUE(from_->log.WaitEnded(slow.ticket, false).status.ok());
  from_->transport.Push({open.ticket, 1, 0, 60});
  open.Finish();
  open.ExpectVerified();
  EXPECT_EQ(from_->ranks[0]->counters().opened_connections, 1);
  from_.reset();  // Before the proxy.
}

TEST_P(TpLinkTest, OfSeveralLinksToOneRankTheOneThatStallsIsClosed) {
  const int32_t senders = NumSenders();
  const auto proxy = ManyToOne(senders, /*patient=*/false);
  proxy->Set({.stall_at_byte = 2000});
  const RankedHandoff h = MakeRankedHandoff(from_.get(), to_.get(), {0, 60});
  h.Run(20);
  const absl::Status sent = from_->log.WaitEnded(h.ticket, false).status;
  EXPECT_TRUE(absl::IsDeadlineExceeded(sent)) << sent;
  to_->transport.Abort(h.ticket);
  h.ExpectFailed();
  proxy->Set({});
  h.Again().RunToTheEnd(20);
  EXPECT_GT(from_->ranks[senders - 1]->counters().opened_connections, 1);
  for (int32_t p = 0; p < senders - 1; ++p) {
    EXPECT_EQ(from_->ranks[p]->counters().opened_connections, 1) << p;
  }
  from_.reset();  // Before the proxy.
}

}  // namespace
}  // namespace baton
