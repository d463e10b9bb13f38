#include "common/rpc/worker_links.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "baton/v1/cluster.grpc.pb.h"
#include "baton/v1/decode.grpc.pb.h"
#include "baton/v1/prefill.grpc.pb.h"
#include "common/rpc/connection.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/worker_server.h"
#include "tests/unit/common/rpc/fake_inbox.h"
#include "tests/unit/common/rpc/wire_samples.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

HelloInfo HelloOf(Role role, Incarnation incarnation) {
  return {.role = role,
          .incarnation = incarnation,
          .numerics_id = "test",
          .block_size = 16,
          .num_blocks = 100,
          .max_model_len = kLimits.max_model_len,
          .vocab_size = kLimits.vocab_size};
}

// A worker without a node: the test answers for it.
struct TestWorker {
  explicit TestWorker(Role role, Incarnation incarnation = 7, int port = 0, bool full = false)
      : inbox(full),
        server({.hello = HelloOf(role, incarnation),
                .port = port,
                .status =
                    [this, incarnation] {
                      WorkerStatus status;
                      status.incarnation = incarnation;
                      status.running = running;
                      return status;
                    }},
               &inbox) {
    const absl::Status status = server.Start();
    EXPECT_TRUE(status.ok()) << status;
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", server.port()); }

  FakeInbox inbox;
  std::atomic<int> running = 0;
  WorkerServer server;
};

struct TestRouter {
  explicit TestRouter(std::vector<WorkerAddress> workers)
      : links({.workers = std::move(workers), .router = 99}, &inbox) {
    links.Start();
  }
  FakeInbox inbox;
  WorkerLinks links;
};

DecodeRequest SampleDecode() {
  DecodeRequest request = WireSamples(1).Decode();
  request.sampling.max_tokens = 8;
  request.timeout = std::chrono::seconds(60);
  return request;
}

PrefillRequest SamplePrefill() {
  PrefillRequest request = WireSamples(1).Prefill();
  request.timeout = std::chrono::seconds(60);
  return request;
}

TEST(WorkerLinksTest, MailsHelloThenStatusThenDown) {
  auto worker = std::make_unique<TestWorker>(Role::kDecode);
  TestRouter router({{Role::kDecode, worker->address()}});
  const auto up = router.inbox.Next<WorkerUp>();
  ASSERT_TRUE(up.has_value());
  EXPECT_EQ(up->worker, 0);
  EXPECT_EQ(up->hello.incarnation, 7);
  EXPECT_EQ(up->hello.numerics_id, "test");
  ASSERT_TRUE(router.inbox.Next<WorkerStatusChanged>().has_value());
  worker->running = 5;
  std::optional<WorkerStatusChanged> status;
  do {
    status = router.inbox.Next<WorkerStatusChanged>();
    ASSERT_TRUE(status.has_value());
  } while (status->status.running != 5);
  EXPECT_EQ(router.inbox.Count<WorkerDown>(), 0);
  worker.reset();
  EXPECT_TRUE(router.inbox.Next<WorkerDown>().has_value());
}

TEST(WorkerLinksTest, StatusComesAtLeastTwiceASecondWithoutChange) {
  TestWorker worker(Role::kDecode);
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerStatusChanged>().has_value());
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(router.inbox.Next<WorkerStatusChanged>(absl::Milliseconds(800)).has_value());
  }
}

TEST(WorkerLinksTest, CarriesADecodeCallToItsEnd) {
  TestWorker worker(Role::kDecode);
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  const DecodeRequest request = SampleDecode();
  router.links.OpenDecode(41, 0, request);
  const auto opened = worker.inbox.Next<DecodeOpened>();
  ASSERT_TRUE(opened.has_value());
  EXPECT_EQ(opened->request.sequence, request.sequence);
  EXPECT_EQ(opened->request.tokens, request.tokens);

  WireSamples samples(2);
  const ReservedEvent reserved = samples.Reserved();
  worker.server.Send(opened->call, reserved);
  for (int32_t p = 10; p < 13; ++p) {
    worker.server.Send(opened->call, TokensEvent{.outputs = {{.position = p, .token = p}}});
  }
  worker.server.Close(opened->call, absl::OkStatus());
  worker.server.Close(opened->call, absl::InternalError("a second close is a no-op"));
  worker.server.Send(opened->call, reserved);  // So is an event after it.

  const auto first = router.inbox.Next<WorkerEventReceived>();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->call, 41);
  EXPECT_EQ(std::get<ReservedEvent>(first->event).ticket, reserved.ticket);
  EXPECT_EQ(std::get<ReservedEvent>(first->event).pair_key, reserved.pair_key);
  for (int32_t p = 10; p < 13; ++p) {
    const auto tokens = router.inbox.Next<WorkerEventReceived>();
    ASSERT_TRUE(tokens.has_value());
    EXPECT_EQ(std::get<TokensEvent>(tokens->event).outputs.at(0).position, p);
  }
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->call, 41);
  EXPECT_TRUE(closed->status.ok()) << closed->status;
  EXPECT_EQ(worker.inbox.Count<CallBroken>(), 0);
  EXPECT_EQ(router.inbox.Count<WorkerEventReceived>(), 0);
}

