// The worker's end of a session, before routers that say what none should.
#include "common/rpc/session_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/common/rpc/handmade_session.h"
#include "tests/unit/common/rpc/test_cluster.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

// About 8 kB for each token.
TokensEvent LargeEvent(int32_t num_tokens) {
  TokensEvent event;
  const std::vector<TokenLogprob> top(kMaxLogprobs, {.token = 999, .logprob = -1});
  for (int32_t p = 1; p <= num_tokens; ++p) {
    event.outputs.push_back({.position = p, .token = 1, .top = top});
  }
  return event;
}

class SessionServerTest : public ::testing::Test {
 protected:
  // Opens calls 1 to n.
  void Open(HandmadeRouter& router, uint64_t n) {
    for (uint64_t call = 1; call <= n; ++call) {
      EXPECT_TRUE(router.end().Say(HandmadeRouter::Decode(call)));
      const auto opened = worker_.inbox.Next<DecodeOpened>();
      ASSERT_TRUE(opened.has_value());
      opened_.push_back(opened->call);
    }
  }

  // What `say` does ends the session, by this, and breaks its calls, each once.
  void ExpectEnded(HandmadeRouter& router, grpc::StatusCode code) {
    EXPECT_EQ(router.Finish().error_code(), code);
    for (size_t i = 0; i < opened_.size(); ++i) {
      const auto broken = worker_.inbox.Next<CallBroken>();
      EXPECT_TRUE(broken.has_value() && broken->session_ended);
    }
    EXPECT_FALSE(worker_.inbox.Next<CallBroken>(absl::Milliseconds(100)).has_value());
  }

  TestWorker worker_{Role::kDecode};
  std::vector<CallId> opened_;
};

