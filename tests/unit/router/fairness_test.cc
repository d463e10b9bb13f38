// What tenants get of workers that all of them wait for: the shipped queue before a service that is
// counted in steps.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/admission_queue.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using testing::Each;
using testing::Le;

// So many sequences at a time, of which one may begin in a step (a prompt is computed); in a step
// each gets a token.
class Service {
 public:
  struct Served {
    int64_t tokens = 0;  // Of prompts, and of answers by their weight.
    std::vector<int> latencies;  // Steps from submission to the last token.
    std::vector<int> overtaken;  // By how many that came later or earlier, until it got its turn.
    int refused = 0;
  };
  explicit Service(int slots, RouterNodeOptions options = {})
      : slots_(slots), options_(options), queue_(options_) {}

  void Submit(const std::string& tenant, int prompt, int answer, int32_t weight = 1,
              int32_t priority = 0) {
    const uint64_t key = next_++;
    Job& job = jobs_[key];
    job.body.tenant = tenant;
    job.body.prompts = {std::vector<int32_t>(prompt, 7)};
    job.body.sampling.max_tokens = answer;
    job.body.weight = weight;
    job.body.priority = priority;
    job.body.timeout = std::chrono::hours(10);
    job.submitted = step_;
    job.starts_before = num_starts_;
    if (!Admit(key, job)) return;
    job.sequence.body = &job.body;
    job.sequence.account = queue_.AccountOf(key);
    job.sequence.arrival = now_;
    job.sequence.id = {1, key};
    job.sequence.request = key;
    queue_.Add(job.sequence, now_);
  }

  void Step() {
    queue_.waiting().BeginPass(now_);
    const auto next = queue_.waiting().Next();
    if (next && running_.size() < slots_) Start(*next);
    ++step_;
    now_ += milliseconds(50);
    std::erase_if(running_, [this](uint64_t key) { return Emit(key); });
  }

  const Served& of(const std::string& tenant) { return served_[tenant]; }
  const AdmissionQueue& queue() const { return queue_; }

 private:
  struct Job {
    ValidRequest body;
    SequenceState sequence;
    int submitted = 0;
    int starts_before = 0;
    int emitted = 0;
  };

  bool Admit(uint64_t key, Job& job) {
    while (const auto newest = queue_.GoesFor(job.body)) End(*newest, /*refused=*/true);
    if (queue_.Admit(key, job.body, now_).ok()) return true;
    ++served_[job.body.tenant].refused;
    jobs_.erase(key);
    return false;
  }
  void End(uint64_t key, bool refused) {
    Job& job = jobs_.at(key);
    served_[job.body.tenant].refused += refused;
    queue_.Remove(job.sequence);
    queue_.End(key);
    jobs_.erase(key);
  }
  void Start(uint64_t key) {
    Job& job = jobs_.at(key);
    queue_.Take(job.sequence, now_);
    job.sequence.charged = std::ssize(job.body.prompts[0]);
    queue_.Charge(key, job.sequence.charged);
    Served& served = served_[job.body.tenant];
    served.tokens += job.sequence.charged;
    served.overtaken.push_back(num_starts_ - job.starts_before);
    ++num_starts_;
    running_.push_back(key);
  }
  // True if it has ended.
  bool Emit(uint64_t key) {
    Job& job = jobs_.at(key);
    Served& served = served_[job.body.tenant];
    queue_.Charge(key, kAnswerWeight);
    served.tokens += kAnswerWeight;
    if (++job.emitted < job.body.sampling.max_tokens) return false;
    served.latencies.push_back(step_ - job.submitted);
    End(key, /*refused=*/false);
    return true;
  }

  const size_t slots_;
  const RouterNodeOptions options_;
  AdmissionQueue queue_;
  std::map<uint64_t, Job> jobs_;
  std::deque<uint64_t> running_;
  std::map<std::string, Served> served_;
  uint64_t next_ = 1;
  int step_ = 0;
  int num_starts_ = 0;
  Time now_{};
};

// (sum x)^2 / (n sum x^2): 1 when all have the same.
double Jain(const std::vector<double>& parts) {
  double sum = 0, squares = 0;
  for (const double x : parts) {
    sum += x;
    squares += x * x;
  }
  return sum * sum / (static_cast<double>(parts.size()) * squares);
}

// Eight at a time, sixteen steps each: every other step one ends and one begins.
class FairnessTest : public testing::Test {
 protected:
  static constexpr int kPrompt = 30;
  static constexpr int kAnswer = 16;
  static constexpr int kEvery = 10;  // Steps between two requests of the modest tenant.

