#include "router/readiness.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "tests/unit/router/generation/fakes.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

WorkerView Worker(Role role, Incarnation incarnation, bool healthy = true) {
  WorkerView worker{.role = role, .healthy = healthy};
  worker.hello.incarnation = incarnation;
  worker.status.blocks.free = 1;
  return worker;
}

class ReadinessTest : public ::testing::Test {
 protected:
  void Look(std::vector<WorkerView> workers) {
    readiness_->OnView({.workers = std::move(workers)}, now_);
  }
  size_t num_probes() const { return frontend_.requests().size() - num_before_; }
  // Ends the latest probe after this many tokens.
  void EndProbe(int num_tokens, const absl::Status& status = absl::OkStatus()) {
    const auto sink = frontend_.sink(num_before_ + num_probes());
    for (int i = 0; i < num_tokens; ++i) sink->OnEvent(ChoiceTokens{.outputs = {TokenOutput{}}});
    sink->OnEvent(RequestEnded{.status = status});
  }
  void MakeReady() {
    Look(pair_);
    EndProbe(2);
    Look(pair_);
    ASSERT_TRUE(readiness_->ready());
    ASSERT_EQ(num_probes(), 1u);
  }
  void WaitAndLook(Duration time) {
    now_ += time;
    Look(pair_);
  }
  void SetUpAnew() {
    pair_ = {Worker(Role::kPrefill, 1), Worker(Role::kDecode, 2)};
    num_before_ += num_probes();
    readiness_ = std::make_shared<Readiness>(&frontend_);
  }
  // Prompts wait for the prefill worker; the decode worker has no block to spare.
  void Fill(bool prefill, bool decode) {
    pair_[0].status.queued_tokens = prefill ? 1 : 0;
    pair_[1].status.blocks.free = decode ? 0 : 1;
  }
  // A client's token came now through these workers of the pair.
  void Token(bool prefill, bool decode) {
    if (prefill) pair_[0].last_token = now_;
    if (decode) pair_[1].last_token = now_;
  }
  std::vector<WorkerView> pair_ = {Worker(Role::kPrefill, 1), Worker(Role::kDecode, 2)};

  size_t num_before_ = 0;  // Probes before SetUpAnew.
  FakeFrontend frontend_;
  std::shared_ptr<Readiness> readiness_ = std::make_shared<Readiness>(&frontend_);
  Time now_ = Time(std::chrono::seconds(100));
};

TEST_F(ReadinessTest, SendsNoProbeUntilAWorkerOfEachRoleIsHealthy) {
  Look({Worker(Role::kPrefill, 1)});
  Look({Worker(Role::kPrefill, 1), Worker(Role::kDecode, 2, /*healthy=*/false)});
  EXPECT_EQ(num_probes(), 0u);
  EXPECT_FALSE(readiness_->ready());
}

TEST_F(ReadinessTest, IsReadyAfterTwoTokensEndToEnd) {
  Look(pair_);
  ASSERT_EQ(num_probes(), 1u);
  EXPECT_EQ(frontend_.requests()[0].sampling.max_tokens, 2);
  Look(pair_);
  EXPECT_EQ(num_probes(), 1u);  // One at a time.
  EXPECT_FALSE(readiness_->ready());
  EndProbe(2);
  Look(pair_);
  EXPECT_TRUE(readiness_->ready());
}

TEST_F(ReadinessTest, AFailedOrShortProbeIsRepeatedAfterAWhile) {
  Look(pair_);
  EndProbe(1, absl::UnavailableError("lost"));
  Look(pair_);
  EXPECT_EQ(num_probes(), 1u);
  now_ += milliseconds(200);
  Look(pair_);
  EXPECT_EQ(num_probes(), 2u);
  EndProbe(1);  // Ended well, but a token is missing.
  now_ += milliseconds(200);
  Look(pair_);
  EXPECT_FALSE(readiness_->ready());
  EXPECT_EQ(num_probes(), 3u);
}

TEST_F(ReadinessTest, StaysReadyWhileAProvenPairIsLeft) {
  std::vector<WorkerView> workers = pair_;
  workers.push_back(Worker(Role::kDecode, 3));
  Look(workers);
  EndProbe(2);
  workers[1].healthy = false;
  Look(workers);
  EXPECT_TRUE(readiness_->ready());
  EXPECT_EQ(num_probes(), 1u);
}

