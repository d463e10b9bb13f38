// What the receiving carrier makes of the words of a peer that says anything: the peer here is a
// test with a communicator of its own.

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

#include "common/base/clock.h"
#include "common/kv_cache/kv_cache.h"
#include "common/transport/nccl/nccl_carrier.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/make_device.h"
#include "tests/transport/nccl/gpu_endpoint.h"

namespace baton::nccl {
namespace {

using Kind = Word::Kind;

constexpr int64_t kFrame = 1024;
constexpr int64_t kSlot = int64_t{1} << 20;

class FakeEnd : public PayloadCarrier::End {
 public:
  void Say(std::vector<std::byte> word) override { said.push_back(*DecodeWord(word)); }
  void OnCarried(std::span<const CarriedFrame>) override {}
  void OnLost(std::span<const CarriedFrame>) override {}
  std::optional<std::vector<PoolPiece>> Admit(const FrameHeader& header) override {
    if (!admits(header)) return std::nullopt;
    return std::vector<PoolPiece>{{header.range.first_token * kFrame, header.payload_bytes}};
  }
  void Commit(const FrameHeader& header) override { committed.push_back(header.ticket); }
  void OnSpoiled(const FrameHeader& header) override { spoiled.push_back(header.ticket); }

  std::function<bool(const FrameHeader&)> admits = [](const FrameHeader&) { return true; };
  std::vector<Word> said;
  std::vector<TicketId> committed;
  std::vector<TicketId> spoiled;
};

class NcclWordsTest : public testing::Test {
 protected:
  void SetUp() override {
    library_ = *Library::Open(BATON_EMULATED_NCCL_LIBRARY);
    peer_gpu_ = *MakeDevice({.device = "cuda:0"});
    gpu_ = *MakeDevice({.device = "cuda:1"});
    const KvLayout layout{.block_size = 16,
                          .groups = {{.num_layers = 1, .num_kv_heads = 4, .k_dim = 64,
                                      .v_dim = 64, .dtype = DType::kBF16}}};
    const int64_t bytes = *KvCache::PoolBytes(layout, 8);
    cache_ = *KvCache::Create(layout, 8, *gpu_.device->Allocate(bytes, MemoryKind::kDevice),
                              /*host=*/false);
    sent_ = *peer_gpu_.device->Allocate(kSlot, MemoryKind::kDevice);
    carrier_ = *NcclCarrier::Create(
        library_, *gpu_.device, *cache_,
        {.staging = {.slots = 2, .slot_bytes = kSlot, .max_pieces = 64},
         .time_scale = 30,
         .on_path = [](const std::string&, bool, const std::string&) {},
         .on_lost = [this](const absl::Status& status) {
           if (!is_stuck_) ADD_FAILURE() << status;
         }});
    Connect(&end_, &link_);
  }
  std::pair<int64_t, size_t> LimitsFor(PayloadCarrier::LinkId link) const {
    const PayloadCarrier::Limits limits = carrier_->LimitsFor(link);
    return {limits.bytes, limits.pieces};
  }
  void TearDown() override {
    ConfigureEmulatedNccl("");
    for (Comm* const comm : comms_) EXPECT_TRUE(library_->Abort(comm).ok());
    carrier_->Shutdown();
  }

  void Connect(FakeEnd* end, PayloadCarrier::LinkId* link) {
    *link = carrier_->Open(end, {.name = "a test", .version = carrier_->version(),
                                 .receives = true});
    Join(end, *link);
  }
  void Join(FakeEnd* end, PayloadCarrier::LinkId link) {
    AwaitAt(*end, Kind::kId);
    epoch_ = end->said.front().epoch;
    ASSERT_TRUE(peer_gpu_.device->NativeLane(Lane::kExchange).ok());
    comms_.push_back(*library_->Init(end->said.front().id, 1));
    AwaitAt(*end, Kind::kUp);
    TellAt(link, {.kind = Kind::kUp, .limits = peer_limits_});
  }

