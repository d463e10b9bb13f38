#include "router/readiness.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "tests/unit/router/generation/fakes.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

WorkerView Worker(Role role, Incarnation incarnation, bool healthy = true) {
  WorkerView worker{.role = role, .healthy = healthy};
  worker.hello.incarnation = incarnation;
  return worker;
}

class ReadinessTest : public ::testing::Test {
 protected:
  void Look(std::vector<WorkerView> workers) {
    readiness_->OnView({.workers = std::move(workers)}, now_);
  }
  size_t num_probes() const { return frontend_.requests().size(); }
  // Ends the latest probe after this many tokens.
  void EndProbe(int num_tokens, const absl::Status& status = absl::OkStatus()) {
    const auto sink = frontend_.sink(num_probes());
    for (int i = 0; i < num_tokens; ++i) sink->OnEvent(ChoiceTokens{.outputs = {TokenOutput{}}});
    sink->OnEvent(RequestEnded{.status = status});
  }
  const std::vector<WorkerView> pair_ = {Worker(Role::kPrefill, 1), Worker(Role::kDecode, 2)};

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
}

}  // namespace
}  // namespace baton
