#include "common/node/node_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "common/node/worker_mail.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
extern "C" size_t __sanitizer_get_current_allocated_bytes();  // Its header is not everywhere.
#endif

namespace baton {
namespace {

using ::testing::ElementsAre;

// Set once, waited for; made of what the thread sanitizer knows.
class Signal {
 public:
  void Set() {
    if (!set_) promise_.set_value();
    set_ = true;
  }
  void Wait() { promise_.get_future().wait(); }

 private:
  std::promise<void> promise_;
  bool set_ = false;  // Of the one thread that calls Set.
};

// Notes what it is given; Step may be made to block, so that mail piles up.
class RecordingNode : public Node<DecodeMail> {
 public:
  void Handle(DecodeMail mail, Time now) override {
    EXPECT_GE(now, last_time_);
    last_time_ = now;
    calls.push_back(std::get<CallBroken>(mail).call);
  }
  void Step(Time now) override {
    EXPECT_GE(now, last_time_);
    last_time_ = now;
    handled_at_step.push_back(calls.size());
    deadline = kNever;
  }
  Time NextDeadline() const override { return deadline; }

  std::vector<CallId> calls;
  std::vector<size_t> handled_at_step;
  Time deadline = kNever;

 private:
  Time last_time_{};
};

TEST(NodeThreadTest, MailThatCameTogetherIsOfOneTurn) {
  RecordingNode node;
  NodeThread<DecodeMail> thread({});
  Signal first, all;
  thread.Start(&node, [&](Time) {
    first.Set();
    if (node.calls.size() == 3) all.Set();
  });
  first.Wait();  // It sleeps, and the first of the mail would wake it.
  thread.PostAll({CallBroken{.call = 1}, CallBroken{.call = 2}, CallBroken{.call = 3}});
  all.Wait();
  thread.Stop();
  thread.PostAll({CallBroken{.call = 4}});
  EXPECT_THAT(node.calls, ElementsAre(1, 2, 3));
  EXPECT_THAT(node.handled_at_step, ElementsAre(0, 3));
}

TEST(NodeThreadTest, TellsHowLongATurnTakesAndNothingBetweenTurns) {
  class StandingNode : public Node<DecodeMail> {
   public:
    void Handle(DecodeMail, Time now) override {
      came = now;
      began.Set();
      release.Wait();
    }
    void Step(Time) override {}
    Time NextDeadline() const override { return kNever; }
    Time came{};
    Signal began, release;
  };
  StandingNode node;
  NodeThread<DecodeMail> thread({});
  EXPECT_EQ(thread.InTurnFor(Time{} + std::chrono::hours(1)), Duration::zero());
  thread.Start(&node, nullptr);
  thread.Post(CallBroken{.call = 1});
  node.began.Wait();
  EXPECT_EQ(thread.InTurnFor(node.came + std::chrono::seconds(61)), std::chrono::seconds(61));
  EXPECT_EQ(thread.InTurnFor(node.came - std::chrono::seconds(1)), Duration::zero());
  node.release.Set();
  while (thread.InTurnFor(node.came + std::chrono::seconds(61)) > Duration::zero()) {
  }
  thread.Stop();
}

TEST(NodeThreadTest, HandlesAllMailInOrderBeforeOneStep) {
  RecordingNode node;
  NodeThread<DecodeMail> thread({});
  for (CallId call = 1; call <= 3; ++call) thread.Post(CallBroken{.call = call});
  Signal stepped;
  thread.Start(&node, [&](Time) { stepped.Set(); });
  stepped.Wait();
  thread.Stop();
  EXPECT_THAT(node.calls, ElementsAre(1, 2, 3));
  ASSERT_FALSE(node.handled_at_step.empty());
  EXPECT_EQ(node.handled_at_step.front(), 3);
}

// Of the process.
int64_t AllocatedBytes() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return static_cast<int64_t>(__sanitizer_get_current_allocated_bytes());
#else
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
#endif
}

TEST(NodeThreadTest, AFloodOfMailLeavesNoRoomBehind) {
  constexpr CallId kFlood = 100'000;
  RecordingNode node;
  node.calls.reserve(kFlood + 2);
  NodeThread<DecodeMail> thread({});
  const int64_t before = AllocatedBytes();
  for (CallId call = 1; call <= kFlood; ++call) thread.Post(CallBroken{.call = call});
  const int64_t flood = AllocatedBytes() - before;
  EXPECT_GT(flood, int64_t{kFlood} * static_cast<int64_t>(sizeof(DecodeMail)));
  Signal all, one_more, another;
  thread.Start(&node, [&](Time) {
    (node.calls.size() == kFlood       ? all
     : node.calls.size() == kFlood + 1 ? one_more
                                       : another)
        .Set();
  });
  all.Wait();
  thread.Post(CallBroken{.call = 0});
  one_more.Wait();
  thread.Post(CallBroken{.call = 0});
  another.Wait();
  thread.Stop();
  EXPECT_LT(AllocatedBytes() - before, flood / 10);
}

TEST(NodeThreadTest, RefusesOfferedRequestsBeyondTheCapButNeverInternalMail) {
  RecordingNode node;
  NodeThread<DecodeMail> thread({.max_offered_requests = 2});
  EXPECT_TRUE(thread.Offer(CallBroken{.call = 1}));
  EXPECT_TRUE(thread.Offer(CallBroken{.call = 2}));
  EXPECT_FALSE(thread.Offer(CallBroken{.call = 3}));
  thread.Post(CallBroken{.call = 4});
  Signal stepped;
  thread.Start(&node, [&](Time) {
    if (node.calls.size() == 3) stepped.Set();
  });
  stepped.Wait();
  EXPECT_TRUE(thread.Offer(CallBroken{.call = 5}));  // There is room again.
  thread.Stop();
  EXPECT_EQ(node.calls[0], 1);
  EXPECT_EQ(node.calls[1], 2);
  EXPECT_EQ(node.calls[2], 4);
}

TEST(NodeThreadTest, StepsAtTheDeadlineWithoutMail) {
  class DeadlineNode : public Node<DecodeMail> {
   public:
    void Handle(DecodeMail, Time) override {}
    void Step(Time now) override {
      if (++steps == 1) deadline = now + std::chrono::milliseconds(20);
      if (steps == 2) {
        late = now - deadline;
        deadline = kNever;
      }
    }
    Time NextDeadline() const override { return deadline; }
    int steps = 0;
    Time deadline = kNever;
    Duration late{-1};
  };
  DeadlineNode node;
  NodeThread<DecodeMail> thread({});
  Signal second;
  thread.Start(&node, [&](Time) {
    if (node.steps == 2) second.Set();
  });
  second.Wait();
  thread.Stop();
  EXPECT_GE(node.late, Duration::zero());
}

TEST(NodeThreadTest, TakesNothingAfterStop) {
  RecordingNode node;
  NodeThread<DecodeMail> thread({});
  thread.Start(&node, nullptr);
  thread.Stop();
  const size_t handled = node.calls.size();
  EXPECT_FALSE(thread.Offer(CallBroken{.call = 1}));
  thread.Post(CallBroken{.call = 2});
  thread.Stop();
  EXPECT_EQ(node.calls.size(), handled);
}

TEST(NodeThreadTest, DeliversEveryPostOfManyThreadsOnce) {
  constexpr int kThreads = 4;
  constexpr int kPerThread = 2000;
  RecordingNode node;
  NodeThread<DecodeMail> thread({});
  Signal all;
  thread.Start(&node, [&](Time) {
    if (node.calls.size() == kThreads * kPerThread) all.Set();
  });
  {
    std::vector<std::jthread> senders;
    for (int t = 0; t < kThreads; ++t) {
      senders.emplace_back([&thread, t] {
        for (int i = 0; i < kPerThread; ++i) {
          thread.Post(CallBroken{.call = static_cast<CallId>(t * kPerThread + i)});
        }
      });
    }
  }
  all.Wait();
  thread.Stop();
  std::vector<CallId> sorted = node.calls;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) ASSERT_EQ(sorted[i], i);
}

// A node may write to its own inbox from within Handle or Step (a loopback transport does).
TEST(NodeThreadTest, NodeMayPostToItself) {
  class EchoNode : public Node<DecodeMail> {
   public:
    explicit EchoNode(Inbox<DecodeMail>* inbox) : inbox_(inbox) {}
    void Handle(DecodeMail mail, Time) override {
      if (std::get<CallBroken>(mail).call < 10) {
        inbox_->Post(CallBroken{.call = std::get<CallBroken>(mail).call + 1});
      } else {
        done.Set();
      }
    }
    void Step(Time) override {}
    Time NextDeadline() const override { return kNever; }
    Signal done;

   private:
    Inbox<DecodeMail>* inbox_;
  };
  NodeThread<DecodeMail> thread({});
  EchoNode node(&thread);
  thread.Start(&node, nullptr);
  thread.Post(CallBroken{.call = 1});
  node.done.Wait();
  thread.Stop();
}

}  // namespace
}  // namespace baton
