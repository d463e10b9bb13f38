// The router's end of a session, before workers that say what none should.
#include "common/rpc/session_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/common/rpc/handmade_worker.h"
#include "tests/unit/common/rpc/test_cluster.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::CallTold Tokens(uint64_t call, int32_t position) {
  v1::CallTold told;
  told.set_call(call);
  ToProto(TokensEvent{.outputs = {{.position = position, .token = 3}}}, told.mutable_decode());
  return told;
}

v1::CallTold EndOf(uint64_t call, int32_t code) {
  v1::CallTold told;
  told.set_call(call);
  told.mutable_end()->set_code(code);
  return told;
}

// So that what ends a session is not that nothing comes.
void GiveSignsOfLife(WorkersEnd& end) {
  while (end.Write(end.First({}))) absl::SleepFor(absl::Milliseconds(200));
}

// A router with two calls open to a worker, which says in its session what the test wants.
struct TwoCalls {
  explicit TwoCalls(std::function<void(WorkersEnd& end)> script)
      : worker({}, {.session =
                        [script = std::move(script)](WorkersEnd& end) {
                          for (int num_opened = 0; num_opened < 2;) {
                            const auto message = end.ReadCalls();
                            if (!message.has_value()) return;
                            num_opened += message->calls_size();
                          }
                          script(end);
                        }}),
        router({{Role::kDecode, worker.address()}}) {
    EXPECT_TRUE(router.inbox.Next<WorkerUp>().has_value());
    router.links.OpenDecode(11, 0, SampleDecode());
    router.links.OpenDecode(12, 0, SampleDecode());
  }

  // Both calls end as if the connection was lost, and there is a new one.
  void ExpectLost(const std::string& why = "") {
    for (int i = 0; i < 2; ++i) {
      const auto closed = router.inbox.Next<CallClosed>();
      ASSERT_TRUE(closed.has_value());
      EXPECT_TRUE(absl::IsUnavailable(closed->status)) << closed->status;
    }
    const auto down = router.inbox.Next<WorkerDown>();
    ASSERT_TRUE(down.has_value());
    EXPECT_THAT(down->reason, HasSubstr(why));
    EXPECT_TRUE(router.inbox.Next<WorkerUp>().has_value());
    EXPECT_EQ(worker.num_connections(), 2u);
  }

  HandmadeWorker worker;
  TestRouter router;
};

TEST(SessionClientTest, EventsAndEndsOfAllCallsComeInOneMessageAndGoToTheNodeTogether) {
  TwoCalls calls([](WorkersEnd& end) {
    v1::ToRouter message;
    for (const uint64_t call : {2, 1, 2}) *message.add_calls() = Tokens(call, 10 + call);
    *message.add_calls() = EndOf(2, 0);
    end.Write(end.First(message));
  });
  for (const CallId id : {12, 11, 12}) {
    const auto event = calls.router.inbox.Next<WorkerEventReceived>();
    ASSERT_TRUE(event.has_value());
    EXPECT_EQ(event->call, id);
  }
  const auto closed = calls.router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->call, 12);
  EXPECT_TRUE(closed->status.ok());
  EXPECT_EQ(calls.router.inbox.largest_post(), 4u);
}

TEST(SessionClientTest, ADamagedMessageEndsAllCallsAndTheConnection) {
  TwoCalls calls([](WorkersEnd& end) {
    end.Say(Tokens(1, 10));
    v1::SessionFrame damaged = end.Frame(Tokens(1, 11));
    damaged.mutable_message()->back() ^= 1;
    end.Write(damaged);
    GiveSignsOfLife(end);
  });
  calls.ExpectLost();
  EXPECT_EQ(calls.router.inbox.Count<WorkerEventReceived>(), 1);
}

TEST(SessionClientTest, TheNextSessionNamesTheKeysOfThoseThatHaveEnded) {
  absl::Mutex mutex;
  std::vector<v1::SessionOpen> opened;
  HandmadeWorker worker({}, {.session = [&](WorkersEnd& end) {
                          absl::MutexLock lock(&mutex);
                          opened.push_back(end.opened);
                          end.leaves = opened.size() < 3;
                        }});
  TestRouter router({{Role::kDecode, worker.address()}});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  const auto has_three = [&]() { return opened.size() == 3; };
  absl::MutexLock lock(&mutex);
  ASSERT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&has_three), absl::Seconds(10)));
  EXPECT_TRUE(opened[0].ended().empty());
  EXPECT_THAT(opened[1].ended(), ElementsAre(opened[0].key()));
  EXPECT_THAT(opened[2].ended(), ElementsAre(opened[0].key(), opened[1].key()));
}

