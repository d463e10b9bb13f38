// Handoffs between two emulated GPUs over the emulated NCCL: what goes over it, what does not, and
// what a failure of it costs. Both ends are in this process, and so have the same faults.


#include <chrono>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "tests/transport/nccl/gpu_endpoint.h"

namespace baton {
namespace {

using testing::Contains;
using testing::HasSubstr;
using Kind = TransferEvent::Kind;

constexpr char kLibrary[] = BATON_EMULATED_NCCL_LIBRARY;

std::shared_ptr<const nccl::Library> OpenEmulated() {
  auto library = nccl::Library::Open(kLibrary);
  EXPECT_TRUE(library.ok()) << library.status();
  return *std::move(library);
}

class NcclHandoffTest : public testing::Test {
 protected:
  void SetUp() override {
    ConfigureEmulatedNccl("");
    library_ = OpenEmulated();
  }
  void TearDown() override {
    ConfigureEmulatedNccl("");  // Nothing hangs any more.
    from_.reset();
    to_.reset();
  }

  // Patient, where nothing is to fail: on a busy machine the emulation takes its time.
  void Begin(const EndpointSpec& from = {.time_scale = 10},
             const EndpointSpec& to = {.block_size = 8, .num_blocks = 128, .time_scale = 10},
             const nccl::Staging::Options& from_staging = kStaging,
             const nccl::Staging::Options& to_staging = kStaging) {
    EndpointSpec sender = from;
    sender.incarnation = 1;
    EndpointSpec receiver = to;
    receiver.incarnation = 2;
    from_ = MakeGpuEndpoint(sender, 0, library_, nullptr, from_staging);
    to_ = MakeGpuEndpoint(receiver, 1, library_, nullptr, to_staging);
  }

  static void Await(const std::function<bool()>& condition, const char* what) {
    const absl::Status status =
        WaitUntil(what, std::chrono::seconds(150),  // A pair that failed twice comes in a minute.
                  [&]() -> absl::StatusOr<bool> { return condition(); });
    ASSERT_TRUE(status.ok()) << what;
  }

  Handoff Make(TokenRange tokens, int32_t index) {
    Handoff h = MakeHandoff(&from_->endpoint, &to_->endpoint, tokens, index);
    from_->Upload();
    return h;
  }

  // The first handoff opens the connection.
  void Connect(int32_t index = 0) {
    const Handoff h = Make({3, 50}, index);
    h.Run(20);
    h.ExpectVerified();
    written_.push_back(h.written());
    ASSERT_FALSE(HasFailure());
  }
  void ConnectOverNccl(int32_t index = 0) {
    Connect(index);
    const auto over_nccl = [](const GpuEndpoint& e) {
      return e.carrier_counters().links_over_nccl == 1;
    };
    Await([&] { return over_nccl(*from_) && over_nccl(*to_); }, "the pair over NCCL");
  }

  void ExpectRight(const std::vector<Endpoint::Write>& writes) {
    to_->Download();
    EXPECT_TRUE(to_->endpoint.IsCanaryBut(0xCD, writes));
    EXPECT_FALSE(to_->lost || from_->lost);
  }

  // A handoff that arrives, whatever carries it.
  void Handover(int32_t index, int32_t chunk = 7) {
    const Handoff h = Make({3, 50}, index);
    h.Run(chunk);
    h.ExpectVerified();
    written_.push_back(h.written());
    if (!HasFailure()) ExpectRight(written_);
  }

  int64_t AcceptedOverNccl() const { return to_->endpoint.counters().nccl_bytes_accepted; }