TEST_F(ReadinessTest, ProbesAgainWhenTheProvenPairIsGoneAndAnotherCame) {
  std::vector<bool> changes;
  readiness_->set_on_change([&changes](bool ready) { changes.push_back(ready); });
  Look(pair_);
  EndProbe(2);
  Look(pair_);
  now_ += milliseconds(200);
  Look({pair_[0], Worker(Role::kDecode, 2, /*healthy=*/false)});
  EXPECT_FALSE(readiness_->ready());
  EXPECT_EQ(num_probes(), 1u);
  Look({pair_[0], Worker(Role::kDecode, 3)});  // The same address, another process.
  EXPECT_EQ(num_probes(), 2u);
  EXPECT_FALSE(readiness_->ready());
  EndProbe(2);
  Look({pair_[0], Worker(Role::kDecode, 3)});
  EXPECT_TRUE(readiness_->ready());
  EXPECT_EQ(changes, (std::vector<bool>{true, false, true}));
}

TEST_F(ReadinessTest, ADrainingRouterIsNeverReady) {
  Look(pair_);
  EndProbe(2);
  Look(pair_);
  readiness_->Close();
  Look(pair_);
  EXPECT_FALSE(readiness_->ready());
  WaitAndLook(seconds(60));
  EXPECT_EQ(num_probes(), 1u) << "a draining router waits for its own probe";
}

// ---- Proven again ------------------------------------------------------------------------------

TEST_F(ReadinessTest, TenIdleSecondsAreProbedAndTheProofLastsTenMore) {
  MakeReady();
  WaitAndLook(milliseconds(9999));
  EXPECT_EQ(num_probes(), 1u);
  WaitAndLook(milliseconds(1));
  EXPECT_EQ(num_probes(), 2u);
  EXPECT_TRUE(readiness_->ready()) << "nothing has failed";
  WaitAndLook(seconds(3));
  EndProbe(2);
  Look(pair_);
  EXPECT_TRUE(readiness_->ready());
  WaitAndLook(milliseconds(9999));
  EXPECT_EQ(num_probes(), 2u);
  WaitAndLook(milliseconds(1));
  EXPECT_EQ(num_probes(), 3u);
}

TEST_F(ReadinessTest, AnIdleProbeThatFailsEndsReadinessUntilOneSucceeds) {
  MakeReady();
  std::vector<bool> changes;
  readiness_->set_on_change([&changes](bool ready) { changes.push_back(ready); });
  WaitAndLook(seconds(10));
  EndProbe(1, absl::UnavailableError("lost"));
  WaitAndLook(milliseconds(200));
  EXPECT_FALSE(readiness_->ready());
  ASSERT_EQ(num_probes(), 3u);
  EndProbe(2);
  Look(pair_);
  EXPECT_TRUE(readiness_->ready());
  EXPECT_EQ(changes, (std::vector<bool>{false, true}));
}

TEST_F(ReadinessTest, AProbeThatNobodyAnswersFailsAndIsNeverJoinedByAnother) {
  MakeReady();
  WaitAndLook(seconds(10));
  for (int i = 0; i < 50; ++i) WaitAndLook(milliseconds(200));
  EXPECT_EQ(num_probes(), 2u);
  EXPECT_EQ(frontend_.requests().back().timeout, Duration(seconds(10)));
  EndProbe(0, absl::DeadlineExceededError("too late"));
  Look(pair_);
  EXPECT_FALSE(readiness_->ready());
}