  // The modest tenant's requests, beside another's at `times` its rate.
  static Service::Served Modest(int times) {
    Service service(8);
    for (int step = 0; step < 2000; ++step) {
      for (int i = 0; i < times; ++i) {
        if ((step * times + i) % kEvery == 0) service.Submit("flood", kPrompt, kAnswer);
      }
      if (step % kEvery == 0) service.Submit("modest", kPrompt, kAnswer);
      service.Step();
    }
    return service.of("modest");
  }
};

TEST_F(FairnessTest, AFloodOfTwentyTimesAsMuchCostsAnotherTenantLessThanHalfAsMuchAgain) {
  const Service::Served alone = Modest(0), beside = Modest(20);
  ASSERT_GE(alone.latencies.size(), 190u);
  ASSERT_GE(beside.latencies.size(), 190u) << "none is refused, none waits to the end";
  const int most = *std::ranges::max_element(alone.latencies);
  EXPECT_EQ(most, kAnswer);
  EXPECT_THAT(beside.latencies, Each(Le(most * 3 / 2)));
  // When it comes it has been served least: at most the one goes before it that is as far.
  EXPECT_THAT(beside.overtaken, Each(Le(1)));
}

TEST_F(FairnessTest, TenTenantsOfVeryDifferentDemandGetTheSameUnderSaturation) {
  // A fifth of all that is asked for is served; a full queue makes room for who has less in it.
  Service service(8, {.max_queued_requests = 100});
  Random random(1);
  double zipf = 0;
  for (int rank = 1; rank <= 10; ++rank) zipf += 1.0 / rank;
  for (int step = 0; step < 20'000; ++step) {
    for (int rank = 1; rank <= 10; ++rank) {
      if (random.Unit() >= 2.5 / (zipf * rank)) continue;
      service.Submit(std::to_string(rank), 10 + static_cast<int>(random.Below(60)),
                     4 + static_cast<int>(random.Below(24)));
    }
    service.Step();
  }
  std::vector<double> served;
  for (int rank = 1; rank <= 10; ++rank) {
    const Service::Served& one = service.of(std::to_string(rank));
    served.push_back(static_cast<double>(one.tokens));
    EXPECT_GT(one.refused, 0) << "tenant " << rank << " is not saturated";
  }
  EXPECT_GE(Jain(served), 0.95);
}

TEST_F(FairnessTest, WeightsShareWhatIsServed) {
  Service service(8);
  for (int step = 0; step < 4000; ++step) {
    for (const int weight : {1, 2, 5}) {
      service.Submit(std::to_string(weight), kPrompt, kAnswer, weight);
    }
    service.Step();
  }
  const auto one = static_cast<double>(service.of("1").tokens);
  EXPECT_NEAR(static_cast<double>(service.of("2").tokens) / one, 2, 0.1);
  EXPECT_NEAR(static_cast<double>(service.of("5").tokens) / one, 5, 0.25);
}

TEST_F(FairnessTest, WhoHadOneHugeRequestWaitsForTheOthersButNotForEver) {
  Service service(8);
  service.Submit("steady", kPrompt, kAnswer);
  service.Submit("huge", 1'000'000, kAnswer);
  for (int step = 0; step < 2000; ++step) {
    service.Submit("huge", kPrompt, kAnswer);
    service.Submit("steady", kPrompt, kAnswer);
    service.Step();
  }
  // 100 s: a turn by age for each ten.
  EXPECT_GE(service.of("huge").overtaken.size(), 9u);
  EXPECT_LE(service.of("huge").overtaken.size(), 12u);
}

TEST_F(FairnessTest, ABadPriorityCostsTimeAndNotTheTurn) {
  Service service(8);
  for (int step = 0; step < 2000; ++step) {
    if (step == 100) service.Submit("a", kPrompt, kAnswer, 1, /*priority=*/3);
    // Half of all is a's, and it takes that with better requests.
    if (step % 4 == 0) service.Submit("a", kPrompt, kAnswer);
    service.Submit("b", kPrompt, kAnswer);
    service.Step();
  }
  const int longest = *std::ranges::max_element(service.of("a").latencies);
  EXPECT_GE(longest, 600) << "three classes of ten seconds";
  EXPECT_LE(longest, 700);
}

TEST_F(FairnessTest, TenantsLeaveNothingBehind) {
  Service service(8);
  for (int i = 0; i < 10'000; ++i) {
    service.Submit(std::to_string(i), 1 + i % 7, 1);
    service.Step();
  }
  EXPECT_EQ(service.queue().num_tenants(), 0u);
  EXPECT_EQ(service.queue().num_requests(), 0);
}

}  // namespace
}  // namespace baton