TEST(SessionClientTest, AMessageThatIsMissingEndsAllCallsAndTheConnection) {
  TwoCalls calls([](WorkersEnd& end) {
    end.Frame(Tokens(1, 10));
    end.Say(Tokens(1, 11));
    GiveSignsOfLife(end);
  });
  calls.ExpectLost("message 2 came where 1 was to come");
  EXPECT_EQ(calls.router.inbox.Count<WorkerEventReceived>(), 0);
}

TEST(SessionClientTest, AMessageThatComesTwiceEndsAllCallsAndTheConnection) {
  TwoCalls calls([](WorkersEnd& end) {
    const v1::SessionFrame frame = end.Frame(Tokens(1, 10));
    end.Write(frame);
    end.Write(frame);
    GiveSignsOfLife(end);
  });
  calls.ExpectLost();
  EXPECT_EQ(calls.router.inbox.Count<WorkerEventReceived>(), 1);
}

TEST(SessionClientTest, WhatIsSaidOfACallThatNobodyOpenedEndsTheSession) {
  for (const uint64_t call : {0, 3}) {
    TwoCalls calls([call](WorkersEnd& end) {
      end.Say(Tokens(call, 10));
      GiveSignsOfLife(end);
    });
    calls.ExpectLost("was not opened");
  }
}

TEST(SessionClientTest, AnEndThatIsNoStatusEndsTheSession) {
  for (const int32_t code : {-1, 17}) {
    TwoCalls calls([code](WorkersEnd& end) {
      end.Say(EndOf(1, code));
      GiveSignsOfLife(end);
    });
    calls.ExpectLost();
  }
}

TEST(SessionClientTest, ABadEventThatCameWholeEndsItsCallAlone) {
  std::atomic<bool> is_cancelled = false;
  TwoCalls calls([&](WorkersEnd& end) {
    end.Say(Tokens(1, -5));
    const auto message = end.ReadCalls();
    is_cancelled =
        message.has_value() && message->calls(0).has_cancel() && message->calls(0).call() == 1;
    end.Say(Tokens(1, 10));  // Of a call that is over: a no-op.
    end.Say(Tokens(2, 10));
  });
  const auto closed = calls.router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->call, 11);
  EXPECT_TRUE(absl::IsDataLoss(closed->status)) << closed->status;
  const auto event = calls.router.inbox.Next<WorkerEventReceived>();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->call, 12);
  EXPECT_TRUE(is_cancelled);
  EXPECT_EQ(calls.router.inbox.Count<WorkerDown>(), 0);
}

TEST(SessionClientTest, OfTheTextOfAnEndTheBeginningIsRead) {
  TwoCalls calls([](WorkersEnd& end) {
    v1::CallTold told = EndOf(1, 3);
    told.mutable_end()->set_message(std::string(1 << 20, '\xff'));
    end.Say(told);
    GiveSignsOfLife(end);
  });
  const auto closed = calls.router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_TRUE(absl::IsInvalidArgument(closed->status));
  EXPECT_EQ(closed->status.message().size(), kMostEndBytes);
  EXPECT_EQ(calls.router.inbox.Count<WorkerDown>(), 0);
}

// Nobody could be asked over that connection again.
TEST(SessionClientTest, ASessionThatEndsWithoutCallsTakesItsConnectionAlong) {
  HandmadeWorker worker({}, {.session = [](WorkersEnd& end) { end.leaves = true; }});
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  EXPECT_TRUE(router.inbox.Next<WorkerDown>(absl::Seconds(20)).has_value());
  EXPECT_TRUE(router.inbox.Next<WorkerUp>().has_value());
}