TEST(WorkerLinksTest, CarriesAPrefillCallAndTheWorkersError) {
  TestWorker worker(Role::kPrefill);
  TestRouter router({{Role::kPrefill, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenPrefill(5, 0, SamplePrefill());
  const auto opened = worker.inbox.Next<PrefillOpened>();
  ASSERT_TRUE(opened.has_value());
  worker.server.Send(opened->call, PrefilledEvent{.first = TokenOutput{.position = 3, .token = 4}});
  worker.server.Close(opened->call, absl::AbortedError("the handoff failed: no answer"));
  const auto event = router.inbox.Next<WorkerEventReceived>();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(std::get<PrefilledEvent>(event->event).first->token, 4);
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->status, absl::AbortedError("the handoff failed: no answer"));
}

TEST(WorkerLinksTest, CancelBreaksTheCallOnTheWorkerOnceAndLaterEventsAreNoOps) {
  TestWorker worker(Role::kDecode);
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenDecode(1, 0, SampleDecode());
  const auto opened = worker.inbox.Next<DecodeOpened>();
  ASSERT_TRUE(opened.has_value());
  router.links.Cancel(1);
  router.links.Cancel(1);
  router.links.Cancel(12345);
  const auto broken = worker.inbox.Next<CallBroken>();
  ASSERT_TRUE(broken.has_value());
  EXPECT_EQ(broken->call, opened->call);
  worker.server.Send(opened->call, WireSamples(3).Reserved());
  worker.server.Close(opened->call, absl::OkStatus());
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->status.code(), absl::StatusCode::kCancelled);
  router.links.Stop();
  EXPECT_EQ(worker.inbox.Count<CallBroken>(), 0);
  EXPECT_EQ(router.inbox.Count<CallClosed>(), 0);
}

TEST(WorkerLinksTest, TheRequestsTimeoutBreaksTheCallOnBothSides) {
  TestWorker worker(Role::kDecode);
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  DecodeRequest request = SampleDecode();
  request.timeout = std::chrono::milliseconds(100);
  router.links.OpenDecode(1, 0, request);
  ASSERT_TRUE(worker.inbox.Next<CallBroken>().has_value());
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(WorkerLinksTest, LosingTheRouterBreaksItsCalls) {
  TestWorker worker(Role::kDecode);
  {
    TestRouter router({{Role::kDecode, worker.address()}});
    ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
    router.links.OpenDecode(1, 0, SampleDecode());
    router.links.OpenDecode(2, 0, SampleDecode());
    ASSERT_TRUE(worker.inbox.Next<DecodeOpened>().has_value());
    ASSERT_TRUE(worker.inbox.Next<DecodeOpened>().has_value());
  }
  EXPECT_TRUE(worker.inbox.Next<CallBroken>().has_value());
  EXPECT_TRUE(worker.inbox.Next<CallBroken>().has_value());
}

TEST(WorkerLinksTest, AFullInboxIsRefusedAtOnce) {
  TestWorker worker(Role::kDecode, 7, 0, /*full=*/true);
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenDecode(1, 0, SampleDecode());
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(closed->status.message()), HasSubstr("inbox is full"));
  EXPECT_EQ(worker.inbox.Count<CallBroken>(), 0);
}

TEST(WorkerLinksTest, ABadRequestIsRefusedByFieldAndNeverReachesTheNode) {
  TestWorker worker(Role::kDecode);
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  DecodeRequest request = SampleDecode();
  request.tokens[0] = kLimits.vocab_size;
  router.links.OpenDecode(1, 0, request);
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(closed->status.message()), HasSubstr("tokens[0] = 1000"));
  EXPECT_EQ(worker.inbox.Count<DecodeOpened>(), 0);
}

TEST(WorkerLinksTest, ACallToAWorkerThatIsNotConnectedEndsAtOnce) {
  TestRouter router({{Role::kDecode, "127.0.0.1:1"}});
  router.links.OpenDecode(9, 0, SampleDecode());
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->call, 9);
  EXPECT_EQ(closed->status.code(), absl::StatusCode::kUnavailable);
}

TEST(WorkerLinksTest, AWorkerThatStreamsMoreThanWasAskedIsCutOff) {
  TestWorker worker(Role::kDecode);
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenDecode(1, 0, SampleDecode());  // max_tokens 8
  const auto opened = worker.inbox.Next<DecodeOpened>();
  ASSERT_TRUE(opened.has_value());
  for (int i = 0; i < 100; ++i) {
    worker.server.Send(opened->call, TokensEvent{.outputs = {{.position = i + 1, .token = 1}}});
  }
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->status.code(), absl::StatusCode::kDataLoss);
  EXPECT_LT(router.inbox.Count<WorkerEventReceived>(), 20);
}

