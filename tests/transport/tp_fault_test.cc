// Links of some ranks that break, stall or lie, while the others do not.

#include <algorithm>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/fault_proxy.h"
#include "tests/transport/ranked_worker.h"

namespace baton {
namespace {

class TpFaultTest : public testing::TestWithParam<TransportKind> {
 protected:
  // Frames of 2000 bytes, and a proxy before each rank of the receiver.
  void Make(int32_t senders, int32_t receivers) {
    proxies_.clear();
    from_ = std::make_unique<RankedWorker>(&cluster_, Spec(senders));
    to_ = std::make_unique<RankedWorker>(&cluster_, Spec(receivers));
    for (const auto& rank : to_->ranks) {
      proxies_.push_back(std::make_unique<FaultProxy>(rank->address));
    }
  }
  EndpointSpec Spec(int32_t size) {
    return {.incarnation = next_++, .place = {0, size}, .max_frame_bytes = 2000};
  }
  RankedHandoff Begin(int32_t index = 0) {
    RankedHandoff h = MakeRankedHandoff(from_.get(), to_.get(), {0, 100}, index);
    h.via = to_->addresses();
    for (size_t d = 0; d < proxies_.size(); ++d) h.via[d].endpoint = proxies_[d]->endpoint();
    return h;
  }
  void ExpectStillWorks() {
    for (auto& proxy : proxies_) proxy->Set({});
    Begin(1).RunToTheEnd(40);
  }

  TransportCluster cluster_{GetParam()};
  Incarnation next_ = 1;
  std::unique_ptr<RankedWorker> from_;
  std::unique_ptr<RankedWorker> to_;
  std::vector<std::unique_ptr<FaultProxy>> proxies_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, TpFaultTest,
                         testing::Values(TransportKind::kTcp, TransportKind::kTcpStaged),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(TpFaultTest, ALinkThatIsCutFailsAllLegsOfTheHandoff) {
  for (const size_t d : {0, 1}) {
    Make(2, 2);
    proxies_[d]->Set({.cut_at_byte = 9000});
    const RankedHandoff h = Begin();
    h.Expect();
    h.Start();
    h.PushAll(40);
    h.ExpectFailed();
    // Who notices first names it; the other may hear from it before.
    const absl::Status sent = from_->log.WaitEnded(h.ticket, false).status;
    const absl::Status received = to_->log.WaitEnded(h.ticket, true).status;
    EXPECT_TRUE(absl::IsUnavailable(sent) || absl::IsUnavailable(received)) << sent << received;
    ExpectStillWorks();
  }
}

// Before anything of the leg came: its rank of the receiver cannot know, but for the other ranks.
TEST_P(TpFaultTest, ALinkThatNeverStandsFailsTheLegsThatDo) {
  Make(2, 2);
  proxies_[1]->Set({.cut_at_byte = 0});
  const RankedHandoff h = Begin();
  h.Expect();
  h.Start();
  h.PushAll(40);
  EXPECT_TRUE(absl::IsUnavailable(from_->log.WaitEnded(h.ticket, false).status));
  to_->transport.Abort(h.ticket);
  h.ExpectFailed();
  ExpectStillWorks();
}

TEST_P(TpFaultTest, ALinkThatStallsFailsTheHandoffByItsDeadline) {
  Make(2, 2);
  proxies_[1]->Set({.stall_at_byte = 9000});
  const RankedHandoff h = Begin();
  h.Run(40);
  const absl::Status sent = from_->log.WaitEnded(h.ticket, false).status;
  EXPECT_TRUE(absl::IsDeadlineExceeded(sent)) << sent;
  to_->transport.Abort(h.ticket);
  h.ExpectFailed();
  ExpectStillWorks();
}

// Two ranks send to one: what one of them spoils the other hears of.
TEST_P(TpFaultTest, ASpoiltFrameOfOneSenderEndsTheOthersLeg) {
  Make(4, 1);
  proxies_[0]->Set({.flip_bit = 8 * 2000});
  const RankedHandoff h = Begin();
  h.Expect();
  h.Start();
  h.PushAll(40);
  EXPECT_FALSE(from_->log.WaitEnded(h.ticket, false).status.ok());
  h.ExpectFailed();
  ExpectStillWorks();
}

}  // namespace
}  // namespace baton