TEST_F(SessionServerTest, ASessionWithAnotherProcessIsRefused) {
  HandmadeRouter router(worker_.address(), /*meant=*/6);
  EXPECT_EQ(router.Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(SessionServerTest, WhatIsDamagedEndsTheSession) {
  HandmadeRouter router(worker_.address());
  Open(router, 2);
  v1::SessionFrame damaged = router.end().Frame(HandmadeRouter::Decode(3));
  damaged.mutable_message()->back() ^= 1;
  router.end().Write(damaged);
  ExpectEnded(router, grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(worker_.inbox.Count<DecodeOpened>(), 0);
}

TEST_F(SessionServerTest, AMessageThatIsMissingEndsTheSession) {
  HandmadeRouter router(worker_.address());
  Open(router, 1);
  router.end().Frame(HandmadeRouter::Rebind(1));
  router.end().Say(HandmadeRouter::Rebind(1));
  ExpectEnded(router, grpc::StatusCode::DATA_LOSS);
}

TEST_F(SessionServerTest, ACallOutOfItsOrderEndsTheSession) {
  for (const uint64_t call : {0, 1, 3}) {
    HandmadeRouter router(worker_.address());
    opened_.clear();
    Open(router, 1);
    router.end().Say(HandmadeRouter::Decode(call));
    ExpectEnded(router, grpc::StatusCode::DATA_LOSS);
  }
}

TEST_F(SessionServerTest, WhatIsAskedOfACallThatNobodyOpenedEndsTheSession) {
  for (const uint64_t call : {0, 2}) {
    for (const bool cancels : {false, true}) {
      HandmadeRouter router(worker_.address());
      opened_.clear();
      Open(router, 1);
      router.end().Say(cancels ? HandmadeRouter::Cancel(call) : HandmadeRouter::Rebind(call));
      ExpectEnded(router, grpc::StatusCode::DATA_LOSS);
    }
  }
}

TEST_F(SessionServerTest, ASecondOpeningEndsTheSession) {
  HandmadeRouter router(worker_.address());
  v1::ToWorker again;
  again.mutable_open()->set_expected_incarnation(7);
  router.end().Write(router.end().First(again));
  EXPECT_EQ(router.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(SessionServerTest, WhatIsAskedOfACallThatHasEndedIsANoOp) {
  HandmadeRouter router(worker_.address());
  Open(router, 2);
  worker_.server.Close(opened_[0], absl::OkStatus());
  router.end().Say(HandmadeRouter::Rebind(1));
  router.end().Say(HandmadeRouter::Cancel(1));
  router.end().Say(HandmadeRouter::Cancel(2));
  const auto broken = worker_.inbox.Next<CallBroken>();
  ASSERT_TRUE(broken.has_value());
  EXPECT_EQ(broken->call, opened_[1]);
  EXPECT_FALSE(broken->session_ended) << "it was cancelled alone";
  EXPECT_EQ(worker_.inbox.Count<RebindAsked>(), 0);
  const auto told = router.end().ReadCalls();
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->calls(0).call(), 1u);
  EXPECT_TRUE(told->calls(0).has_end());
}

TEST_F(SessionServerTest, ABadRequestEndsItsCallAloneAndNamesTheField) {
  HandmadeRouter router(worker_.address());
  v1::CallAsked bad = HandmadeRouter::Decode(1);
  bad.mutable_decode()->set_tokens(0, kLimits.vocab_size);
  router.end().Say(bad);
  const auto told = router.end().ReadCalls();
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->calls(0).end().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(told->calls(0).end().message(), HasSubstr("tokens[0]"));
  v1::CallAsked other = HandmadeRouter::Decode(2);
  other.mutable_decode()->set_expected_incarnation(6);
  router.end().Say(other);
  const auto refused = router.end().ReadCalls();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->calls(0).end().code(),
            static_cast<int>(absl::StatusCode::kFailedPrecondition));
  v1::CallAsked prefill;
  prefill.set_call(3);
  ToProto(SamplePrefill(), prefill.mutable_prefill());
  router.end().Say(prefill);  // A decode worker.
  const auto unknown = router.end().ReadCalls();
  ASSERT_TRUE(unknown.has_value());
  EXPECT_EQ(unknown->calls(0).end().code(), static_cast<int>(absl::StatusCode::kUnimplemented));
  EXPECT_EQ(worker_.inbox.Count<DecodeOpened>(), 0);
  EXPECT_EQ(worker_.inbox.Count<CallBroken>(), 0);
}

// ---- A session that names those that have ended ------------------------------------------------

// A router that has left a session of key 5, of which the worker does not know.
class SessionServerReplacedTest : public SessionServerTest {
 protected:
  static std::unique_ptr<HandmadeRouter> Next(const std::string& address, uint32_t key,
                                              std::vector<uint32_t> ended) {
    return std::make_unique<HandmadeRouter>(address, /*meant=*/7, ClusterChannelArguments(), key,
                                            ended);
  }
};

TEST_F(SessionServerReplacedTest, ItsCallsAreBrokenBeforeAnyIsTakenOfTheNext) {
  HandmadeRouter old(worker_.address());
  Open(old, 300);
  const auto next = Next(worker_.address(), 6, {5});
  next->end().Say(HandmadeRouter::Decode(1));
  ASSERT_TRUE(worker_.inbox.Await<DecodeOpened>());
  EXPECT_EQ((worker_.inbox.CountBefore<CallBroken, DecodeOpened>()), 300);
  for (const CallId call : opened_) {
    const auto broken = worker_.inbox.Next<CallBroken>();
    ASSERT_TRUE(broken.has_value());
    EXPECT_NE(std::ranges::find(opened_, broken->call), opened_.end()) << call;
  }
  // It has ended, and breaks nothing a second time, nor anything of the next.
  old.Finish();
  EXPECT_FALSE(worker_.inbox.Next<CallBroken>(absl::Milliseconds(200)).has_value());
}

TEST_F(SessionServerReplacedTest, NothingMoreIsTakenOfIt) {
  HandmadeRouter old(worker_.address());
  Open(old, 1);
  const auto next = Next(worker_.address(), 6, {5});
  ASSERT_TRUE(worker_.inbox.Next<CallBroken>().has_value());
  old.end().Say(HandmadeRouter::Decode(2));
  old.Finish();
  EXPECT_EQ(worker_.inbox.Count<DecodeOpened>(), 0);
}

// Its first message was on its way for longer than that of the next.
TEST_F(SessionServerReplacedTest, OneThatBeginsAfterwardsIsNotTaken) {
  const auto next = Next(worker_.address(), 6, {5});
  next->end().Say(HandmadeRouter::Decode(1));
  ASSERT_TRUE(worker_.inbox.Next<DecodeOpened>().has_value());
  HandmadeRouter late(worker_.address());
  late.end().Say(HandmadeRouter::Decode(1));
  EXPECT_EQ(late.Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(worker_.inbox.Count<DecodeOpened>(), 0);
  EXPECT_EQ(worker_.inbox.Count<CallBroken>(), 0);
}

TEST_F(SessionServerReplacedTest, OthersGoOn) {
  HandmadeRouter other(worker_.address());
  Open(other, 1);
  const auto next = Next(worker_.address(), 6, {4, 7});
  next->end().Say(HandmadeRouter::Decode(1));
  ASSERT_TRUE(worker_.inbox.Await<DecodeOpened>());
  EXPECT_EQ(worker_.inbox.Count<CallBroken>(), 0);
  worker_.server.Close(opened_[0], absl::OkStatus());
  EXPECT_TRUE(other.end().ReadCalls().has_value());
}

TEST_F(SessionServerReplacedTest, TooManyKeysEndTheSessionThatNamesThem) {
  HandmadeRouter old(worker_.address());
  Open(old, 1);
  const auto next = Next(worker_.address(), 6, std::vector<uint32_t>(65, 5));
  EXPECT_EQ(next->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(worker_.inbox.Count<CallBroken>(), 0);
}

TEST_F(SessionServerTest, ARouterThatGivesNoSignOfLifeLosesItsSession) {
  HandmadeRouter router(worker_.address());
  Open(router, 1);
  const absl::Time begin = absl::Now();
  ExpectEnded(router, grpc::StatusCode::CANCELLED);
  EXPECT_GT(absl::Now() - begin, absl::Seconds(3));
}

// It lives, and takes nothing of what it is told.
TEST_F(SessionServerTest, ARouterThatDoesNotReadLosesItsSessionBeforeTheMemory) {
  HandmadeRouter router(worker_.address());
  Open(router, 1);
  std::jthread alive([&] {
    while (router.end().Write(router.end().First({}))) absl::SleepFor(absl::Milliseconds(200));
  });
  const TokensEvent large = LargeEvent(400);
  int num_emitted = 0;
  while (worker_.inbox.Count<CallBroken>() == 0 && num_emitted < 40) {
    worker_.server.Emit(opened_[0], large);
    ++num_emitted;
  }
  EXPECT_LT(num_emitted, 40);
  EXPECT_TRUE(worker_.inbox.Next<CallBroken>().has_value());
}

// ---- Bounds of all sessions together -----------------------------------------------------------

TEST(SessionServerMemoryTest, RoutersThatDoNotReadEndAndOneThatDoesGoesOn) {
  TestWorker worker(Role::kDecode, 7, 0, false, true, /*max_unsent_bytes=*/16 << 20);
  std::vector<std::unique_ptr<HandmadeRouter>> routers;
  std::vector<CallId> calls;
  for (uint32_t i = 0; i < 5; ++i) {
    routers.push_back(std::make_unique<HandmadeRouter>(worker.address(), /*meant=*/7,
                                                       ClusterChannelArguments(), /*key=*/10 + i));
    ASSERT_TRUE(routers[i]->end().Say(HandmadeRouter::Decode(1)));
    const auto opened = worker.inbox.Next<DecodeOpened>();
    ASSERT_TRUE(opened.has_value());
    calls.push_back(opened->call);
  }
  const TokensEvent large = LargeEvent(100);
  for (int i = 0; i < 80 && worker.inbox.Count<CallBroken>() < 4; ++i) {
    for (int r = 0; r < 4; ++r) worker.server.Emit(calls[r], large);
    worker.server.Emit(calls[4], TokensEvent{.outputs = {{.position = 1 + i, .token = 3}}});
    EXPECT_TRUE(routers[4]->end().ReadCalls().has_value());
  }
  for (int r = 0; r < 4; ++r) {
    const auto broken = worker.inbox.Next<CallBroken>();
    ASSERT_TRUE(broken.has_value());
    EXPECT_NE(broken->call, calls[4]);
  }
  worker.server.Close(calls[4], absl::OkStatus());
  EXPECT_TRUE(routers[4]->end().ReadCalls().has_value());
  EXPECT_EQ(worker.inbox.Count<CallBroken>(), 0);
}

// Not the session with all its other calls.
TEST(SessionServerMemoryTest, ACallOfWhichTooManyScoresWaitEndsAlone) {
  TestWorker worker(Role::kPrefill);
  HandmadeRouter router(worker.address());
  for (uint64_t call = 1; call <= 2; ++call) {
    v1::CallAsked asked;
    asked.set_call(call);
    ToProto(SamplePrefill(), asked.mutable_prefill());
    ASSERT_TRUE(router.end().Say(std::move(asked)));
  }
  std::vector<CallId> calls;
  for (int i = 0; i < 2; ++i) {
    const auto opened = worker.inbox.Next<PrefillOpened>();
    ASSERT_TRUE(opened.has_value());
    calls.push_back(opened->call);
  }
  ScoresEvent piece;
  for (int32_t i = 0; i < kPieceScores; ++i) {
    piece.logprobs.push_back({.position = 1 + i, .token = 3, .logprob = -1.0f, .rank = 1});
  }
  int num_pieces = 0;  // The library takes some megabytes before anything waits.
  for (; worker.inbox.Count<CallBroken>() == 0 && num_pieces < 1000; ++num_pieces) {
    worker.server.Emit(calls[0], piece);
  }
  EXPECT_GT(num_pieces, 200) << "16 MiB";
  const auto broken = worker.inbox.Next<CallBroken>();
  ASSERT_TRUE(broken.has_value());
  EXPECT_EQ(broken->call, calls[0]);
  EXPECT_FALSE(broken->session_ended);
  worker.server.Close(calls[1], absl::OkStatus());
  for (int num_ends = 0; num_ends < 2;) {
    const auto told = router.end().ReadCalls();
    ASSERT_TRUE(told.has_value());
    for (const v1::CallTold& one : told->calls()) num_ends += one.has_end() ? 1 : 0;
  }
}

class SessionServerOpensTest : public ::testing::Test {
 protected:
  // Until there is no room for another; the last of them is refused.
  void Fill() {
    for (last_ = 1; last_ <= 200; ++last_) router_.end().Say(HandmadeRouter::Decode(last_));
    last_ = 200;
    for (bool is_last = false; !is_last;) {
      const auto told = router_.end().ReadCalls();
      ASSERT_TRUE(told.has_value());
      for (const v1::CallTold& one : told->calls()) {
        EXPECT_EQ(one.end().code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
        is_last = one.call() == last_;
      }
    }
    const int num_opened = worker_.inbox.Count<DecodeOpened>();
    EXPECT_GE(num_opened, 3);
    EXPECT_LT(num_opened, 200);
    for (int i = 0; i < num_opened; ++i) {
      opened_.push_back(worker_.inbox.Next<DecodeOpened>()->call);
    }
  }
  bool IsTaken(HandmadeRouter& router, uint64_t call) {
    router.end().Say(HandmadeRouter::Decode(call));
    return worker_.inbox.Next<DecodeOpened>(absl::Seconds(1)).has_value();
  }

  TestWorker worker_{Role::kDecode,
                     7,
                     0,
                     false,
                     true,
                     kMostUnsentBytes,
                     /*max_open_bytes=*/64 << 10};
  HandmadeRouter router_{worker_.address()};
  uint64_t last_ = 0;
  std::vector<CallId> opened_;
};

TEST_F(SessionServerOpensTest, WhatWaitsToBeComputedIsBoundedAndGivenBack) {
  Fill();
  HandmadeRouter other(worker_.address(), /*meant=*/7, ClusterChannelArguments(), /*key=*/6);
  EXPECT_TRUE(IsTaken(other, 1)) << "of another session";
  worker_.server.Emit(opened_[0], TokensEvent{.outputs = {{.position = 10, .token = 3}}});
  EXPECT_TRUE(IsTaken(router_, last_ + 1)) << "one is being computed";
  EXPECT_FALSE(IsTaken(router_, last_ + 2));
  worker_.server.Emit(opened_[0], TokensEvent{.outputs = {{.position = 11, .token = 3}}});
  EXPECT_FALSE(IsTaken(router_, last_ + 3)) << "which is given back once";
  worker_.server.Close(opened_[1], absl::OkStatus());
  EXPECT_TRUE(IsTaken(router_, last_ + 4)) << "one has ended";
  router_.end().Say(HandmadeRouter::Cancel(opened_[2] & 0xffffffff));
  EXPECT_TRUE(IsTaken(router_, last_ + 5)) << "one was cancelled";
}

TEST_F(SessionServerOpensTest, ASessionThatIsOverGivesAllBack) {
  Fill();
  std::vector<std::unique_ptr<HandmadeRouter>> others;
  for (uint32_t i = 0; i < 3; ++i) {
    others.push_back(std::make_unique<HandmadeRouter>(worker_.address(), /*meant=*/7,
                                                      ClusterChannelArguments(), /*key=*/10 + i));
    for (uint64_t call = 1; call <= opened_.size(); ++call) {
      ASSERT_TRUE(IsTaken(*others[i], call)) << i << " " << call;
    }
  }
  HandmadeRouter last(worker_.address(), /*meant=*/7, ClusterChannelArguments(), /*key=*/20);
  uint64_t call = 1;
  while (IsTaken(last, call)) ASSERT_LT(++call, 10u) << "all is taken";
  others[0]->context().TryCancel();
  ASSERT_TRUE(worker_.inbox.Next<CallBroken>().has_value());
  EXPECT_TRUE(IsTaken(last, call + 1));
}

TEST_F(SessionServerTest, AnEventThatIsTooLargeForAMessageEndsItsCallAlone) {
  HandmadeRouter router(worker_.address());
  Open(router, 2);
  worker_.server.Emit(opened_[0], LargeEvent(4000));
  const auto told = router.end().ReadCalls();
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->calls(0).call(), 1u);
  EXPECT_EQ(told->calls(0).end().code(), static_cast<int>(absl::StatusCode::kInternal));
  EXPECT_TRUE(worker_.inbox.Next<CallBroken>().has_value());
  EXPECT_EQ(worker_.inbox.Count<CallBroken>(), 0);
}

TEST_F(SessionServerTest, ASessionThatBeginsWithoutItsOpeningIsEnded) {
  const auto stub = v1::Session::NewStub(grpc::CreateCustomChannel(
      worker_.address(), grpc::InsecureChannelCredentials(), ClusterChannelArguments()));
  grpc::ClientContext context;
  const auto stream = stub->Open(&context);
  RoutersEnd end(stream.get());
  end.Say(HandmadeRouter::Decode(1));
  v1::SessionFrame frame;
  EXPECT_FALSE(stream->Read(&frame));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(worker_.inbox.Count<DecodeOpened>(), 0);
}

TEST_F(SessionServerTest, AShutdownAwaitsTheCallsOfASessionAndNotTheSession) {
  HandmadeRouter router(worker_.address());
  HandmadeRouter idle(worker_.address());
  Open(router, 1);
  const absl::Time begin = absl::Now();
  std::jthread shutdown([&] { worker_.server.Shutdown(std::chrono::seconds(60)); });
  EXPECT_EQ(idle.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  absl::SleepFor(absl::Milliseconds(200));  // Until the other one is told too.
  router.end().Say(HandmadeRouter::Decode(2));
  const auto refused = router.end().ReadCalls();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->calls(0).call(), 2u);
  EXPECT_EQ(refused->calls(0).end().code(), static_cast<int>(absl::StatusCode::kUnavailable));
  worker_.server.Close(opened_[0], absl::OkStatus());
  const auto told = router.end().ReadCalls();
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->calls(0).call(), 1u);
  EXPECT_EQ(told->calls(0).end().code(), 0);
  EXPECT_EQ(router.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  shutdown.join();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
  EXPECT_EQ(worker_.inbox.Count<CallBroken>(), 0);
}

TEST_F(SessionServerTest, WhatATurnSaysIsOneMessageAndWaitsForItsEnd) {
  HandmadeRouter router(worker_.address());
  Open(router, 3);
  v1::CallAsked bad = HandmadeRouter::Decode(4);
  bad.mutable_decode()->set_tokens(0, kLimits.vocab_size);
  router.end().Say(bad);
  ASSERT_TRUE(router.end().ReadCalls().has_value());  // What was read is done with, and flushed.
  WorkerServer& server = worker_.server;
  for (int turn = 0; turn < 3; ++turn) {
    for (const CallId call : opened_) {
      const TokensEvent event{.outputs = {{.position = 10 + turn, .token = 3}}};
      server.WorkerServer::Emit(call, event);
    }
    if (turn == 2) server.WorkerServer::Close(opened_[1], absl::OkStatus());
    if (turn == 0) {
      const auto alive = router.end().Read();
      ASSERT_TRUE(alive.has_value());
      EXPECT_EQ(alive->calls_size(), 0);
    }
    server.Flush();
    const auto told = router.end().ReadCalls();
    ASSERT_TRUE(told.has_value());
    ASSERT_EQ(told->calls_size(), turn == 2 ? 4 : 3);
    EXPECT_EQ(told->calls(2).decode().tokens().outputs(0).position(), 10 + turn);
  }
}

TEST_F(SessionServerTest, CallsOfTwoSessionsAreApart) {
  HandmadeRouter first(worker_.address());
  HandmadeRouter second(worker_.address());
  Open(first, 1);
  Open(second, 1);
  ASSERT_EQ(opened_.size(), 2u);
  EXPECT_NE(opened_[0], opened_[1]);
  worker_.server.Emit(opened_[1], TokensEvent{.outputs = {{.position = 10, .token = 3}}});
  const auto told = second.end().ReadCalls();
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->calls(0).call(), 1u);
  first.context().TryCancel();
  const auto broken = worker_.inbox.Next<CallBroken>();
  ASSERT_TRUE(broken.has_value());
  EXPECT_EQ(broken->call, opened_[0]);
}

}  // namespace
}  // namespace baton
