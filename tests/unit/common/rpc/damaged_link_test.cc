// What a router makes of a connection on which something is damaged or lost.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/cluster.grpc.pb.h"
#include "baton/v1/decode.grpc.pb.h"
#include "common/rpc/connection.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"
#include "tests/unit/common/rpc/test_cluster.h"

namespace baton {
namespace {

// Says something on a call whose events begin at `place`.
using Say = std::function<void(grpc::ServerWriter<v1::DecodeEvent>* writer, uint32_t place)>;

void AwaitCancel(grpc::ServerContext* context) {
  while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
}

// A decode worker that says on each call what the test wants, without anything of Baton's server.
class HandmadeWorker : public v1::Decode::Service, public v1::Cluster::Service {
 public:
  explicit HandmadeWorker(Say say, bool watch_is_silent = false)
      : say_(std::move(say)), watch_is_silent_(watch_is_silent) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<v1::Decode::Service*>(this));
    builder.RegisterService(static_cast<v1::Cluster::Service*>(this));
    server_ = builder.BuildAndStart();
  }
  ~HandmadeWorker() override { server_->Shutdown(DeadlineAfter(Duration::zero())); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  size_t num_connections() {
    absl::MutexLock lock(&mutex_);
    return peers_.size();
  }

  grpc::Status Hello(grpc::ServerContext* context, const v1::HelloRequest*,
                     v1::HelloResponse* response) override {
    ToProto(HelloOf(Role::kDecode, 7), response);
    Seal(response);
    absl::MutexLock lock(&mutex_);
    peers_.insert(context->peer());
    return grpc::Status::OK;
  }

  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest*,
                     grpc::ServerWriter<v1::WorkerStatus>* writer) override {
    v1::WorkerStatus status;
    ToProto(WorkerStatus{.incarnation = 7}, &status);
    Seal(&status);
    while (!context->IsCancelled()) {
      if (!watch_is_silent_) writer->Write(status);
      absl::SleepFor(absl::Milliseconds(100));
    }
    return grpc::Status::OK;
  }

  // As a worker whose inbox is full.
  grpc::Status Rebind(grpc::ServerContext* context, const v1::RebindRequest*,
                      v1::RebindResponse*) override {
    const absl::Status refusal = absl::ResourceExhaustedError("full");
    context->AddTrailingMetadata(kReasonKey, ReasonOf(refusal.code()));
    return ToGrpc(refusal);
  }

  grpc::Status Decode(grpc::ServerContext* context, const v1::DecodeRequest* request,
                      grpc::ServerWriter<v1::DecodeEvent>* writer) override {
    say_(writer, request->crc32c());
    AwaitCancel(context);
    return grpc::Status::OK;
  }

 private:
  const Say say_;
  const bool watch_is_silent_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mutex_;
  std::set<std::string> peers_ ABSL_GUARDED_BY(mutex_);
};

v1::DecodeEvent Tokens(int32_t position, uint32_t place) {
  v1::DecodeEvent event;
  ToProto(TokensEvent{.outputs = {{.position = position, .token = 3}}}, &event);
  Seal(&event, place);
  return event;
}

v1::DecodeEvent Alive(uint64_t num_events, uint32_t place) {
  v1::DecodeEvent event;
  event.mutable_alive()->set_num_events(num_events);
  Seal(&event, place + static_cast<uint32_t>(num_events));
  return event;
}

// Opens a call, and what came of it: the status of its end and the events before.
std::pair<absl::Status, int> CallOnce(TestRouter& router) {
  router.links.OpenDecode(1, 0, SampleDecode());
  const auto closed = router.inbox.Next<CallClosed>(absl::Seconds(20));
  if (!closed.has_value()) return {absl::UnknownError("the call does not end"), 0};
  return {closed->status, router.inbox.Count<WorkerEventReceived>()};
}

void ExpectANewConnection(HandmadeWorker& worker, TestRouter& router) {
  EXPECT_TRUE(router.inbox.Next<WorkerDown>().has_value());
  EXPECT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  EXPECT_EQ(worker.num_connections(), 2u);
}

void ExpectDamageSeen(HandmadeWorker& worker, int events_before) {
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  const auto [status, num_events] = CallOnce(router);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_EQ(num_events, events_before);
  ExpectANewConnection(worker, router);
}

TEST(DamagedLinkTest, ADamagedEventEndsTheCallAndTheConnection) {
  HandmadeWorker worker([](auto* writer, uint32_t place) {
    writer->Write(Tokens(10, place));
    v1::DecodeEvent damaged = Tokens(11, place + 1);
    damaged.mutable_tokens()->mutable_outputs(0)->set_token(2);
    writer->Write(damaged);
  });
  ExpectDamageSeen(worker, /*events_before=*/1);
}

TEST(DamagedLinkTest, ASignOfLifeShowsThatAnEventIsMissing) {
  HandmadeWorker worker([](auto* writer, uint32_t place) {
    writer->Write(Tokens(10, place));
    writer->Write(Alive(1, place));
    writer->Write(Alive(2, place));  // The second event was lost.
  });
  ExpectDamageSeen(worker, /*events_before=*/1);
}

TEST(DamagedLinkTest, AnEventOfAnotherCallEndsTheCallAndTheConnection) {
  HandmadeWorker worker([](auto* writer, uint32_t place) { writer->Write(Tokens(10, place + 7)); });
  ExpectDamageSeen(worker, /*events_before=*/0);
}

TEST(DamagedLinkTest, ABadEventThatArrivedWholeEndsTheCallAlone) {
  HandmadeWorker worker([](auto* writer, uint32_t place) { writer->Write(Tokens(-5, place)); });
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  const auto [status, num_events] = CallOnce(router);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_FALSE(router.inbox.Next<WorkerDown>(absl::Seconds(1)).has_value());
}

TEST(DamagedLinkTest, AWorkersOwnRefusalOfARebindEndsTheCallAlone) {
  HandmadeWorker worker([](auto* writer, uint32_t place) { writer->Write(Alive(0, place)); });
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenDecode(1, 0, SampleDecode());
  router.links.Rebind(1, WireSamples(1).Rebind());
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_TRUE(absl::IsUnavailable(closed->status)) << closed->status;
  EXPECT_FALSE(router.inbox.Next<WorkerDown>(absl::Seconds(1)).has_value());
}

TEST(DamagedLinkTest, AWatchThatIsSilentEndsTheConnection) {
  HandmadeWorker worker([](auto*, uint32_t) {}, /*watch_is_silent=*/true);
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  EXPECT_TRUE(router.inbox.Next<WorkerDown>(absl::Seconds(15)).has_value());
}

TEST(DamagedLinkTest, ACallWithoutSignsOfLifeIsUnavailableAfterSeconds) {
  HandmadeWorker worker([](auto* writer, uint32_t place) { writer->Write(Alive(0, place)); });
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  const absl::Time begin = absl::Now();
  const auto [status, num_events] = CallOnce(router);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_GT(absl::Now() - begin, absl::Seconds(3));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
  ExpectANewConnection(worker, router);
}

TEST(DamagedLinkTest, ACallThatHasNothingToSayStaysOpen) {
  TestWorker worker(Role::kDecode);
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenDecode(1, 0, SampleDecode());
  ASSERT_TRUE(worker.inbox.Next<DecodeOpened>().has_value());
  // The wait is the subject: longer than a call may be silent.
  EXPECT_FALSE(router.inbox.Next<CallClosed>(absl::Seconds(8)).has_value());
}

}  // namespace
}  // namespace baton
