#include "common/worker/mailing_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "tests/unit/common/worker/mail_list.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

// Computes at once, on the caller's thread.
class InstantRunner : public ModelRunner {
 public:
  explicit InstantRunner(RunnerSink* sink) : sink_(sink) {}
  void Start(std::shared_ptr<const StepPlan> plan) override {
    sink_->OnLayerDone({.step = plan->step, .layer = 0});
    sink_->OnRowsDone({.step = plan->step, .rows = 32});
    sink_->OnStepDone({.step = plan->step, .status = {}, .rows = {}, .host = host});
  }

  Duration host{};

 private:
  RunnerSink* const sink_;
};

StepRow Prefill(int tokens) { return {.tokens = std::vector<int32_t>(tokens, 1), .sample = true}; }
StepRow Decode() { return {.tokens = {1}, .context_len = 5, .sample = true, .num_emitted = 3}; }

class MailingRunnerTest : public ::testing::Test {
 protected:
  MailingRunnerTest() : metrics_("decode", "1"), mailing_(&inbox_, &metrics_), runner_(&mailing_) {
    mailing_.set_runner(&runner_);
  }
  void Run(std::vector<StepRow> rows) {
    auto plan = std::make_shared<StepPlan>();
    plan->step = ++step_;
    plan->rows = std::move(rows);
    mailing_.Start(plan);
  }
  MailList inbox_;
  Metrics metrics_;
  MailingRunner mailing_;
  InstantRunner runner_;
  uint64_t step_ = 0;
};

TEST_F(MailingRunnerTest, MailsWhatTheRunnerReportsInOrder) {
  Run({Prefill(3)});
  ASSERT_EQ(inbox_.mail.size(), 3u);
  EXPECT_EQ(std::get<LayerDone>(inbox_.mail[0]).step, 1u);
  EXPECT_EQ(std::get<RowsDone>(inbox_.mail[1]).rows, 32);
  EXPECT_EQ(std::get<StepDone>(inbox_.mail[2]).step, 1u);
}

TEST_F(MailingRunnerTest, CountsStepsByPhaseAndTokensByKind) {
  Run({Prefill(3)});
  Run({Decode(), Decode()});
  Run({Decode()});
  Run({Prefill(4), Decode()});
  const std::string text = metrics_.Render();
  EXPECT_THAT(text, HasSubstr("baton_step_seconds_count{phase=\"prefill\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("baton_step_seconds_count{phase=\"decode\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("baton_step_seconds_count{phase=\"mixed\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("baton_tokens_total{kind=\"computed\"} 11\n"));
  EXPECT_THAT(text, HasSubstr("baton_tokens_total{kind=\"sampled\"} 6\n"));
}

TEST_F(MailingRunnerTest, CountsTheHostsPartOfStepsThatHaveOne) {
  runner_.host = std::chrono::milliseconds(300);
  Run({Decode()});
  runner_.host = std::chrono::milliseconds(200);
  Run({Prefill(3)});
  runner_.host = {};  // It only moved blocks, or failed.
  Run({Decode()});
  const std::string text = metrics_.Render();
  EXPECT_THAT(text, HasSubstr("baton_step_host_seconds_count 2\n"));
  EXPECT_THAT(text, HasSubstr("baton_step_host_seconds_sum 0.5\n"));
}

TEST_F(MailingRunnerTest, WhatIsComputedAgainIsPrefillAndSoIsAPromptOfOneToken) {
  StepRow again = Prefill(5);
  again.num_emitted = 3;
  Run({again});
  Run({Prefill(1)});
  StepRow no_token = Decode();
  no_token.sample = false;
  Run({no_token});
  const std::string text = metrics_.Render();
  EXPECT_THAT(text, HasSubstr("baton_step_seconds_count{phase=\"prefill\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("baton_step_seconds_count{phase=\"decode\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("baton_tokens_total{kind=\"sampled\"} 2\n"));
}

// Starts the next step as soon as one is done, as a node's thread may.
class EagerInbox : public MailList {
 public:
  void Post(DecodeMail mail) override {
    const bool is_done = std::holds_alternative<StepDone>(mail);
    MailList::Post(std::move(mail));
    if (is_done && next != nullptr) mailing->Start(std::exchange(next, nullptr));
  }
  MailingRunner* mailing = nullptr;
  std::shared_ptr<const StepPlan> next;
};

// Computes until the test says that it is done.
class SlowRunner : public ModelRunner {
 public:
  void Start(std::shared_ptr<const StepPlan>) override { ++num_started; }
  int num_started = 0;
};

void WaitUntil(Time time) {
  while (SteadyNow() < time) std::this_thread::yield();
}

// A follow-up begins when the step before it has ended, whenever it was started.
TEST(MailingRunnerOrderTest, TwoStepsInFlightAreMeasuredOneAfterTheOther) {
  MailList inbox;
  Metrics metrics("decode", "1");
  MailingRunner mailing(&inbox, &metrics);
  SlowRunner runner;
  mailing.set_runner(&runner);
  auto first = std::make_shared<StepPlan>();
  first->rows = {Prefill(3)};
  auto second = std::make_shared<StepPlan>();
  second->rows = {Decode(), Decode()};
  mailing.Start(first);
  WaitUntil(SteadyNow() + std::chrono::milliseconds(100));
  mailing.Start(second);
  WaitUntil(SteadyNow() + std::chrono::milliseconds(100));
  mailing.OnStepDone({.step = 1});
  mailing.OnStepDone({.step = 2});
  const std::string text = metrics.Render();
  const auto value = [&](const std::string& name) {
    return std::stod(text.substr(text.find("\n" + name + " ") + name.size() + 2));
  };
  const double of_first = value("baton_step_seconds_sum{phase=\"prefill\"}");
  const double of_second = value("baton_step_seconds_sum{phase=\"decode\"}");
  EXPECT_GE(of_first, 0.2);
  EXPECT_LT(of_second, of_first);  // From its start on it would be 0.1 more than that.
  EXPECT_GE(value("baton_device_busy_seconds_total"), of_first + of_second - 0.001);
  EXPECT_EQ(value("baton_tokens_total{kind=\"sampled\"}"), 3);
}

TEST(MailingRunnerOrderTest, TheNextStepMayStartWithinTheMailOfTheLast) {
  EagerInbox inbox;
  Metrics metrics("decode", "1");
  MailingRunner mailing(&inbox, &metrics);
  SlowRunner runner;
  mailing.set_runner(&runner);
  inbox.mailing = &mailing;
  auto first = std::make_shared<StepPlan>();
  first->rows = {Prefill(3)};
  auto second = std::make_shared<StepPlan>();
  second->rows = {Decode()};
  inbox.next = second;
  mailing.Start(first);
  mailing.OnStepDone({.step = 1});
  EXPECT_EQ(runner.num_started, 2);
  const auto busy_seconds = [&] {
    const std::string text = metrics.Render(), name = "\nbaton_device_busy_seconds_total ";
    return std::stod(text.substr(text.find(name) + name.size()));
  };
  const double first_look = busy_seconds();
  double look = first_look;  // A step is under way.
  for (int i = 0; i < 100'000 && look == first_look; ++i) look = busy_seconds();
  EXPECT_GT(look, first_look);
  mailing.OnStepDone({.step = 2});
  EXPECT_EQ(busy_seconds(), busy_seconds());
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("baton_step_seconds_count{phase=\"prefill\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("baton_step_seconds_count{phase=\"decode\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("baton_tokens_total{kind=\"computed\"} 4\n"));
}

}  // namespace
}  // namespace baton