TEST_F(ReadinessTest, AFullRouterSaysNothing) {
  MakeReady();
  Fill(/*prefill=*/false, /*decode=*/true);
  now_ += seconds(9);
  Token(/*prefill=*/false, /*decode=*/true);
  WaitAndLook(seconds(1));
  EndProbe(0, absl::ResourceExhaustedError("full"));
  Look(pair_);
  EXPECT_TRUE(readiness_->ready());
  frontend_.submit_status = absl::ResourceExhaustedError("inbox full");
  WaitAndLook(milliseconds(200));
  frontend_.submit_status = absl::OkStatus();
  WaitAndLook(milliseconds(200));
  EXPECT_TRUE(readiness_->ready());
  EXPECT_EQ(num_probes(), 3u) << "it is tried again";
  EndProbe(0, absl::UnavailableError("lost"));
  Look(pair_);
  EXPECT_FALSE(readiness_->ready());
  WaitAndLook(milliseconds(200));
  EndProbe(0, absl::ResourceExhaustedError("full"));
  Look(pair_);
  EXPECT_FALSE(readiness_->ready()) << "a refusal proves nothing either";
}

// A probe that was refused, or got no answer, 10 s after the last proof. `goes_on`: answers decode.
TEST_F(ReadinessTest, AProbeThatWasNotTriedIsExcusedOnlyByFullWorkersWhoseAnswersGoOn) {
  for (const auto& status : {absl::DeadlineExceededError(""), absl::ResourceExhaustedError("")}) {
    for (const bool prefill : {false, true}) {
      for (const bool decode : {false, true}) {
        for (const bool goes_on : {false, true}) {
          SetUpAnew();
          MakeReady();
          Fill(prefill, decode);
          WaitAndLook(seconds(10));
          now_ += seconds(9);
          Token(/*prefill=*/false, goes_on);
          WaitAndLook(seconds(1));
          EndProbe(0, status);
          Look(pair_);
          EXPECT_EQ(readiness_->ready(), goes_on && (prefill || decode))
              << status << " prefill " << prefill << " decode " << decode << goes_on;
        }
      }
    }
  }
}

TEST_F(ReadinessTest, AWorkerWithRoomIsEnoughAndOneThatIsNotHealthyHasNone) {
  for (const auto& [healthy, is_last] : {std::pair(false, true), {true, true}, {true, false}}) {
    SetUpAnew();
    MakeReady();
    Fill(/*prefill=*/false, /*decode=*/true);
    WorkerView other = Worker(Role::kDecode, 3, healthy);
    other.status.blocks = {.cached = 1};
    pair_.push_back(other);
    if (!is_last) std::swap(pair_[1], pair_[2]);
    WaitAndLook(seconds(10));
    Token(/*prefill=*/false, /*decode=*/true);
    EndProbe(0, absl::DeadlineExceededError("too late"));
    Look(pair_);
    EXPECT_EQ(readiness_->ready(), !healthy) << is_last;
  }
}

// It refuses what would leave less than an entry for each that runs, and all while one waits.
TEST_F(ReadinessTest, ADecodeWorkerIsFullWhenItWouldRefuseTheProbe) {
  struct Case {
    int32_t free, groups, running, preempted;
    bool is_full;
  };
  for (const Case& c : {Case{5, 1, 5, 0, true}, {5, 1, 4, 0, false}, {5, 1, 0, 1, true},
                        {15, 4, 3, 0, true}, {16, 4, 3, 0, false}}) {
    SetUpAnew();
    MakeReady();
    pair_[1].status.blocks = {.free = c.free - 1, .cached = 1};
    pair_[1].status.running = c.running;
    pair_[1].status.preempted = c.preempted;
    pair_[1].hello.layer_groups = c.groups;
    WaitAndLook(seconds(10));
    Token(/*prefill=*/false, /*decode=*/true);
    EndProbe(0, absl::DeadlineExceededError("too late"));
    Look(pair_);
    EXPECT_EQ(readiness_->ready(), c.is_full) << c.running << " run, " << c.preempted << " wait";
  }
}

TEST_F(ReadinessTest, AProbeThatFailsOtherwiseIsExcusedByNoFullWorker) {
  MakeReady();
  Fill(/*prefill=*/true, /*decode=*/true);
  WaitAndLook(seconds(10));
  Token(/*prefill=*/false, /*decode=*/true);
  EndProbe(1, absl::UnavailableError("lost"));
  Look(pair_);
  EXPECT_FALSE(readiness_->ready());
}

TEST_F(ReadinessTest, AProbeGoesBeforeEveryRequestOfAClient) {
  Look(pair_);
  EXPECT_LT(frontend_.requests()[0].priority, -std::numeric_limits<int32_t>::max());
}

