#include "common/node/node_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
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

std::vector<DecodeMail> MailOf(CallId call) { return {CallBroken{.call = call}}; }

// Driven by one thread at a time, not always the same.
class SharedNode : public Node<DecodeMail> {
 public:
  void Handle(DecodeMail mail, Time) override {
    EXPECT_FALSE(std::exchange(in_turn_, true)) << "somebody else is in a turn, or this one is";
    const CallId call = std::get<CallBroken>(mail).call;
    calls.push_back(call);
    last_thread = std::this_thread::get_id();
    if (on_call) on_call(call);
    in_turn_ = false;
  }
  void Step(Time) override {
    if (on_step) on_step();
  }
  Time NextDeadline() const override { return deadline; }

  std::vector<CallId> calls;
  std::atomic<std::thread::id> last_thread;
  std::function<void(CallId)> on_call;
  std::function<void()> on_step;
  Time deadline = kNever;

 private:
  bool in_turn_ = false;
};

constexpr CallId kIdle = 0;

// Takes a turn here: soon, as the thread sleeps when it has had its first.
void TakeTurn(NodeThread<DecodeMail>& thread, const SharedNode& node) {
  for (bool was_here = false; !was_here;) {
    thread.PostAll(MailOf(kIdle));
    while (thread.InTurnFor(SteadyNow()) > Duration::zero()) {
    }
    was_here = node.last_thread.load() == std::this_thread::get_id();
  }
}

TEST(NodeThreadTest, WhoPostsTakesTheTurnIfNobodyIsInOne) {
  SharedNode node;
  NodeThread<DecodeMail> thread({.posters_take_turns = true});
  thread.Start(&node, nullptr);
  node.on_call = [&](CallId call) {
    if (call == kIdle) return;
    // Not within this turn, and no turn of another poster's.
    std::jthread([&] { thread.PostAll(MailOf(call + 1)); });
    node.on_call = nullptr;
  };
  TakeTurn(thread, node);
  Signal stepped;
  node.on_step = [&] {
    if (node.calls.back() == 2) stepped.Set();
  };
  thread.PostAll(MailOf(1));
  stepped.Wait();
  thread.Stop();
  ASSERT_GE(node.calls.size(), 3u);
  EXPECT_THAT(std::vector<CallId>(node.calls.end() - 2, node.calls.end()), ElementsAre(1, 2));
  EXPECT_NE(node.last_thread.load(), std::this_thread::get_id()) << "a poster has one turn";
}

TEST(NodeThreadTest, ADeadlineOfAPostersTurnIsKept) {
  SharedNode node;
  NodeThread<DecodeMail> thread({.posters_take_turns = true});
  Signal stepped;
  node.on_call = [&](CallId) {
    node.deadline = SteadyNow() + std::chrono::milliseconds(50);
    node.on_step = [&] {
      if (SteadyNow() < node.deadline) return;
      node.deadline = kNever;
      stepped.Set();
    };
  };
  thread.Start(&node, nullptr);
  TakeTurn(thread, node);
  stepped.Wait();
  thread.Stop();
}

TEST(NodeThreadTest, StopWaitsForAPostersTurn) {
  SharedNode node;
  NodeThread<DecodeMail> thread({.max_offered_requests = 1 << 30, .posters_take_turns = true});
  thread.Start(&node, nullptr);
  Signal began;
  bool has_ended = false;
  node.on_call = [&](CallId call) {
    if (call == kIdle) return;
    began.Set();
    while (thread.Offer(CallBroken{.call = kIdle})) {  // Until it stops.
    }
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    has_ended = true;
  };
  std::jthread poster([&] {
    TakeTurn(thread, node);
    thread.PostAll(MailOf(1));
  });
  began.Wait();
  thread.Stop();
  EXPECT_TRUE(has_ended);
}

TEST(NodeThreadTest, OfManyThatTakeTurnsEachIsServedOnceAndInItsOrder) {
  constexpr int kThreads = 4;
  constexpr CallId kPerThread = 2000;
  SharedNode node;
  NodeThread<DecodeMail> thread({.posters_take_turns = true});
  Signal all;
  node.on_step = [&] {
    if (node.calls.size() == kThreads * kPerThread) all.Set();
  };
  thread.Start(&node, nullptr);
  {
    std::vector<std::jthread> senders;
    for (CallId t = 0; t < kThreads; ++t) {
      senders.emplace_back([&thread, t] {
        for (CallId i = 0; i < kPerThread; ++i) {
          i % 3 == 0 ? thread.Post(CallBroken{.call = t * kPerThread + i})
                     : thread.PostAll(MailOf(t * kPerThread + i));
        }
      });
    }
  }
  all.Wait();
  thread.Stop();
  std::vector<CallId> next(kThreads);
  for (const CallId call : node.calls) ASSERT_EQ(call % kPerThread, next[call / kPerThread]++);
}

}  // namespace
}  // namespace baton