  std::shared_ptr<const nccl::Library> library_;
  std::unique_ptr<GpuEndpoint> from_;
  std::unique_ptr<GpuEndpoint> to_;
  std::vector<Endpoint::Write> written_;
};

TEST_F(NcclHandoffTest, BytesOfConnectedPairsGoOverNcclAndNoneOverTcp) {
  Begin();
  ConnectOverNccl();
  const TransportCounters before = to_->endpoint.counters();
  for (int32_t i = 1; i <= 3; ++i) Handover(i, i * 11);
  const TransportCounters after = to_->endpoint.counters();
  EXPECT_EQ(after.bytes_accepted, before.bytes_accepted);
  // 50 tokens of 3 layers and 4 heads: K of 16 bytes, V of 24.
  EXPECT_EQ(after.nccl_bytes_accepted - before.nccl_bytes_accepted, 3 * 50 * 3 * 4 * 40);
  const TransportCounters sent = from_->endpoint.counters();
  EXPECT_EQ(sent.nccl_bytes_sent, after.nccl_bytes_accepted);
  EXPECT_EQ(sent.nccl_frames_sent, after.nccl_frames_accepted);
  EXPECT_EQ(from_->carrier_counters().pairs_failed + to_->carrier_counters().pairs_failed, 0);
}

// Of seven tokens a frame of K has 448 bytes and one of V 672, each at most 8 pieces of 8 tokens.
TEST_F(NcclHandoffTest, WhereTheSlotsOfOneEndAreSmallerBatchesFitIntoThem) {
  for (nccl::Staging::Options small :
       {nccl::Staging::Options{.slot_bytes = 704, .max_pieces = 8192},
        nccl::Staging::Options{.slot_bytes = int64_t{1} << 20, .max_pieces = 13}}) {
    for (const bool is_senders : {false, true}) {
      small.slots = is_senders ? kStaging.slots : 1;
      SCOPED_TRACE(testing::Message() << small.slot_bytes << " bytes at "
                                      << (is_senders ? "the sender" : "the receiver"));
      written_.clear();
      Begin({.time_scale = 10}, {.block_size = 8, .num_blocks = 128, .time_scale = 10},
            is_senders ? small : kStaging, is_senders ? kStaging : small);
      ConnectOverNccl();
      if (HasFailure()) return;
      const int64_t by_tcp = to_->endpoint.counters().bytes_accepted;
      const int64_t by_nccl = AcceptedOverNccl();
      Handover(1);
      EXPECT_EQ(AcceptedOverNccl() - by_nccl, 50 * 3 * 4 * 40);
      EXPECT_EQ(to_->endpoint.counters().bytes_accepted, by_tcp);
      EXPECT_EQ(from_->carrier_counters().pairs_failed + to_->carrier_counters().pairs_failed, 0);
      from_.reset();
      to_.reset();
    }
  }
}

TEST_F(NcclHandoffTest, FramesThatTheSmallerSlotCannotHoldGoOverTcpAndThatIsTold) {
  Begin({.time_scale = 10}, {.block_size = 8, .num_blocks = 128, .time_scale = 10}, kStaging,
        {.slots = 1, .slot_bytes = 640, .max_pieces = 8192});
  ConnectOverNccl();
  const int64_t by_tcp = to_->endpoint.counters().bytes_accepted;
  const int64_t by_nccl = AcceptedOverNccl();
  Handover(1);
  EXPECT_GT(to_->endpoint.counters().bytes_accepted, by_tcp);
  EXPECT_GT(AcceptedOverNccl(), by_nccl);
  EXPECT_EQ(from_->carrier_counters().pairs_failed + to_->carrier_counters().pairs_failed, 0);
  for (const GpuEndpoint* end : {from_.get(), to_.get()}) {
    EXPECT_THAT(end->reasons(), Contains(HasSubstr("frames of more than 640 bytes go over TCP")));
  }
}

TEST_F(NcclHandoffTest, ManyHandoffsAtOnceShareThePair) {
  Begin({.num_blocks = 256, .time_scale = 10}, {.num_blocks = 256, .time_scale = 10});
  ConnectOverNccl();
  std::vector<Handoff> handoffs;
  for (int32_t i = 1; i <= 30; ++i) handoffs.push_back(Make({0, 100}, i));
  for (const Handoff& h : handoffs) {
    h.to->transport->Expect(h.expect());
    h.from->transport->Start(h.start());
  }
  for (const Handoff& h : handoffs) h.PushAll(40);
  for (const Handoff& h : handoffs) h.from->transport->Finish(h.finish());
  for (const Handoff& h : handoffs) {
    h.ExpectVerified();
    written_.push_back(h.written());
  }
  ExpectRight(written_);
  EXPECT_GT(AcceptedOverNccl(), 0);
}

TEST_F(NcclHandoffTest, WithoutNcclAtTheOtherEndAllGoesOverTcpAndTheReasonIsTold) {
  from_ = MakeGpuEndpoint({.incarnation = 1}, 0, nullptr);
  to_ = MakeGpuEndpoint({.incarnation = 2}, 1, library_);
  Connect();
  Handover(1);
  EXPECT_EQ(AcceptedOverNccl(), 0);
  EXPECT_THAT(to_->reasons(), Contains("the peer has no NCCL"));
}

TEST_F(NcclHandoffTest, OtherVersionsUseTcpAndTellBoth) {
  from_ = MakeGpuEndpoint({.incarnation = 1}, 0, library_);
  ConfigureEmulatedNccl("version=22105");
  to_ = MakeGpuEndpoint({.incarnation = 2}, 1, OpenEmulated());
  Connect();
  Handover(1);
  EXPECT_EQ(AcceptedOverNccl(), 0);
  EXPECT_THAT(to_->reasons(), Contains("NCCL is 2.21.5 here and 2.23.4 there"));
  EXPECT_THAT(from_->reasons(), Contains("NCCL is 2.23.4 here and 2.21.5 there"));
}

// Works of both ends are counted together, so the n-th is a send or a receive as it comes.
TEST_F(NcclHandoffTest, SpoiledBytesFailTheirTicketAndAreNotWritten) {
  Begin({.num_blocks = 256, .time_scale = 10}, {.num_blocks = 256, .time_scale = 10});
  ConnectOverNccl();
  absl::Status received;
  for (int32_t n = 1; n <= 8 && received.ok(); ++n) {
    ConfigureEmulatedNccl("spoil=" + std::to_string(n));
    const Handoff h = Make({0, 50}, n);
    h.Run(50);
    received = to_->endpoint.log.WaitEnded(h.ticket, true).status;
    EXPECT_EQ(from_->endpoint.log.WaitEnded(h.ticket, false).status.code(), received.code());
  }
  EXPECT_EQ(received.code(), absl::StatusCode::kDataLoss) << received;
  EXPECT_GE(to_->endpoint.counters().nccl_checksum_failures, 1);
  ConfigureEmulatedNccl("");
  const Handoff next = Make({0, 50}, 9);
  next.Run(50);
  next.ExpectVerified();
}

// What NCCL does at its n-th work, for an n at which it strikes.
class NcclFaultTest : public NcclHandoffTest, public testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Faults, NcclFaultTest,
                         testing::Values("fail", "cut", "lose", "abort=slow abort_ms=300 fail",
                                         "silent=1 cut"),
                         [](const auto& info) {
                           std::string name(info.param);
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

TEST_P(NcclFaultTest, HandoffsArriveAllTheSameAndNcclCarriesAgain) {
  Begin({.num_blocks = 256}, {.block_size = 8, .num_blocks = 512});
  ConnectOverNccl();
  int32_t n = 0;
  while (to_->carrier_counters().pairs_failed == 0 && n < 8 && !HasFailure()) {
    ++n;
    ConfigureEmulatedNccl(std::string(GetParam()) + "=" + std::to_string(n));
    Handover(n);
  }
  EXPECT_GT(to_->carrier_counters().pairs_failed, 0) << "no fault struck";
  ConfigureEmulatedNccl("");
  ConnectOverNccl(n + 1);
  const int64_t carried = AcceptedOverNccl();
  Handover(n + 2);
  EXPECT_GT(AcceptedOverNccl(), carried);
}

TEST_F(NcclHandoffTest, CommunicatorsThatAreNeverThereLeaveAllToTcp) {
  for (const char* fault : {"init=fail", "init=hang"}) {
    SCOPED_TRACE(fault);
    ConfigureEmulatedNccl(fault);
    written_.clear();
    Begin({}, {.block_size = 8, .num_blocks = 128});
    Connect();
    Await([&] { return to_->carrier_counters().pairs_failed >= 1; }, "a failure");
    Handover(1);
    EXPECT_EQ(AcceptedOverNccl(), 0);
    ConfigureEmulatedNccl("");
    from_.reset();
    to_.reset();
  }
}

TEST_F(NcclHandoffTest, AnAbortThatNeverReturnsCostsSlotsAndNccl) {
  Begin({}, {.block_size = 8, .num_blocks = 128});
  ConnectOverNccl();
  ConfigureEmulatedNccl("fail=1 abort=hang");
  Handover(1);
  // Counted one after the other, by a thread of the carrier's.
  Await([&] { return to_->carrier_counters().leaked_slots >= 1 &&
                     from_->carrier_counters().pairs_stuck == 1; },
        "aborts that are given up");
  EXPECT_EQ(to_->carrier_counters().pairs_stuck, 1);
  const int64_t carried = AcceptedOverNccl();
  Handover(2);
  EXPECT_EQ(AcceptedOverNccl(), carried);
  from_->endpoint.transport.reset();
  EXPECT_TRUE(from_->lost) << "the process ends at its end";
  from_->lost = false;
}

TEST_F(NcclHandoffTest, GivenUpTicketsEndOnBothSidesAndNothingOfThemIsWrittenAfterwards) {
  Begin({.num_blocks = 256, .time_scale = 10}, {.num_blocks = 256, .time_scale = 10});
  ConnectOverNccl();
  for (int32_t i = 1; i <= 20; ++i) {
    const bool by_sender = i % 2 == 0;
    const Handoff h = Make({0, 90}, i);
    to_->endpoint.transport->Expect(h.expect());
    from_->endpoint.transport->Start(h.start());
    h.PushAll(30);
    (by_sender ? from_ : to_)->endpoint.transport->Abort(h.ticket);
    if (to_->endpoint.log.Count(Kind::kBegun, h.ticket, true) == 0) {
      to_->endpoint.transport->Abort(h.ticket);
    }
    EXPECT_FALSE(from_->endpoint.log.WaitEnded(h.ticket, false).status.ok());
    EXPECT_FALSE(to_->endpoint.log.WaitEnded(h.ticket, true).status.ok());
    // Both sides have ended it: from now on the pool stays as it is.
    to_->endpoint.FillCanary(0xCD);
    to_->Upload();
  }
  written_.clear();
  Handover(21);
  EXPECT_EQ(to_->endpoint.counters().nccl_checksum_failures, 0);
}

}  // namespace
}  // namespace baton
