// How much a worker and the connections to it take at a time.
#include <grpcpp/grpcpp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "baton/v1/cluster.grpc.pb.h"
#include "baton/v1/decode.grpc.pb.h"
#include "common/rpc/connection.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"
#include "tests/unit/common/rpc/eager_server.h"
#include "tests/unit/common/rpc/handmade_session.h"
#include "tests/unit/common/rpc/test_cluster.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address,
                                         grpc::ChannelArguments args = ClusterChannelArguments()) {
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
}

struct Limits {
  int max_open_calls = 100;
  int max_watchers = 100;
  int max_streams = 100;
  bool inbox_is_full = false;
};

// A worker with limits of the test's own; each status that is asked of it is another.
struct LimitedWorker {
  explicit LimitedWorker(const Limits& limits = {})
      : inbox(limits.inbox_is_full), server(OptionsOf(limits), &inbox) {
    EXPECT_TRUE(server.Start().ok());
  }
  WorkerServerOptions OptionsOf(const Limits& limits) {
    WorkerServerOptions options;
    options.hello = HelloOf(Role::kDecode, 7);
    options.max_open_calls = limits.max_open_calls;
    options.max_watchers = limits.max_watchers;
    options.max_streams_per_connection = limits.max_streams;
    options.status = [this] {
      WorkerStatus status{.incarnation = 7};
      status.running = ++num_statuses;
      return status;
    };
    return options;
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", server.port()); }

  std::atomic<int> num_statuses = 0;
  FakeInbox<DecodeMail> inbox;
  EagerServer server;
};

struct OneCall {
  OneCall(v1::Decode::Stub* stub, v1::DecodeRequest request) {
    request.set_expected_incarnation(7);
    Seal(&request);
    context.set_deadline(DeadlineAfter(std::chrono::seconds(60)));
    reader = stub->Decode(&context, request);
  }
  explicit OneCall(v1::Decode::Stub* stub) : OneCall(stub, Sample()) {}