TEST_F(ReadinessTest, TokensOfClientsAreProofAndSpareTheProbe) {
  MakeReady();
  for (int i = 0; i < 5; ++i) {
    now_ += seconds(6);
    Token(/*prefill=*/true, /*decode=*/true);
    Look(pair_);
  }
  EXPECT_EQ(num_probes(), 1u);
  WaitAndLook(seconds(10));
  EXPECT_EQ(num_probes(), 2u);
}

TEST_F(ReadinessTest, TokensOfLongAnswersDoNotProveThePrefillWorker) {
  MakeReady();
  for (int i = 0; i < 2; ++i) {
    now_ += seconds(5);
    Token(/*prefill=*/false, /*decode=*/true);
    Look(pair_);
  }
  EXPECT_EQ(num_probes(), 2u);
}

TEST_F(ReadinessTest, ATokenAfterTheProbeWasSentOutweighsItsFailure) {
  MakeReady();
  WaitAndLook(seconds(10));
  now_ += seconds(1);
  Token(/*prefill=*/true, /*decode=*/true);
  Look(pair_);
  EndProbe(0, absl::UnavailableError("lost"));
  Look(pair_);
  EXPECT_TRUE(readiness_->ready());
}

TEST_F(ReadinessTest, ATokenOfAClientEndsUnreadinessWithoutAProbe) {
  MakeReady();
  WaitAndLook(seconds(10));
  EndProbe(0, absl::UnavailableError("lost"));
  Look(pair_);
  ASSERT_FALSE(readiness_->ready());
  now_ += milliseconds(1);
  Token(/*prefill=*/true, /*decode=*/true);
  Look(pair_);
  EXPECT_TRUE(readiness_->ready());
}

TEST_F(ReadinessTest, ANewProofOfOthersReplacesTheOldOne) {
  for (const bool by_client : {false, true}) {
    readiness_ = std::make_shared<Readiness>(&frontend_);
    Look(pair_);
    EndProbe(2);
    Look(pair_);
    ASSERT_TRUE(readiness_->ready());
    now_ += seconds(1);
    std::vector<WorkerView> others = {pair_[0], Worker(Role::kDecode, 3)};
    Look(others);  // Sends a probe.
    if (by_client) {
      others[0].last_token = others[1].last_token = now_;
    } else {
      EndProbe(2);
    }
    Look(others);
    ASSERT_TRUE(readiness_->ready());
    Look(pair_);
    EXPECT_FALSE(readiness_->ready()) << "that proof is too old, by_client " << by_client;
  }
}

TEST_F(ReadinessTest, ATokenProvesTheWorkersThatMadeItAndNoOthers) {
  std::vector<WorkerView> workers = {pair_[0], pair_[1], Worker(Role::kDecode, 3)};
  Look(workers);
  EndProbe(0, absl::UnavailableError("lost"));
  now_ += milliseconds(1);
  workers[0].last_token = workers[1].last_token = now_;
  Look(workers);
  ASSERT_TRUE(readiness_->ready());
  workers[1].healthy = false;
  Look(workers);
  EXPECT_FALSE(readiness_->ready());
}

// ---- Decode workers that compute prompts themselves ----

class AloneReadinessTest : public ReadinessTest {
 protected:
  void BeAlone(bool alone = true) {
    pair_[0].healthy = !alone;
    pair_[1].alone = alone;
  }
};

TEST_F(AloneReadinessTest, IsReadyByAProbeOfItsOwn) {
  MakeReady();
  pair_[0].healthy = false;
  Look(pair_);
  EXPECT_FALSE(readiness_->ready());
  WaitAndLook(milliseconds(200));
  EXPECT_EQ(num_probes(), 1u) << "nobody computes prompts";
  BeAlone();
  Look(pair_);
  EXPECT_FALSE(readiness_->ready()) << "the prefill worker's proof is none";
  ASSERT_EQ(num_probes(), 2u);
  EndProbe(2);
  Look(pair_);
  EXPECT_TRUE(readiness_->ready());
}

