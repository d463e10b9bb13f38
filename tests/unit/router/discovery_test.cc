#include "router/discovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "tests/unit/router/fake_worker_set.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Answer = absl::StatusOr<std::vector<std::string>>;

constexpr absl::Duration kLimit = absl::Seconds(60);

// What the names resolve to, by the test; counts lookups.
class FakeDns {
 public:
  Answer Resolve(const std::string& host) {
    absl::MutexLock lock(&mutex_);
    ++lookups_;
    const auto it = answers_.find(host);
    return it == answers_.end() ? absl::NotFoundError("no such name") : it->second;
  }
  void Set(const std::string& host, Answer answer) {
    absl::MutexLock lock(&mutex_);
    answers_[host] = std::move(answer);
  }
  // Two whole rounds of two names from now: what was set before counts.
  void AwaitRounds() {
    absl::MutexLock lock(&mutex_);
    const int64_t until = lookups_ + 5;
    const auto is_there = [&] { return lookups_ >= until; };
    ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&is_there), kLimit));
  }

 private:
  absl::Mutex mutex_;
  std::map<std::string, Answer> answers_;
  int64_t lookups_ = 0;
};

class DiscoveryTest : public testing::Test {
 protected:
  DiscoveryOptions Options() {
    return {.names = {{Role::kPrefill, {"p", "70"}}, {Role::kDecode, {"d", "71"}}},
            .resolve = [dns = dns_](const std::string& host) { return dns->Resolve(host); },
            .clock = [this] { return Time{} + std::chrono::seconds(seconds_.load()); },
            .interval = std::chrono::milliseconds(1)};
  }
  void Start(DiscoveryOptions options) {
    discovery_ = std::make_unique<Discovery>(std::move(options), &workers_);
    discovery_->Start();
    dns_->AwaitRounds();
  }

  // Shared with the thread, which may outlive the test by a lookup.
  const std::shared_ptr<FakeDns> dns_ = std::make_shared<FakeDns>();
  FakeWorkerSet workers_;
  std::atomic<int> seconds_ = 1000;
  std::unique_ptr<Discovery> discovery_;
};

TEST_F(DiscoveryTest, WorkersComeAndGoWithTheAnswers) {
  dns_->Set("p", Answer({"10.0.0.1", "fd00::1"}));
  dns_->Set("d", Answer({"10.0.0.1"}));
  Start(Options());
  EXPECT_THAT(workers_.Listed(Role::kPrefill), ElementsAre("10.0.0.1:70", "[fd00::1]:70"));
  EXPECT_THAT(workers_.Listed(Role::kDecode), ElementsAre("10.0.0.1:71"));
  dns_->Set("p", Answer({"10.0.0.2"}));
  seconds_ += 31;
  dns_->AwaitRounds();
  EXPECT_THAT(workers_.Listed(Role::kPrefill), ElementsAre("10.0.0.2:70"));
  EXPECT_THAT(workers_.Listed(Role::kDecode), ElementsAre("10.0.0.1:71"));
}

TEST_F(DiscoveryTest, AFailedLookupSaysNothingAndIsCounted) {
  dns_->Set("p", Answer({"10.0.0.1"}));
  Start(Options());
  const Answer none = std::vector<std::string>();
  for (const Answer& failure : {Answer(absl::UnavailableError("SERVFAIL")),
                                Answer(absl::NotFoundError("NXDOMAIN")), none}) {
    dns_->Set("p", failure);
    const int64_t before = discovery_->Stats()[0].failed;
    seconds_ += 1000;
    dns_->AwaitRounds();
    EXPECT_GT(discovery_->Stats()[0].failed, before);
    EXPECT_THAT(workers_.Listed(Role::kPrefill), ElementsAre("10.0.0.1:70"));
  }
  const auto stats = discovery_->Stats();
  EXPECT_EQ(stats[0].name, "p:70");
  EXPECT_GT(stats[0].good, 0);
  EXPECT_EQ(stats[0].addresses, 1);
  EXPECT_EQ(stats[1].good, 0);
  EXPECT_GT(stats[1].failed, 0);
}

TEST_F(DiscoveryTest, WithoutTlsAnAnswerIsHeldToLoopback) {
  dns_->Set("p", Answer({"10.0.0.1", "127.0.0.2", "::1"}));
  dns_->Set("d", Answer({"10.0.0.1"}));
  DiscoveryOptions options = Options();
  options.only_loopback = true;
  Start(std::move(options));
  EXPECT_THAT(workers_.Listed(Role::kPrefill), ElementsAre("127.0.0.2:70", "[::1]:70"));
  EXPECT_THAT(workers_.Listed(Role::kDecode), IsEmpty());
  EXPECT_GT(discovery_->Stats()[1].failed, 0);
}

TEST_F(DiscoveryTest, StopDoesNotWaitForALookupAndWhatItBringsIsDropped) {
  // Shared: the lookup outlives all of this test that it does not hold itself.
  struct Lookup {
    absl::Notification begun, may_end;
  };
  auto lookup = std::make_shared<Lookup>();
  DiscoveryOptions options = Options();
  options.resolve = [lookup](const std::string&) {
    if (!lookup->begun.HasBeenNotified()) lookup->begun.Notify();
    lookup->may_end.WaitForNotification();
    return Answer({"10.0.0.1"});
  };
  const std::weak_ptr<Lookup> alive = lookup;
  discovery_ = std::make_unique<Discovery>(std::move(options), &workers_);
  discovery_->Start();
  lookup->begun.WaitForNotification();
  discovery_->Stop();
  discovery_.reset();
  lookup->may_end.Notify();
  lookup.reset();
  while (!alive.expired()) absl::SleepFor(absl::Milliseconds(1));  // Its thread has ended.
  EXPECT_THAT(workers_.Listed(Role::kPrefill), IsEmpty());
}

}  // namespace
}  // namespace baton