// A session without a connection, and what it says of its calls.
struct LoneSession {
  std::vector<SessionClient::Ended> ends;
  const std::shared_ptr<SessionClient> session = std::make_shared<SessionClient>(
      kLimits,
      SessionClient::Hooks{.on_told =
                               [this](std::vector<SessionClient::Told> told) {
                                 for (auto& one : told) {
                                   ends.push_back(std::get<SessionClient::Ended>(std::move(one)));
                                 }
                               }},
      SessionClient::Memory{.unsent = std::make_shared<SessionMemory>(kMostUnsentBytes),
                            .untaken = std::make_shared<SessionMemory>(kMostUntakenBytes)});
};

TEST(SessionClientTest, ACallOfASessionThatIsOverSpeaksAgainstTheConnection) {
  LoneSession lone;
  lone.session->End();
  EXPECT_TRUE(lone.session->IsOver());
  const auto call = lone.session->MakeCall(7);
  lone.session->Open(call.get(), SampleDecode());
  ASSERT_EQ(lone.ends.size(), 1u);
  EXPECT_EQ(lone.ends[0].id, 7);
  EXPECT_TRUE(absl::IsUnavailable(lone.ends[0].end.status));
  EXPECT_TRUE(lone.ends[0].end.is_broken);
}

TEST(SessionClientTest, ACallThatIsCancelledBeforeItIsOpenIsNotOpened) {
  LoneSession lone;
  const auto call = lone.session->MakeCall(7);
  call->Cancel();
  lone.session->End();  // So that nothing would be written.
  lone.session->Open(call.get(), SamplePrefill());
  call->Cancel();
  ASSERT_EQ(lone.ends.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(lone.ends[0].end.status)) << lone.ends[0].end.status;
}

TEST(SessionClientTest, AWorkersOwnEndOfACallSaysNothingAgainstTheConnection) {
  TwoCalls calls([](WorkersEnd& end) { end.Say(EndOf(1, 14)); });
  const auto closed = calls.router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_TRUE(absl::IsUnavailable(closed->status));
  EXPECT_FALSE(calls.router.inbox.Next<WorkerDown>(absl::Seconds(1)).has_value());
}

TEST(SessionClientTest, AWorkerThatGivesNoSignOfLifeLosesTheSession) {
  TwoCalls calls([](WorkersEnd&) {});
  const absl::Time begin = absl::Now();
  calls.ExpectLost();
  EXPECT_GT(absl::Now() - begin, absl::Seconds(3));
}

TEST(SessionClientTest, TheRouterGivesSignsOfLife) {
  std::atomic<int> num_signs = 0;
  TwoCalls calls([&](WorkersEnd& end) {
    while (num_signs < 2 && end.Read().has_value()) ++num_signs;
    end.Say(EndOf(1, 0));
  });
  EXPECT_TRUE(calls.router.inbox.Next<CallClosed>().has_value());
  EXPECT_EQ(num_signs, 2);
}

