#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "baton/v1/cluster.grpc.pb.h"
#include "baton/v1/decode.grpc.pb.h"
#include "common/rpc/connection.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"
#include "tests/unit/common/rpc/handmade_session.h"
#include "tests/unit/common/rpc/test_cluster.h"

namespace baton {

// Says something on a call whose events begin at `place`.
using Say = std::function<void(grpc::ServerWriter<v1::DecodeEvent>* writer, uint32_t place)>;

inline void AwaitCancel(grpc::ServerContext* context) {
  while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
}

// What a handmade worker does otherwise than a good one.
struct Habits {
  bool watch_is_silent = false;
  absl::Duration status_interval = absl::Milliseconds(100);
  // Done to a message after it was sealed.
  std::function<void(v1::HelloResponse*)> spoil_hello = [](v1::HelloResponse*) {};
  std::function<void(v1::WorkerStatus*)> spoil_status = [](v1::WorkerStatus*) {};
  // The answer to a Rebind; OK = none ever. By default that of a worker whose inbox is full.
  absl::Status rebind_answer = absl::ResourceExhaustedError("full");
  // Serves sessions by this, and says so.
  std::function<void(WorkersEnd& end)> session;
};

// A decode worker that says on each call what the test wants, without anything of Baton's server.
class HandmadeWorker : public v1::Decode::Service, public v1::Cluster::Service {
 public:
  explicit HandmadeWorker(Say say, Habits habits = {})
      : say_(std::move(say)), habits_(std::move(habits)) {
    grpc::ServerBuilder builder;
    // As a worker's, or the library ends a silent connection itself for its pings.
    ApplyServerSettings(/*max_streams_per_connection=*/100, &builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<v1::Decode::Service*>(this));
    builder.RegisterService(static_cast<v1::Cluster::Service*>(this));
    if (habits_.session) builder.RegisterService(&sessions_);
    server_ = builder.BuildAndStart();
  }
  ~HandmadeWorker() override { server_->Shutdown(DeadlineAfter(Duration::zero())); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  size_t num_connections() {
    absl::MutexLock lock(&mutex_);
    return peers_.size();
  }
  int num_hellos() {
    absl::MutexLock lock(&mutex_);
    return num_hellos_;
  }

  grpc::Status Hello(grpc::ServerContext* context, const v1::HelloRequest*,
                     v1::HelloResponse* response) override {
    ToProto(HelloOf(Role::kDecode, 7), response);
    response->set_serves_sessions(habits_.session != nullptr);
    Seal(response);
    habits_.spoil_hello(response);
    absl::MutexLock lock(&mutex_);
    peers_.insert(context->peer());
    ++num_hellos_;
    return grpc::Status::OK;
  }

  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest*,
                     grpc::ServerWriter<v1::WorkerStatus>* writer) override {
    v1::WorkerStatus status;
    ToProto(WorkerStatus{.incarnation = 7}, &status);
    Seal(&status);
    habits_.spoil_status(&status);
    while (!context->IsCancelled()) {
      if (!habits_.watch_is_silent) writer->Write(status);
      absl::SleepFor(habits_.status_interval);
    }
    return grpc::Status::OK;
  }

  grpc::Status Rebind(grpc::ServerContext* context, const v1::RebindRequest*,
                      v1::RebindResponse*) override {
    const absl::Status& answer = habits_.rebind_answer;
    if (answer.ok()) AwaitCancel(context);
    context->AddTrailingMetadata(kReasonKey, ReasonOf(answer.code()));
    return ToGrpc(answer);
  }

  grpc::Status Decode(grpc::ServerContext* context, const v1::DecodeRequest* request,
                      grpc::ServerWriter<v1::DecodeEvent>* writer) override {
    say_(writer, request->crc32c());
    AwaitCancel(context);
    return grpc::Status::OK;
  }

 private:
  const Say say_;
  const Habits habits_;
  HandmadeSessions sessions_{habits_.session};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mutex_;
  std::set<std::string> peers_ ABSL_GUARDED_BY(mutex_);
  int num_hellos_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton
