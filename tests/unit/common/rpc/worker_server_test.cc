#include "common/rpc/worker_server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "baton/v1/cluster.grpc.pb.h"
#include "baton/v1/decode.grpc.pb.h"
#include "baton/v1/prefill.grpc.pb.h"
#include "common/rpc/connection.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"
#include "tests/unit/common/rpc/test_cluster.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

// A call that is taken all the same stays open until then.
constexpr Duration kRefusedWithin = std::chrono::seconds(10);

class WorkerServerTest : public ::testing::Test {
 protected:
  std::shared_ptr<grpc::Channel> Channel(const TestWorker& worker) {
    return grpc::CreateCustomChannel(worker.address(), grpc::InsecureChannelCredentials(),
                                     ClusterChannelArguments());
  }

  static void Hello(const std::shared_ptr<grpc::Channel>& channel, int32_t protocol) {
    v1::HelloRequest hello;
    hello.set_protocol_version(protocol);
    v1::HelloResponse answer;
    grpc::ClientContext context;
    EXPECT_TRUE(v1::Cluster::NewStub(channel)->Hello(&context, hello, &answer).ok());
  }
};

TEST_F(WorkerServerTest, RefusesACallMeantForAnotherIncarnation) {
  TestWorker worker(Role::kDecode, 7);
  auto stub = v1::Decode::NewStub(Channel(worker));
  grpc::ClientContext context;
  context.set_deadline(DeadlineAfter(kRefusedWithin));
  v1::DecodeRequest request;
  ToProto(SampleDecode(), &request);
  request.set_expected_incarnation(6);
  Seal(&request);
  auto reader = stub->Decode(&context, request);
  v1::DecodeEvent event;
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(worker.inbox.Count<DecodeOpened>(), 0);
}

TEST_F(WorkerServerTest, ARequestThatWasDamagedOnItsWayIsRefusedAndNotTaken) {
  TestWorker worker(Role::kDecode, 7);
  auto stub = v1::Decode::NewStub(Channel(worker));
  v1::DecodeRequest request;
  ToProto(SampleDecode(), &request);
  Seal(&request);
  request.set_tokens(0, request.tokens(0) ^ 1);
  grpc::ClientContext context;
  context.set_deadline(DeadlineAfter(kRefusedWithin));
  v1::DecodeEvent event;
  auto reader = stub->Decode(&context, request);
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DATA_LOSS);
  v1::RebindRequest rebind;
  ToProto(WireSamples(1).Rebind(), &rebind);
  rebind.set_expected_incarnation(7);
  grpc::ClientContext rebind_context;
  v1::RebindResponse rebound;
  EXPECT_EQ(stub->Rebind(&rebind_context, rebind, &rebound).error_code(),
            grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(worker.inbox.Count<DecodeOpened>(), 0);
  EXPECT_EQ(worker.inbox.Count<RebindAsked>(), 0);
}