  // Until the carrier has said it; the last word of that kind.
  Word AwaitAt(const FakeEnd& end, Kind kind) {
    const auto has_said = [&]() -> absl::StatusOr<bool> {
      // Its thread has its GPU; here the peer's was the last one. NCCL's late calls need theirs.
      EXPECT_TRUE(gpu_.device->NativeLane(Lane::kExchange).ok());
      carrier_->Turn(SteadyNow());
      return !end.said.empty() && end.said.back().kind == kind;
    };
    const absl::Status status = WaitUntil("a word", std::chrono::seconds(60), has_said);
    EXPECT_TRUE(status.ok()) << "no word " << static_cast<int>(kind);
    return end.said.empty() ? Word{} : end.said.back();
  }
  Word Await(Kind kind) { return AwaitAt(end_, kind); }
  void TellAt(PayloadCarrier::LinkId link, Word word) {
    word.epoch = epoch_;
    const absl::Status status = carrier_->OnWord(link, EncodeWord(word));
    EXPECT_TRUE(status.ok()) << status;
  }
  void Tell(Word word) { TellAt(link_, std::move(word)); }
  static FrameHeader FrameOf(uint64_t ticket, int32_t place, uint32_t bytes = kFrame) {
    return {.type = FrameType::kCarried,
            .ticket = {.hi = ticket, .lo = 1},
            .range = {.first_token = place, .num_tokens = 1, .num_heads = 1},
            .payload_bytes = bytes};
  }
  // What a right peer does, but for the sums: zeros.
  void Announce(uint64_t batch, std::vector<FrameHeader> frames, std::vector<uint64_t> sums) {
    size_t bytes = 0;
    for (const FrameHeader& frame : frames) bytes += frame.payload_bytes;
    Tell({.kind = Kind::kAnnounce, .batch = batch, .frames = std::move(frames)});
    const Word grant = Await(Kind::kGrant);
    Tell({.kind = Kind::kReady, .batch = batch, .grant = grant.grant, .sums = std::move(sums)});
    EXPECT_EQ(Await(Kind::kPosted).grant, grant.grant);
    Comm* const comm = comms_.front();
    const auto settled = [&] { return library_->AsyncState(comm); };
    ASSERT_TRUE(WaitUntil("the peer", std::chrono::seconds(60), settled).ok());
    const auto lane = peer_gpu_.device->NativeLane(Lane::kExchange);
    ASSERT_TRUE(library_->Send(comm, 0, sent_.data(), bytes, *lane).ok());
    ASSERT_TRUE(WaitUntil("the peer", std::chrono::seconds(60), settled).ok());
  }
  void Zero() {
    Buffer zeros = *peer_gpu_.device->Allocate(kSlot + 64, MemoryKind::kPinned);
    std::memset(zeros.data(), 0, kSlot);
    auto* piece = zeros.array<CopyPiece>(kSlot);
    *piece = {zeros.data(), sent_.data(), kSlot};
    ASSERT_TRUE(peer_gpu_.device->CopyPieces(Lane::kTransfer, {piece, 1}).ok());
    ASSERT_TRUE(peer_gpu_.device->Synchronize().ok());
  }
  // The communicator was given up for what was said.
  void ExpectCondemned() {
    EXPECT_EQ(end_.said.back().kind, Kind::kDead);
    EXPECT_EQ(carrier_->counters().pairs_condemned, 1);
    EXPECT_TRUE(end_.committed.empty());
  }

  std::shared_ptr<const Library> library_;
  Processors peer_gpu_;
  Processors gpu_;
  std::unique_ptr<KvCache> cache_;
  Buffer sent_;
  FakeEnd end_;
  std::unique_ptr<NcclCarrier> carrier_;
  PayloadCarrier::LinkId link_ = -1;
  uint32_t epoch_ = 0;
  BatchLimits peer_limits_ = {.bytes = 16 * kSlot, .pieces = 1000};
  std::vector<Comm*> comms_;  // The peers'.
  bool is_stuck_ = false;     // A test wants it so.
};

TEST_F(NcclWordsTest, FramesAreWrittenOnceAndAcknowledgedInTheirPlaces) {
  Zero();
  end_.admits = [](const FrameHeader& frame) { return frame.ticket.hi != 2; };
  Announce(1, {FrameOf(1, 0), FrameOf(2, 1), FrameOf(3, 2)}, {0, 0, 0});
  const Word ack = Await(Kind::kAck);
  EXPECT_TRUE(ack.arrived[0] && !ack.arrived[1] && ack.arrived[2]);
  EXPECT_EQ(ack.arrived.count(), 2u);
  EXPECT_THAT(end_.committed, testing::ElementsAre(TicketId{1, 1}, TicketId{3, 1}));
  EXPECT_EQ(carrier_->Busy({{1, 1}, true}), 0) << "an ack before the write has landed";
}

TEST_F(NcclWordsTest, ABatchOfWhichNothingIsAdmittedIsRefused) {
  end_.admits = [](const FrameHeader&) { return false; };
  Tell({.kind = Kind::kAnnounce, .batch = 1, .frames = {FrameOf(1, 0)}});
  EXPECT_EQ(end_.said.back().kind, Kind::kRefuse);
  EXPECT_EQ(end_.said.back().batch, 1u);
  EXPECT_TRUE(end_.committed.empty());
}

TEST_F(NcclWordsTest, WhatIsNoLongerAdmittedOnceItHasComeIsNotWritten) {
  Zero();
  int looks = 0;
  end_.admits = [&](const FrameHeader& frame) { return frame.ticket.hi != 1 || ++looks == 1; };
  Announce(1, {FrameOf(1, 0), FrameOf(2, 1)}, {0, 0});
  EXPECT_EQ(Await(Kind::kAck).arrived.to_ulong(), 2u);
  EXPECT_THAT(end_.committed, testing::ElementsAre(TicketId{2, 1}));
  EXPECT_EQ(looks, 2);
}

TEST_F(NcclWordsTest, ATicketThatEndsWhileItsOtherFramesAreJudgedIsNotWrittenAtAll) {
  Zero();
  int looks = 0;
  end_.admits = [&](const FrameHeader&) {
    if (++looks != 4) return true;
    carrier_->OnTicketEnded({{1, 1}, /*receiver=*/true});
    EXPECT_EQ(carrier_->Busy({{1, 1}, true}), 0);
    return false;
  };
  Announce(1, {FrameOf(1, 0), FrameOf(1, 1)}, {0, 0});
  EXPECT_TRUE(Await(Kind::kAck).arrived.none());
}

TEST_F(NcclWordsTest, OtherSumsThanThoseOfTheBytesSpoilTheirFrameAlone) {
  Zero();
  Announce(1, {FrameOf(1, 0), FrameOf(2, 1)}, {5, 0});
  EXPECT_EQ(Await(Kind::kAck).arrived.to_ulong(), 2u);
  EXPECT_THAT(end_.spoiled, testing::ElementsAre(TicketId{1, 1}));
  EXPECT_THAT(end_.committed, testing::ElementsAre(TicketId{2, 1}));
}

TEST_F(NcclWordsTest, MoreThanASlotHoldsCostsTheCommunicator) {
  std::vector<FrameHeader> frames(2, FrameOf(1, 0, kMaxDataPayloadBytes));
  Tell({.kind = Kind::kAnnounce, .batch = 1, .frames = frames});
  ExpectCondemned();
}

TEST_F(NcclWordsTest, OfEachLimitTheSmallerOfBothEndsIsKept) {
  EXPECT_EQ(end_.said.back().limits, (BatchLimits{.bytes = kSlot, .pieces = 64}));
  EXPECT_EQ(LimitsFor(link_), std::pair(kSlot, size_t{64}));
  FakeEnd other;
  PayloadCarrier::LinkId link = -1;
  peer_limits_ = {.bytes = 5000, .pieces = 65};
  Connect(&other, &link);
  EXPECT_EQ(LimitsFor(link), std::pair(int64_t{5000}, size_t{64}));
  EXPECT_EQ(LimitsFor(link_), std::pair(kSlot, size_t{64})) << "of another peer";
  TellAt(link, {.kind = Kind::kUp, .limits = {.bytes = 4000, .pieces = 3}});
  EXPECT_EQ(LimitsFor(link), std::pair(int64_t{5000}, size_t{64})) << "its batches are under way";
}

TEST_F(NcclWordsTest, TheNextCommunicatorHasTheLimitsThatAreSaidForIt) {
  FakeEnd other;
  PayloadCarrier::LinkId link = -1;
  peer_limits_ = {.bytes = 5000, .pieces = 20};
  Connect(&other, &link);
  TellAt(link, {.kind = Kind::kDead});
  other.said.clear();
  carrier_->Turn(SteadyNow() + std::chrono::minutes(1));  // Time for another.
  peer_limits_ = {.bytes = 6000, .pieces = 30};
  Join(&other, link);
  EXPECT_EQ(epoch_, 2u);
  EXPECT_EQ(LimitsFor(link), std::pair(int64_t{6000}, size_t{30}));
}

TEST_F(NcclWordsTest, MoreThanThePeersOwnSlotHoldsCostsTheCommunicatorToo) {
  FakeEnd other;
  PayloadCarrier::LinkId link = -1;
  peer_limits_ = {.bytes = 2 * kFrame - 1, .pieces = 64};
  Connect(&other, &link);
  TellAt(link, {.kind = Kind::kAnnounce, .batch = 1, .frames = {FrameOf(1, 0), FrameOf(1, 1)}});
  EXPECT_EQ(other.said.back().kind, Kind::kDead);
  EXPECT_EQ(carrier_->counters().pairs_condemned, 1);
}

// They said nothing of their slots, and would not understand what is said of ours.
TEST_F(NcclWordsTest, APeerOfABuildWithOtherWordsIsLeftToItsConnection) {
  FakeEnd other;
  const auto old = static_cast<uint64_t>(LibraryVersionOf(carrier_->version()));
  const auto link = carrier_->Open(&other, {.name = "old", .version = old, .receives = true});
  carrier_->Turn(SteadyNow());
  EXPECT_TRUE(other.said.empty());
  EXPECT_THAT(carrier_->links().back().why, testing::HasSubstr("a build with other words"));
  EXPECT_EQ(carrier_->links().back().version, LibraryVersionOf(carrier_->version()));
  carrier_->Close(link);
}

TEST_F(NcclWordsTest, MorePiecesThanALaunchTakesCostTheCommunicator) {
  Tell({.kind = Kind::kAnnounce,
        .batch = 1,
        .frames = std::vector<FrameHeader>(65, FrameOf(1, 0, 8))});
  ExpectCondemned();
}

TEST_F(NcclWordsTest, ABatchOutOfOrderCostsTheCommunicator) {
  Tell({.kind = Kind::kAnnounce, .batch = 2, .frames = {FrameOf(1, 0)}});
  ExpectCondemned();
}

TEST_F(NcclWordsTest, ReadinessForABatchThatWasNeverAnnouncedCostsIt) {
  Tell({.kind = Kind::kReady, .batch = 1, .grant = 1, .sums = {0}});
  ExpectCondemned();
}

TEST_F(NcclWordsTest, ASilentPeerLosesTheCommunicatorInTime) {
  Tell({.kind = Kind::kAnnounce, .batch = 1, .frames = {FrameOf(1, 0)}});
  Await(Kind::kGrant);
  Time now = SteadyNow();
  for (int i = 0; i < 400 && end_.said.back().kind != Kind::kDead; ++i) {
    carrier_->Turn(now += std::chrono::milliseconds(100));
  }
  EXPECT_EQ(end_.said.back().kind, Kind::kDead);
  EXPECT_EQ(carrier_->counters().pairs_failed, 1);
}

// Said while the receive waits for the peer's first call, without which NCCL connects nothing.
TEST_F(NcclWordsTest, APeerThatNeverSendsWhatIsPostedLosesTheCommunicatorAndNoSlot) {
  Tell({.kind = Kind::kAnnounce, .batch = 1, .frames = {FrameOf(1, 0)}});
  const Word grant = Await(Kind::kGrant);
  Tell({.kind = Kind::kReady, .batch = 1, .grant = grant.grant, .sums = {0}});
  Time now = SteadyNow();
  for (int i = 0; i < 400 && end_.said.back().kind != Kind::kDead; ++i) {
    carrier_->Turn(now += std::chrono::milliseconds(100));
  }
  EXPECT_EQ(end_.said.back().kind, Kind::kDead);
  EXPECT_EQ(std::ranges::count(end_.said, Kind::kPosted, &Word::kind), 1);
  const auto is_free = [&]() -> absl::StatusOr<bool> {
    carrier_->Turn(now);
    return carrier_->counters().held_slots == 0;
  };
  EXPECT_TRUE(WaitUntil("the slot", std::chrono::seconds(60), is_free).ok());
  EXPECT_EQ(carrier_->counters().leaked_slots, 0);
}

// Its thread does not come back to end what the other pair would post.
TEST_F(NcclWordsTest, AnAbortThatHangsEndsNcclForTheOtherPeersToo) {
  FakeEnd other;
  PayloadCarrier::LinkId link = -1;
  Connect(&other, &link);
  EXPECT_EQ(carrier_->counters().pairs_up, 2);
  ConfigureEmulatedNccl("abort=hang");
  is_stuck_ = true;
  Tell({.kind = Kind::kAnnounce, .batch = 2, .frames = {FrameOf(1, 0)}});
  ExpectCondemned();
  EXPECT_EQ(other.said.back().kind, Kind::kUp);
  Time now = SteadyNow();
  for (int i = 0; i < 1200 && carrier_->counters().pairs_stuck == 0; ++i) {
    carrier_->Turn(now += std::chrono::milliseconds(100));
  }
  EXPECT_EQ(other.said.back().kind, Kind::kNever);
  TellAt(link, {.kind = Kind::kAnnounce, .batch = 1, .frames = {FrameOf(1, 0)}});
  carrier_->Turn(now);
  EXPECT_EQ(other.said.back().kind, Kind::kNever) << "of what it announces nothing is granted";
  EXPECT_EQ(carrier_->counters().links_over_tcp, 2);
  carrier_->Close(link);
}

TEST_F(NcclWordsTest, WordsOfTheOtherSideAndIdsAreNoWordsAtAll) {
  for (const Kind kind : {Kind::kGrant, Kind::kPosted, Kind::kAck, Kind::kId}) {
    Word word{.kind = kind, .epoch = epoch_ + (kind == Kind::kId ? 1 : 0), .batch = 1};
    EXPECT_FALSE(carrier_->OnWord(link_, EncodeWord(word)).ok()) << static_cast<int>(kind);
  }
  EXPECT_FALSE(carrier_->OnWord(link_, {}).ok());
}

TEST_F(NcclWordsTest, WordsOfAnotherEpochAreNotHeard) {
  Word word{.kind = Kind::kAnnounce, .epoch = epoch_ + 1, .batch = 7, .frames = {FrameOf(1, 0)}};
  EXPECT_TRUE(carrier_->OnWord(link_, EncodeWord(word)).ok());
  carrier_->Turn(SteadyNow());
  EXPECT_EQ(carrier_->counters().pairs_failed, 0);
  EXPECT_EQ(end_.said.back().kind, Kind::kUp);
}

}  // namespace
}  // namespace baton::nccl