  static v1::DecodeRequest Sample() {
    v1::DecodeRequest request;
    ToProto(SampleDecode(), &request);
    return request;
  }
  grpc::Status End() {
    v1::DecodeEvent event;
    while (reader->Read(&event)) {
    }
    return reader->Finish();
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::DecodeEvent>> reader;
};

TEST(WorkerLimitsTest, TheServersCallsAreCountedUntilEachHasEnded) {
  LimitedWorker worker({.max_open_calls = 2});
  const auto stub = v1::Decode::NewStub(ChannelTo(worker.address()));
  for (int round = 0; round < 3; ++round) {
    OneCall first(stub.get());
    const auto opened = worker.inbox.Next<DecodeOpened>();
    OneCall second(stub.get());
    ASSERT_TRUE(opened.has_value() && worker.inbox.Next<DecodeOpened>().has_value()) << round;
    const grpc::Status refused = OneCall(stub.get()).End();
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(refused.error_message(), HasSubstr("too many open calls"));
    worker.server.Close(opened->call, absl::OkStatus());  // One ends well,
    EXPECT_TRUE(first.End().ok());
    second.context.TryCancel();  // one breaks.
    ASSERT_TRUE(worker.inbox.Next<CallBroken>().has_value()) << round;
  }
}

TEST(WorkerLimitsTest, CallsOfSessionsAndSuchAsGoForThemselvesAreCountedTogether) {
  LimitedWorker worker({.max_open_calls = 2});
  const auto stub = v1::Decode::NewStub(ChannelTo(worker.address()));
  OneCall alone(stub.get());
  ASSERT_TRUE(worker.inbox.Next<DecodeOpened>().has_value());
  HandmadeRouter router(worker.address());
  router.end().Say(HandmadeRouter::Decode(1));
  ASSERT_TRUE(worker.inbox.Next<DecodeOpened>().has_value());
  router.end().Say(HandmadeRouter::Decode(2));
  const auto told = router.end().ReadCalls();
  ASSERT_TRUE(told.has_value());
  EXPECT_THAT(told->calls(0).end().message(), HasSubstr("too many open calls"));
  EXPECT_THAT(OneCall(stub.get()).End().error_message(), HasSubstr("too many open calls"));
  router.end().Say(HandmadeRouter::Cancel(1));
  ASSERT_TRUE(worker.inbox.Next<CallBroken>().has_value());
  OneCall next(stub.get());
  EXPECT_TRUE(worker.inbox.Next<DecodeOpened>().has_value());
}

TEST(WorkerLimitsTest, ACallThatIsRefusedIsNotCounted) {
  LimitedWorker worker({.max_open_calls = 2, .inbox_is_full = true});
  const auto stub = v1::Decode::NewStub(ChannelTo(worker.address()));
  for (int i = 0; i < 4; ++i) {
    EXPECT_THAT(OneCall(stub.get()).End().error_message(), HasSubstr("inbox is full")) << i;
  }
}

TEST(WorkerLimitsTest, ACallBeyondTheStreamsOfItsConnectionWaitsForOneToEnd) {
  LimitedWorker worker({.max_streams = 2});
  const auto stub = v1::Decode::NewStub(ChannelTo(worker.address()));
  OneCall first(stub.get());
  const auto opened = worker.inbox.Next<DecodeOpened>();
  OneCall second(stub.get());
  ASSERT_TRUE(opened.has_value() && worker.inbox.Next<DecodeOpened>().has_value());
  std::jthread third([&] { EXPECT_TRUE(OneCall(stub.get()).End().ok()); });  // Waits within.
  EXPECT_FALSE(worker.inbox.Next<DecodeOpened>(absl::Milliseconds(500)).has_value());
  worker.server.Close(opened->call, absl::OkStatus());
  const auto waited = worker.inbox.Next<DecodeOpened>();
  ASSERT_TRUE(waited.has_value());
  worker.server.Close(waited->call, absl::OkStatus());
}

TEST(WorkerLimitsTest, WatchersAreCountedUntilTheyGo) {
  LimitedWorker worker({.max_watchers = 2});
  const auto stub = v1::Cluster::NewStub(ChannelTo(worker.address()));
  const auto watch = [&](grpc::ClientContext* context) {
    context->set_deadline(DeadlineAfter(std::chrono::seconds(60)));
    return stub->Watch(context, {});
  };
  v1::WorkerStatus status;
  grpc::ClientContext first;
  const auto kept = watch(&first);
  for (int round = 0; round < 3; ++round) {
    auto context = std::make_unique<grpc::ClientContext>();
    auto reader = watch(context.get());
    for (const absl::Time begin = absl::Now(); !reader->Read(&status);) {
      // Until the last round's has been let go.
      ASSERT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
      ASSERT_GT(round, 0);
      ASSERT_LT(absl::Now() - begin, absl::Seconds(60));
      reader.reset();
      context = std::make_unique<grpc::ClientContext>();
      reader = watch(context.get());
    }
    ASSERT_TRUE(kept->Read(&status));
    grpc::ClientContext beyond;
    const auto refused = watch(&beyond);
    EXPECT_FALSE(refused->Read(&status));
    EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    context->TryCancel();
  }
}

TEST(WorkerLimitsTest, AWatcherThatDoesNotReadFindsTheNewestStatusAndNoBacklog) {
  LimitedWorker worker;
  grpc::ChannelArguments args = ClusterChannelArguments();
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16);  // The stream takes no more unread.
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto stub = v1::Cluster::NewStub(ChannelTo(worker.address(), args));
  grpc::ClientContext context;
  context.set_deadline(DeadlineAfter(std::chrono::seconds(60)));
  const auto reader = stub->Watch(&context, {});
  v1::WorkerStatus status;
  ASSERT_TRUE(reader->Read(&status));
  const int at_first = worker.num_statuses;
  while (worker.num_statuses < at_first + 20) absl::SleepFor(absl::Milliseconds(10));
  const int newest = worker.num_statuses;
  int num_read = 0;
  do {
    ASSERT_TRUE(reader->Read(&status));
    ++num_read;
  } while (status.running() < newest);
  EXPECT_LT(num_read, 10);
}

TEST(WorkerLimitsTest, AShutdownsGraceIsForCallsAndNotForWatchers) {
  LimitedWorker worker;
  const auto stub = v1::Cluster::NewStub(ChannelTo(worker.address()));
  grpc::ClientContext context;
  const auto reader = stub->Watch(&context, {});
  v1::WorkerStatus status;
  ASSERT_TRUE(reader->Read(&status));
  const absl::Time begin = absl::Now();
  worker.server.Shutdown(std::chrono::seconds(60));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
  while (reader->Read(&status)) {
  }
  EXPECT_THAT(reader->Finish().error_message(), HasSubstr("shutting down"));
}

TEST(WorkerLimitsTest, ACallMayEndWithinAShutdownsGrace) {
  LimitedWorker worker;
  const auto stub = v1::Decode::NewStub(ChannelTo(worker.address()));
  OneCall call(stub.get());
  const auto opened = worker.inbox.Next<DecodeOpened>();
  ASSERT_TRUE(opened.has_value());
  std::jthread shutdown([&] { worker.server.Shutdown(std::chrono::seconds(60)); });
  absl::SleepFor(absl::Milliseconds(300));
  worker.server.Close(opened->call, absl::OkStatus());
  EXPECT_TRUE(call.End().ok());
  EXPECT_EQ(worker.inbox.Count<CallBroken>(), 0);
}

TEST(WorkerLimitsTest, AWatcherHearsOfEachChangeAndElseAHeartbeat) {
  LimitedWorker changing;
  TestWorker constant(Role::kDecode);
  for (const bool is_changing : {true, false}) {
    const auto stub = v1::Cluster::NewStub(
        ChannelTo(is_changing ? changing.address() : constant.address()));
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(std::chrono::seconds(60)));
    const auto reader = stub->Watch(&context, {});
    v1::WorkerStatus status;
    ASSERT_TRUE(reader->Read(&status));
    // Ticks are 50 ms, heartbeats 400 ms apart. On a busy machine the best of five counts.
    absl::Duration best = absl::InfiniteDuration();
    for (int round = 0; round < 5; ++round) {
      const absl::Time begin = absl::Now();
      for (int i = 0; i < 10; ++i) ASSERT_TRUE(reader->Read(&status));
      best = std::min(best, absl::Now() - begin);
      if (!is_changing || best < absl::Seconds(2)) break;
    }
    EXPECT_EQ(best < absl::Seconds(2), is_changing) << best;
    context.TryCancel();
  }
}