TEST_F(AloneReadinessTest, TheTokensOfAnswersThatGoOnProveNoPrompt) {
  MakeReady();
  BeAlone();
  now_ += seconds(1);
  Token(/*prefill=*/false, /*decode=*/true);
  Look(pair_);
  EXPECT_FALSE(readiness_->ready());
  pair_[1].last_prompt = now_;
  Look(pair_);
  EXPECT_TRUE(readiness_->ready());
}

TEST_F(AloneReadinessTest, APrefillWorkerThatComesBackIsProvenAnew) {
  BeAlone();
  MakeReady();
  BeAlone(false);
  WaitAndLook(seconds(1));
  EXPECT_FALSE(readiness_->ready());
  EndProbe(2);
  Look(pair_);
  EXPECT_TRUE(readiness_->ready());
}

TEST_F(AloneReadinessTest, ItIsFullWhenItHasNoBlockToSpare) {
  BeAlone();
  MakeReady();
  Fill(/*prefill=*/false, /*decode=*/true);
  Token(/*prefill=*/false, /*decode=*/true);
  WaitAndLook(seconds(11));
  Token(/*prefill=*/false, /*decode=*/true);
  EndProbe(0, absl::ResourceExhaustedError("no blocks are free"));
  Look(pair_);
  EXPECT_TRUE(readiness_->ready()) << "not tried";
}

TEST_F(AloneReadinessTest, ItIsFullWhileItComputesAPrompt) {
  BeAlone();
  MakeReady();
  pair_[1].status.queued_tokens = 5000;
  Token(/*prefill=*/false, /*decode=*/true);
  WaitAndLook(seconds(11));
  Token(/*prefill=*/false, /*decode=*/true);
  EndProbe(0, absl::DeadlineExceededError("a long prompt is ahead"));
  Look(pair_);
  EXPECT_TRUE(readiness_->ready()) << "not tried";
}

// Releases whose K/V frames differ are two pairs.
class ReadinessOfPairsTest : public ReadinessTest {
 protected:
  static WorkerView Of(uint64_t pair, Role role, Incarnation incarnation) {
    WorkerView worker = Worker(role, incarnation);
    worker.pair = pair;
    return worker;
  }
  const WorkerView p1_ = Of(1, Role::kPrefill, 1), d1_ = Of(1, Role::kDecode, 2),
                   p2_ = Of(2, Role::kPrefill, 3), d2_ = Of(2, Role::kDecode, 4);
};

TEST_F(ReadinessOfPairsTest, WorkersOfEachSideThatDoNotPairProveNothing) {
  pair_ = {p1_, d1_, p2_, d2_};
  MakeReady();
  Look({p1_, d1_});
  EXPECT_TRUE(readiness_->ready());
  Look({p1_, d2_});
  EXPECT_FALSE(readiness_->ready());
  Look({p2_, d2_});
  EXPECT_TRUE(readiness_->ready()) << "the proof could have used these";
}

// A decode worker that becomes alone while the probe is under way, and serves it.
TEST_F(ReadinessOfPairsTest, AProbeThatEndsDoesNotUndoWhatItsTokensHaveProven) {
  pair_ = {p1_, d2_};
  Look(pair_);
  ASSERT_EQ(num_probes(), 1u);
  now_ += seconds(3);
  pair_[1].alone = true;
  pair_[1].last_token = pair_[1].last_prompt = now_;
  Look(pair_);
  EXPECT_TRUE(readiness_->ready());
  EndProbe(2);
  Look(pair_);
  EXPECT_TRUE(readiness_->ready());
}

// The latest of each side are of different pairs.
TEST_F(ReadinessOfPairsTest, TokensProveThePairThatTheyCameThrough) {
  pair_ = {p1_, d1_, p2_, d2_};
  pair_[0].last_token = pair_[3].last_token = now_;
  pair_[1].last_token = pair_[2].last_token = now_ - milliseconds(1);
  Look(pair_);
  EXPECT_TRUE(readiness_->ready());
  for (const auto& left : {std::vector{p1_, d1_}, {p2_, d2_}}) {
    Look(left);
    EXPECT_TRUE(readiness_->ready());
  }
  Look({p2_, d1_});
  EXPECT_FALSE(readiness_->ready());
}

}  // namespace
}  // namespace baton
