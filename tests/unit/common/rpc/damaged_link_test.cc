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

using Writer = grpc::ServerWriter<v1::DecodeEvent>;

void AwaitCancel(grpc::ServerContext* context) {
  while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
}

// A decode worker that says on each call what the test wants, without anything of Baton's server.
class HandmadeWorker : public v1::Decode::Service, public v1::Cluster::Service {
 public:
  explicit HandmadeWorker(std::function<void(Writer*)> say) : say_(std::move(say)) {
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
    writer->Write(status);
    AwaitCancel(context);
    return grpc::Status::OK;
  }

  grpc::Status Decode(grpc::ServerContext* context, const v1::DecodeRequest*,
                      Writer* writer) override {
    say_(writer);
    AwaitCancel(context);
    return grpc::Status::OK;
  }

 private:
  const std::function<void(Writer*)> say_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mutex_;
  std::set<std::string> peers_ ABSL_GUARDED_BY(mutex_);
};

v1::DecodeEvent Tokens(int32_t position) {
  v1::DecodeEvent event;
  ToProto(TokensEvent{.outputs = {{.position = position, .token = 3}}}, &event);
  Seal(&event);
  return event;
}

v1::DecodeEvent Alive(uint64_t num_events) {
  v1::DecodeEvent event;
  event.mutable_alive()->set_num_events(num_events);
  Seal(&event);
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

TEST(DamagedLinkTest, ADamagedEventEndsTheCallAndTheConnection) {
  HandmadeWorker worker([](Writer* writer) {
    writer->Write(Tokens(10));
    v1::DecodeEvent damaged = Tokens(11);
    damaged.mutable_tokens()->mutable_outputs(0)->set_token(2);
    writer->Write(damaged);
  });
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  const auto [status, num_events] = CallOnce(router);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_EQ(num_events, 1);
  ExpectANewConnection(worker, router);
}

TEST(DamagedLinkTest, ASignOfLifeShowsThatAnEventIsMissing) {
  HandmadeWorker worker([](Writer* writer) {
    writer->Write(Tokens(10));
    writer->Write(Alive(1));
    writer->Write(Alive(2));  // The second event was lost.
  });
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  const auto [status, num_events] = CallOnce(router);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_EQ(num_events, 1);
  ExpectANewConnection(worker, router);
}

TEST(DamagedLinkTest, ACallWithoutSignsOfLifeIsUnavailableAfterSeconds) {
  HandmadeWorker worker([](Writer* writer) { writer->Write(Alive(0)); });
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
