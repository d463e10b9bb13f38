#include "common/worker/mailing_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/common/worker/mail_list.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CallList : public KvTransport {
 public:
  explicit CallList(std::vector<std::string>* calls) : calls_(calls) {}
  void Expect(ExpectArgs) override { calls_->push_back("expect"); }
  void Start(StartArgs) override { calls_->push_back("start"); }
  void Push(PushArgs) override { calls_->push_back("push"); }
  void Finish(FinishArgs) override { calls_->push_back("finish"); }
  void Abort(TicketId) override { calls_->push_back("abort"); }
  std::vector<OpenLeg> OpenLegs() const override { return {{.ticket = {5, 8}, .rank = 3}}; }

 private:
  std::vector<std::string>* const calls_;
};

class MailingTransportTest : public ::testing::Test {
 protected:
  MailingTransportTest() : metrics_("decode", "1"), transport_("tcp", &inbox_, &metrics_) {
    transport_.set_transport(std::make_unique<CallList>(&calls_), [this] { return counters_; });
  }
  MailList inbox_;
  Metrics metrics_;
  std::vector<std::string> calls_;
  TransportCounters counters_;
  MailingTransport transport_;
};

constexpr TicketId kTicket{.hi = 1, .lo = 2};

TEST_F(MailingTransportTest, PassesEveryCallAndEveryEventOn) {
  transport_.Expect({.ticket = kTicket});
  transport_.Start({.ticket = kTicket});
  transport_.Push({.ticket = kTicket});
  transport_.Finish({.ticket = kTicket});
  transport_.Abort(kTicket);
  EXPECT_THAT(calls_, ElementsAre("expect", "start", "push", "finish", "abort"));
  EXPECT_THAT(transport_.OpenLegs(), ElementsAre(OpenLeg{.ticket = {5, 8}, .rank = 3}));
  transport_.OnEvent({.ticket = kTicket, .bytes = 7});
  ASSERT_EQ(inbox_.mail.size(), 1u);
  EXPECT_EQ(std::get<TransferEvent>(inbox_.mail[0]).bytes, 7);
}

TEST_F(MailingTransportTest, MeasuresVerifiedHandoffsOnBothSidesAndCountsFailuresByReason) {
  transport_.Start({.ticket = kTicket});
  transport_.OnEvent({.ticket = kTicket, .bytes = 100});
  transport_.OnEvent({.kind = TransferEvent::Kind::kBegun, .ticket = kTicket, .receiver = true});
  transport_.OnEvent({.ticket = kTicket, .receiver = true, .bytes = 10});
  transport_.OnEvent({.ticket = kTicket, .status = absl::DataLossError("checksum")});
  const std::string text = metrics_.Render();
  EXPECT_THAT(text, HasSubstr("baton_kv_transfer_seconds_count{transport=\"tcp\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("baton_kv_transfer_bytes_total{transport=\"tcp\"} 110\n"));
  EXPECT_THAT(text, HasSubstr("baton_kv_transfer_failures_total{transport=\"tcp\",reason=\""
                              "DATA_LOSS\"} 1\n"));
}

TEST_F(MailingTransportTest, OnlyAVerifiedHandoffThatBeganIsMeasuredAndOnce) {
  transport_.Start({.ticket = kTicket});
  transport_.OnEvent({.ticket = kTicket, .status = absl::DataLossError("checksum")});
  transport_.OnEvent({.ticket = kTicket});  // It began no more.
  transport_.OnEvent({.ticket = {.hi = 5}, .receiver = true});
  EXPECT_THAT(metrics_.Render(),
              HasSubstr("baton_kv_transfer_seconds_count{transport=\"tcp\"} 0\n"));
}

TEST_F(MailingTransportTest, EveryCounterOfTheTransportIsExported) {
  constexpr size_t kNumValues = sizeof(TransportCounters) / sizeof(int64_t);
  std::array<int64_t, kNumValues> values;
  for (size_t i = 0; i < kNumValues; ++i) values[i] = static_cast<int64_t>(70001 + i);
  counters_ = std::bit_cast<TransportCounters>(values);
  const std::string text = metrics_.Render();
  for (const int64_t value : values) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("} ", value, "\n"))) << "a forgotten counter";
  }
  EXPECT_THAT(text, HasSubstr(absl::StrCat("baton_kv_transport_checksum_failures_total{transport="
                                           "\"tcp\"} ",
                                           counters_.checksum_failures, "\n")));
  EXPECT_THAT(text,
              HasSubstr(absl::StrCat("baton_kv_transport_refused_total{transport=\"tcp\",reason="
                                     "\"stale_block_epoch\"} ",
                                     counters_.refused[4], "\n")));
}

}  // namespace
}  // namespace baton