TEST(WorkerLinksTest, ANewProcessAtTheSameAddressIsDownThenUp) {
  auto worker = std::make_unique<TestWorker>(Role::kDecode, 7);
  const int port = worker->server.port();
  TestRouter router({{Role::kDecode, worker->address()}});
  ASSERT_EQ(router.inbox.Next<WorkerUp>()->hello.incarnation, 7);
  worker.reset();
  ASSERT_TRUE(router.inbox.Next<WorkerDown>().has_value());
  TestWorker successor(Role::kDecode, 8, port);
  const auto up = router.inbox.Next<WorkerUp>();
  ASSERT_TRUE(up.has_value());
  EXPECT_EQ(up->hello.incarnation, 8);
}

TEST(WorkerLinksTest, AWorkerOfTheWrongRoleIsReportedAndNotUsed) {
  TestWorker worker(Role::kPrefill);
  TestRouter router({{Role::kDecode, worker.address()}});
  const auto down = router.inbox.Next<WorkerDown>();
  ASSERT_TRUE(down.has_value());
  EXPECT_THAT(down->reason, HasSubstr("a prefill worker answers"));
  EXPECT_EQ(router.inbox.Count<WorkerUp>(), 0);
}

class WorkerServerTest : public ::testing::Test {
 protected:
  std::shared_ptr<grpc::Channel> Channel(const TestWorker& worker) {
    return grpc::CreateCustomChannel(worker.address(), grpc::InsecureChannelCredentials(),
                                     ClusterChannelArguments());
  }
};

TEST_F(WorkerServerTest, RefusesACallMeantForAnotherIncarnation) {
  TestWorker worker(Role::kDecode, 7);
  auto stub = v1::Decode::NewStub(Channel(worker));
  grpc::ClientContext context;
  v1::DecodeRequest request;
  ToProto(SampleDecode(), &request);
  request.set_expected_incarnation(6);
  auto reader = stub->Decode(&context, request);
  v1::DecodeEvent event;
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(worker.inbox.Count<DecodeOpened>(), 0);
}

TEST_F(WorkerServerTest, RecoveryCallsAreUnimplementedWithAClearText) {
  TestWorker decode(Role::kDecode);
  TestWorker prefill(Role::kPrefill);
  grpc::ClientContext rebind_context;
  v1::RebindResponse rebound;
  const grpc::Status rebind =
      v1::Decode::NewStub(Channel(decode))->Rebind(&rebind_context, {}, &rebound);
  EXPECT_EQ(rebind.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(rebind.error_message(), HasSubstr("recovery"));
  grpc::ClientContext send_context;
  v1::SendResponse sent;
  const grpc::Status send = v1::Prefill::NewStub(Channel(prefill))->Send(&send_context, {}, &sent);
  EXPECT_EQ(send.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(send.error_message(), HasSubstr("recovery"));
}

TEST_F(WorkerServerTest, DrainIsMailToTheNode) {
  TestWorker worker(Role::kDecode);
  auto stub = v1::Cluster::NewStub(Channel(worker));
  grpc::ClientContext context;
  v1::DrainResponse response;
  EXPECT_TRUE(stub->Drain(&context, {}, &response).ok());
  EXPECT_TRUE(worker.inbox.Next<Drain>().has_value());
  grpc::ClientContext other;
  v1::DrainRequest request;
  request.set_expected_incarnation(1);
  EXPECT_EQ(stub->Drain(&other, request, &response).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(WorkerServerTest, AnswersHealthChecks) {
  TestWorker worker(Role::kDecode);
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(Channel(worker));
  grpc::ClientContext context;
  const grpc::Slice empty("");
  const grpc::ByteBuffer request(&empty, 1);
  grpc::ByteBuffer response;
  grpc::Status status;
  absl::Notification done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &response,
                 [&](grpc::Status s) {
                   status = std::move(s);
                   done.Notify();
                 });
  done.WaitForNotification();
  ASSERT_TRUE(status.ok()) << status.error_message();
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(response.Dump(&slices).ok());
  ASSERT_EQ(slices.size(), 1u);
  const std::string bytes(reinterpret_cast<const char*>(slices[0].begin()), slices[0].size());
  EXPECT_EQ(bytes, std::string("\x08\x01", 2));  // HealthCheckResponse{status: SERVING}
}

TEST_F(WorkerServerTest, APortInUseIsAnErrorThatNamesTheSetting) {
  TestWorker worker(Role::kDecode);
  FakeInbox inbox;
  WorkerServer second({.hello = HelloOf(Role::kDecode, 8),
                       .port = worker.server.port(),
                       .status = [] { return WorkerStatus{}; }},
                      &inbox);
  const absl::Status status = second.Start();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--port"));
}

}  // namespace
}  // namespace baton