// They speak for its node.
TEST(SessionClientTest, ARouterWhoseNodeStandsGivesNoSignsOfLife) {
  std::atomic<int> num_signs = 0;
  TwoCalls calls([&](WorkersEnd& end) {
    while (end.Read().has_value()) ++num_signs;
  });
  calls.router.turn_s = 6;
  absl::SleepFor(absl::Seconds(1));  // One may be under way.
  num_signs = 0;
  absl::SleepFor(absl::Milliseconds(1500));
  EXPECT_EQ(num_signs, 0);
  calls.router.turn_s = 0;
  const absl::Time limit = absl::Now() + absl::Seconds(10);
  while (num_signs == 0 && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_GT(num_signs, 0);
}

// Longer than a session may be silent.
TEST(SessionClientTest, ASessionWithoutCallsStaysOpen) {
  TestWorker worker(Role::kDecode);
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  EXPECT_FALSE(router.inbox.Next<WorkerDown>(absl::Seconds(8)).has_value());
}

// ---- A worker that does not read ---------------------------------------------------------------

DecodeRequest LongDecode(int32_t num_tokens) {
  DecodeRequest request = SampleDecode();
  request.tokens.assign(num_tokens, 300);  // Two bytes each.
  return request;
}

TEST(SessionClientTest, ToAWorkerThatDoesNotReadNothingIsOpenedUntilSomethingIsCancelled) {
  HandmadeWorker worker({}, {.session = [](WorkersEnd& end) { GiveSignsOfLife(end); }});
  TestRouter router({{Role::kDecode, worker.address()}}, /*max_unsent_bytes=*/16 << 20);
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  CallId last = 0;
  while (router.inbox.Count<CallClosed>() == 0 && last < 200) {
    router.links.OpenDecode(++last, 0, LongDecode(100'000));
  }
  const auto refused = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->call, last);
  EXPECT_TRUE(absl::IsResourceExhausted(refused->status)) << refused->status;
  // Those that were not sent yet are taken back.
  for (CallId call = 1; call < last; ++call) router.links.Cancel(call);
  for (CallId call = 1; call < last; ++call) {
    ASSERT_TRUE(router.inbox.Next<CallClosed>().has_value());
  }
  for (int i = 1; i <= 5; ++i) router.links.OpenDecode(last + i, 0, LongDecode(100'000));
  EXPECT_FALSE(router.inbox.Next<CallClosed>(absl::Milliseconds(200)).has_value());
}

TEST(SessionClientTest, ASessionThatHoldsTooMuchForItsWorkerEnds) {
  HandmadeWorker worker({}, {.session = [](WorkersEnd& end) { GiveSignsOfLife(end); }});
  TestRouter router({{Role::kDecode, worker.address()}}, /*max_unsent_bytes=*/2 << 20);
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  CallId last = 0;
  while (router.inbox.Count<CallClosed>() == 0 && last < 500) {
    router.links.OpenDecode(++last, 0, LongDecode(100'000));
  }
  ASSERT_TRUE(router.inbox.Next<CallClosed>().has_value());
  // Which cannot be refused; the library takes some megabytes.
  const RebindRequest rebind = WireSamples(1).Rebind();
  const absl::Time limit = absl::Now() + absl::Seconds(20);
  while (router.inbox.Count<CallClosed>() == 0 && absl::Now() < limit) {
    for (int i = 0; i < 1000; ++i) router.links.Rebind(last - 1, rebind);
  }
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_TRUE(absl::IsUnavailable(closed->status)) << closed->status;
  EXPECT_TRUE(router.inbox.Next<WorkerDown>().has_value());
}

// ---- A worker that says much -------------------------------------------------------------------

// Of which a worker may say much.
DecodeRequest LongAnswer() {
  DecodeRequest request = SampleDecode();
  request.sampling.max_tokens = 100'000;
  return request;
}

TEST(SessionClientTest, AWorkerThatSaysMoreThanTheNodeTakesLosesItsSessionAlone) {
  constexpr int64_t kMost = 4 << 20;
  HandmadeWorker flood({}, {.session = [](WorkersEnd& end) {
                         if (!end.ReadCalls().has_value()) return;
                         while (end.Say(Tokens(1, 10))) {
                         }
                       }});
  HandmadeWorker other({}, {.session = [](WorkersEnd& end) { GiveSignsOfLife(end); }});
  TestRouter router({{Role::kDecode, flood.address()}, {Role::kDecode, other.address()}},
                    kMostUnsentBytes, kMost);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenDecode(2, 1, LongAnswer());
  router.links.OpenDecode(1, 0, LongAnswer());
  const auto down = router.inbox.Next<WorkerDown>();  // Nobody takes the events.
  ASSERT_TRUE(down.has_value());
  EXPECT_EQ(down->worker, 0);
  EXPECT_THAT(down->reason, HasSubstr("it says more than this router takes in"));
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->call, 1);
  EXPECT_TRUE(absl::IsUnavailable(closed->status)) << closed->status;
  const auto event_bytes = static_cast<int64_t>(sizeof(RouterMail));
  EXPECT_GT(router.inbox.Count<WorkerEventReceived>(), 100);
  EXPECT_LE(router.inbox.Count<WorkerEventReceived>() * event_bytes, kMost / 4 + event_bytes);
  EXPECT_EQ(router.inbox.Count<WorkerDown>() + router.inbox.Count<CallClosed>(), 0);
}

TEST(SessionClientTest, WhatTheNodeHasTakenMakesRoom) {
  constexpr int kAtOnce = 400;  // A fifth of what it may have.
  std::atomic<int> taken = 0;
  HandmadeWorker worker({}, {.session = [&](WorkersEnd& end) {
                          if (!end.ReadCalls().has_value()) return;
                          const absl::Time limit = absl::Now() + absl::Seconds(20);
                          for (int said = 0; said < 20 * kAtOnce && absl::Now() < limit;) {
                            if (said >= taken + kAtOnce) {
                              absl::SleepFor(absl::Milliseconds(1));
                            } else if (end.Say(Tokens(1, 10))) {
                              ++said;
                            }
                          }
                        }});
  TestRouter router({{Role::kDecode, worker.address()}}, kMostUnsentBytes,
                    4 * 5 * kAtOnce * int64_t{sizeof(RouterMail) + 100});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenDecode(1, 0, LongAnswer());
  for (; taken < 20 * kAtOnce; ++taken) {
    ASSERT_TRUE(router.inbox.Next<WorkerEventReceived>().has_value()) << taken;
  }
  EXPECT_EQ(router.inbox.Count<WorkerDown>(), 0);
}

// Nothing is held of a sign of life, and nobody waits behind them. Of calls a worker may say no
// more than was asked.
TEST(SessionClientTest, AWorkerThatSaysItLivesAsFastAsItCanIsInNobodysWay) {
  constexpr int kSigns = 50'000;
  constexpr int kEvents = 500;
  std::atomic<int> said = 0;
  HandmadeWorker flood({}, {.session = [&](WorkersEnd& end) {
                         if (!end.ReadCalls().has_value()) return;
                         while (said < kSigns && end.Write(end.First({}))) ++said;
                         GiveSignsOfLife(end);
                       }});
  HandmadeWorker other({}, {.session = [](WorkersEnd& end) {
                         if (!end.ReadCalls().has_value()) return;
                         for (int i = 0; i < kEvents; ++i) end.Say(Tokens(1, 10));
                         GiveSignsOfLife(end);
                       }});
  // The frames of all the signs are more than may be held of a worker.
  TestRouter router({{Role::kDecode, flood.address()}, {Role::kDecode, other.address()}},
                    kMostUnsentBytes, 4 * int64_t{kEvents} * (sizeof(RouterMail) + 100));
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenDecode(1, 0, LongAnswer());
  router.links.OpenDecode(2, 1, LongAnswer());
  for (int i = 0; i < kEvents; ++i) {
    const auto event = router.inbox.Next<WorkerEventReceived>();
    ASSERT_TRUE(event.has_value()) << i;
    EXPECT_EQ(event->call, 2);
  }
  const absl::Time limit = absl::Now() + absl::Seconds(60);
  while (said < kSigns && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(said, kSigns);
  EXPECT_EQ(router.inbox.Count<WorkerDown>() + router.inbox.Count<CallClosed>(), 0);
  router.links.Cancel(1);
  EXPECT_EQ(router.inbox.Next<CallClosed>()->call, 1);
}

// A worker would take another number for a loss.
TEST(SessionClientTest, WhatIsTakenBackKeepsItsNumber) {
  TestWorker worker(Role::kDecode);
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  for (CallId call = 1; call <= 60; ++call) {
    router.links.OpenDecode(call, 0, LongDecode(100'000));
    if (call % 3 != 0) router.links.Cancel(call);
  }
  router.links.OpenDecode(61, 0, SampleDecode());
  EXPECT_TRUE(worker.inbox.Next<DecodeOpened>().has_value());
  EXPECT_EQ(router.inbox.Count<WorkerDown>(), 0);
}

TEST(SessionClientTest, ACallThatIsTooLargeForAMessageIsRefusedAlone) {
  TestWorker worker(Role::kDecode);
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenDecode(1, 0, SampleDecode());
  DecodeRequest large = SampleDecode();
  large.tokens.assign(9 << 20, 300);  // Two bytes each.
  router.links.OpenDecode(2, 0, large);
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->call, 2);
  EXPECT_TRUE(absl::IsInvalidArgument(closed->status)) << closed->status;
  EXPECT_FALSE(router.inbox.Next<WorkerDown>(absl::Seconds(1)).has_value());
  EXPECT_EQ(router.inbox.Count<CallClosed>(), 0);
}

}  // namespace
}  // namespace baton