TEST_F(WorkerServerTest, RebindsAndSendsOfAnotherIncarnationOrWithoutSequenceAreRefused) {
  TestWorker decode(Role::kDecode);
  TestWorker prefill(Role::kPrefill);
  for (uint64_t incarnation : {6, 7}) {
    grpc::ClientContext rebind_context;
    v1::RebindRequest rebind;
    if (incarnation == 6) ToProto(WireSamples(1).Rebind(), &rebind);
    rebind.set_expected_incarnation(incarnation);
    Seal(&rebind);
    v1::RebindResponse rebound;
    const grpc::Status status =
        v1::Decode::NewStub(Channel(decode))->Rebind(&rebind_context, rebind, &rebound);
    EXPECT_EQ(status.error_code(), incarnation == 6 ? grpc::StatusCode::FAILED_PRECONDITION
                                                    : grpc::StatusCode::INVALID_ARGUMENT);
  }
  grpc::ClientContext context;
  v1::SendRequest send;
  send.set_expected_incarnation(7);
  Seal(&send);
  v1::SendResponse sent;
  EXPECT_EQ(v1::Prefill::NewStub(Channel(prefill))->Send(&context, send, &sent).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(decode.inbox.Count<RebindAsked>(), 0);
  EXPECT_EQ(prefill.inbox.Count<SendAsked>(), 0);
}

TEST_F(WorkerServerTest, WhoMeansAnotherProcessOrSpeaksNoProtocolIsRefused) {
  TestWorker prefill(Role::kPrefill, 7);
  const auto refused = grpc::StatusCode::FAILED_PRECONDITION;
  auto cluster = v1::Cluster::NewStub(Channel(prefill));
  v1::SendRequest send;
  ToProto(WireSamples(1).Send(), &send);
  send.set_expected_incarnation(6);
  Seal(&send);
  v1::SendResponse sent;
  grpc::ClientContext send_context;
  EXPECT_EQ(v1::Prefill::NewStub(Channel(prefill))->Send(&send_context, send, &sent).error_code(),
            refused);
  v1::WatchRequest watch;
  watch.set_expected_incarnation(6);
  grpc::ClientContext watch_context;
  v1::WorkerStatus status;
  auto reader = cluster->Watch(&watch_context, watch);
  EXPECT_FALSE(reader->Read(&status));
  EXPECT_EQ(reader->Finish().error_code(), refused);
  v1::AuditRequest audit;
  audit.set_expected_incarnation(6);
  v1::AuditResponse audited;
  grpc::ClientContext audit_context;
  EXPECT_EQ(cluster->Audit(&audit_context, audit, &audited).error_code(), refused);
  for (int32_t version : {-1, INT32_MIN}) {
    v1::HelloRequest hello;
    hello.set_protocol_version(version);
    v1::HelloResponse answer;
    grpc::ClientContext hello_context;
    EXPECT_EQ(cluster->Hello(&hello_context, hello, &answer).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT)
        << version;
  }
}

TEST_F(WorkerServerTest, RoutersBeforeProtocol3LearnOneEndpointAndOthersBesideThemRanks) {
  TestWorker worker(Role::kDecode, 7);
  for (const int32_t protocol : {1, 2, kProtocolVersion}) {
    const auto channel = Channel(worker);  // A connection of its own.
    Hello(channel, protocol);
    v1::DecodeRequest request;
    ToProto(SampleDecode(), &request);
    Seal(&request);
    grpc::ClientContext context;
    const auto reader = v1::Decode::NewStub(channel)->Decode(&context, request);
    const auto opened = worker.inbox.Next<DecodeOpened>();
    ASSERT_TRUE(opened.has_value());
    ReservedEvent reserved{.ticket = {.hi = 1}, .decode = 7};
    reserved.ranks = {{"d:0", {0, 8}}};
    worker.server.Emit(opened->call, reserved);
    v1::DecodeEvent event;
    do {
      ASSERT_TRUE(reader->Read(&event));
    } while (event.has_alive());
    EXPECT_TRUE(CheckSeal(event, request.crc32c()).ok());
    EXPECT_EQ(event.reserved().data_endpoint(), protocol < 3 ? "8@d:0" : "");
    EXPECT_EQ(event.reserved().ranks_size(), protocol < 3 ? 0 : 1);
    context.TryCancel();
  }
}

TEST_F(WorkerServerTest, RoutersBeforeProtocol3AreToldOfNoRanksByWhichTheyWouldPair) {
  HelloInfo two_ranks = HelloOf(Role::kDecode, 7);
  two_ranks.tp_size = 2;
  FakeInbox<DecodeMail> inbox;
  WorkerServer server({.hello = two_ranks, .status = [] { return WorkerStatus{}; }}, &inbox);
  ASSERT_TRUE(server.Start().ok());
  const auto stub = v1::Cluster::NewStub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", server.port()), grpc::InsecureChannelCredentials()));
  for (const int32_t protocol : {0, 1, 2, 3, kProtocolVersion}) {
    v1::HelloRequest hello;
    hello.set_protocol_version(protocol);
    grpc::ClientContext context;
    v1::HelloResponse answer;
    ASSERT_TRUE(stub->Hello(&context, hello, &answer).ok());
    EXPECT_EQ(answer.tp_size(), protocol == 1 || protocol == 2 ? 1 : 2) << protocol;
    EXPECT_TRUE(CheckSeal(answer).ok());
  }
}

TEST_F(WorkerServerTest, RoutersThatCannotCarryItsAddressesAreRefusedAtHello) {
  FakeInbox<DecodeMail> inbox;
  WorkerServer server({.hello = HelloOf(Role::kDecode, 7),
                       .data_ranks = {{std::string(130, 'a') + ":1", {0, 4}},
                                      {std::string(130, 'b') + ":1", {4, 4}}},
                       .status = [] { return WorkerStatus{}; }},
                      &inbox);
  ASSERT_TRUE(server.Start().ok());
  const auto stub = v1::Cluster::NewStub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", server.port()), grpc::InsecureChannelCredentials()));
  for (const auto& [protocol, code] :
       {std::pair{1, grpc::StatusCode::FAILED_PRECONDITION},
        std::pair{2, grpc::StatusCode::FAILED_PRECONDITION}, std::pair{3, grpc::StatusCode::OK},
        std::pair{0, grpc::StatusCode::OK}}) {
    v1::HelloRequest hello;
    hello.set_protocol_version(protocol);
    grpc::ClientContext context;
    v1::HelloResponse answer;
    EXPECT_EQ(stub->Hello(&context, hello, &answer).error_code(), code) << protocol;
  }
}

TEST_F(WorkerServerTest, ARouterOfProtocol1GetsScoresWithTheFirstToken) {
  TestWorker worker(Role::kPrefill, 7);
  const auto channel = Channel(worker);
  Hello(channel, 1);
  v1::PrefillRequest request;
  ToProto(SamplePrefill(), &request);
  Seal(&request);
  grpc::ClientContext context;
  const auto reader = v1::Prefill::NewStub(channel)->Prefill(&context, request);
  const auto opened = worker.inbox.Next<PrefillOpened>();
  ASSERT_TRUE(opened.has_value());
  for (const int32_t position : {1, 2}) {
    worker.server.Emit(opened->call,
                       ScoresEvent{.logprobs = {{.position = position, .token = 3, .rank = 1}}});
  }
  worker.server.Emit(opened->call, PrefilledEvent{});
  v1::PrefillEvent event;
  do {
    ASSERT_TRUE(reader->Read(&event));
  } while (event.has_alive());
  EXPECT_EQ(event.prefilled().prompt_logprobs_size(), 2);
  context.TryCancel();
}

TEST_F(WorkerServerTest, AnAuditIsTheNodesAnswer) {
  TestWorker worker(Role::kDecode);
  std::jthread node([&] {
    auto asked = worker.inbox.Next<WorkerAuditAsked>();
    ASSERT_TRUE(asked.has_value());
    asked->answer({.incarnation = 7, .blocks = {}, .num_unowned = 3, .calls = {}});
  });
  grpc::ClientContext context;
  v1::AuditResponse response;
  EXPECT_TRUE(v1::Cluster::NewStub(Channel(worker))->Audit(&context, {}, &response).ok());
  EXPECT_EQ(response.num_unowned(), 3);
}

TEST_F(WorkerServerTest, AnAuditThatNobodyAnswersEndsAllTheSame) {
  TestWorker worker(Role::kDecode);
  std::jthread node([&] { worker.inbox.Next<WorkerAuditAsked>(); });  // And drops it.
  grpc::ClientContext context;
  v1::AuditResponse response;
  const grpc::Status status = v1::Cluster::NewStub(Channel(worker))->Audit(&context, {}, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
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
  FakeInbox<DecodeMail> inbox;
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