TEST(WorkerLimitsTest, MessagesOfSixteenMebibytesAreReadAndLargerOnesAreNot) {
  LimitedWorker worker;
  const auto stub = v1::Decode::NewStub(ChannelTo(worker.address()));
  v1::DecodeRequest request = OneCall::Sample();
  request.mutable_tokens()->Resize(15 << 20, 1);  // A byte each.
  const grpc::Status read = OneCall(stub.get(), request).End();
  EXPECT_THAT(read.error_message(), HasSubstr("tokens.size"));
  // This client may say more than a worker takes.
  grpc::ChannelArguments args;
  const auto careless = v1::Decode::NewStub(ChannelTo(worker.address(), args));
  request.mutable_tokens()->Resize(17 << 20, 1);
  const grpc::Status refused = OneCall(careless.get(), request).End();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST(WorkerLimitsTest, ARouterTakesEventsAsLargeAsWorkersMaySend) {
  TestWorker worker(Role::kDecode);
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  DecodeRequest request = SampleDecode();
  request.sampling.max_tokens = kLimits.max_model_len;
  router.links.OpenDecode(1, 0, request);
  const auto opened = worker.inbox.Next<DecodeOpened>();
  ASSERT_TRUE(opened.has_value());
  TokensEvent event;
  const std::vector<TokenLogprob> top(kMaxLogprobs, {.token = 999, .logprob = -1});
  for (int32_t p = 1; p <= kLimits.max_model_len; ++p) {
    event.outputs.push_back({.position = p, .token = 1, .top = top});
  }
  worker.server.Emit(opened->call, event);  // Five megabytes.
  const auto came = router.inbox.Next<WorkerEventReceived>();
  ASSERT_TRUE(came.has_value());
  EXPECT_EQ(std::get<TokensEvent>(came->event).outputs.size(), event.outputs.size());
}

TEST(WorkerLimitsTest, ARouterCountsAWorkersCallsUntilTheyEnd) {
  TestWorker worker(Role::kDecode);
  FakeInbox<RouterMail> inbox;
  WorkerLinks links(
      {.workers = {{Role::kDecode, worker.address()}}, .max_calls_to_worker = 2},
      &inbox);
  links.Start();
  ASSERT_TRUE(inbox.Next<WorkerUp>().has_value());
  CallId id = 0;
  links.OpenDecode(++id, 0, SampleDecode());
  for (int round = 0; round < 3; ++round) {
    const CallId second = ++id;
    links.OpenDecode(second, 0, SampleDecode());
    links.OpenDecode(++id, 0, SampleDecode());
    const auto refused = inbox.Next<CallClosed>();
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->call, id);
    EXPECT_TRUE(absl::IsResourceExhausted(refused->status)) << refused->status;
    links.Cancel(second);
    const auto ended = inbox.Next<CallClosed>();
    ASSERT_TRUE(ended.has_value());
    EXPECT_EQ(ended->call, second);
  }
}

// Ends the process: its environment is no other test's.
void CallBesideAProxy() {
  setenv("http_proxy", "http://127.0.0.1:1", /*overwrite=*/1);
  setenv("no_proxy", "", 1);
  setenv("no_grpc_proxy", "", 1);
  LimitedWorker worker({.max_open_calls = 0});
  const auto stub = v1::Decode::NewStub(ChannelTo(worker.address()));
  std::fprintf(stderr, "%s\n", OneCall(stub.get()).End().error_message().c_str());
  std::_Exit(0);
}

TEST(WorkerLimitsTest, TrafficOfTheClusterLeavesByNoProxy) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(CallBesideAProxy(), testing::ExitedWithCode(0), "too many open calls");
}

TEST(WorkerLimitsTest, AWorkerSpeaksTheOlderProtocolOfTheTwo) {
  TestWorker worker(Role::kDecode);
  const auto stub = v1::Cluster::NewStub(ChannelTo(worker.address()));
  // 0: a tool that tells none.
  for (const auto& [told, spoken] : {std::pair{0, kProtocolVersion},
                                     {1, 1},
                                     {3, 3},
                                     {kProtocolVersion, kProtocolVersion},
                                     {kProtocolVersion + 1, kProtocolVersion}}) {
    v1::HelloRequest hello;
    hello.set_protocol_version(told);
    v1::HelloResponse answer;
    grpc::ClientContext context;
    EXPECT_TRUE(stub->Hello(&context, hello, &answer).ok()) << told;
    EXPECT_TRUE(CheckSeal(answer).ok());
    EXPECT_EQ(answer.protocol_version(), spoken) << told;
    EXPECT_EQ(answer.kv_wire_version(), kKvWireVersion);
  }
}

}  // namespace
}  // namespace baton
