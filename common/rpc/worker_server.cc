#include "common/rpc/worker_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/v1/cluster.grpc.pb.h"
#include "baton/v1/decode.grpc.pb.h"
#include "baton/v1/prefill.grpc.pb.h"
#include "common/base/status.h"
#include "common/base/this_thread.h"
#include "common/rpc/call_events.h"
#include "common/rpc/cluster_tls.h"
#include "common/rpc/connection.h"
#include "common/rpc/gate.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"
#include "common/rpc/server_call.h"
#include "common/rpc/silence.h"

namespace baton {
namespace {

constexpr std::chrono::milliseconds kStatusTick(50);
constexpr int kTicksPerHeartbeat = 8;  // 400 ms, so that a late tick stays below 500 ms.
constexpr int kTicksPerBeat = kBeatInterval / kStatusTick;

using DecodeCall = ServerCall<v1::DecodeEvent>;
using PrefillCall = ServerCall<v1::PrefillEvent>;
using StatusCall = ServerCall<v1::WorkerStatus>;
using AnyCall = std::variant<std::shared_ptr<DecodeCall>, std::shared_ptr<PrefillCall>>;

void FinishWith(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor,
                const absl::Status& status) {
  if (!status.ok()) context->AddTrailingMetadata(kReasonKey, ReasonOf(status.code()));
  reactor->Finish(ToGrpc(status));
}

grpc::ServerUnaryReactor* FinishUnary(grpc::CallbackServerContext* context,
                                      const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  FinishWith(context, reactor, status);
  return reactor;
}

// An empty event of that call.
template <typename Event>
Event EventOf(const std::shared_ptr<ServerCall<Event>>&) {
  return {};
}

// One Audit call. Finishes it exactly once, also when nobody answers; gRPC keeps the context until
// then.
class PendingAudit {
 public:
  PendingAudit(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor)
      : context_(context), reactor_(reactor) {}
  ~PendingAudit() { Finish(absl::UnavailableError("the worker is shutting down")); }
  PendingAudit(const PendingAudit&) = delete;
  PendingAudit& operator=(const PendingAudit&) = delete;

  void Finish(const absl::Status& status) {
    if (auto* reactor = std::exchange(reactor_, nullptr)) FinishWith(context_, reactor, status);
  }

 private:
  grpc::CallbackServerContext* const context_;
  grpc::ServerUnaryReactor* reactor_;
};

// Sends the node's status to all watchers: on change, at most one each tick, and as a heartbeat.
// Calls `beat` each second.
class StatusBroadcast {
 public:
  StatusBroadcast(std::function<WorkerStatus()> status, int max_watchers,
                  std::function<void()> beat)
      : status_(std::move(status)), max_watchers_(max_watchers), beat_(std::move(beat)) {}
  ~StatusBroadcast() { Stop(); }

  void Start() {
    thread_ = std::jthread([this] {
      NameThisThread("status");
      Run();
    });
  }

  void Stop() {
    {
      absl::MutexLock lock(&mutex_);
      stopped_ = true;
    }
    if (thread_.joinable()) thread_.join();
  }

  grpc::ServerWriteReactor<v1::WorkerStatus>* Add(grpc::CallbackServerContext* context) {
    absl::MutexLock lock(&mutex_);
    const uint64_t key = ++last_key_;
    auto call = StatusCall::Create(context, {.on_done = [this, key] { Remove(key); }});
    if (stopped_ || std::ssize(watchers_) >= max_watchers_) {
      call->Close(absl::ResourceExhaustedError("too many watchers: end one of them"));
    } else {
      watchers_[key] = {.call = call};
    }
    return call.get();
  }

  // Of those that watch; theirs ends of whom `is_trusted` is false.
  void AbandonUnless(const std::function<bool(const grpc::AuthContext&)>& is_trusted) {
    for (const auto& call : Calls()) call->AbandonUnless(is_trusted);
  }

  // After it every watcher's stream ends.
  void CloseAll() {
    for (const auto& call : Calls()) {
      call->Close(absl::UnavailableError("the worker is shutting down"));
    }
  }

 private:
  struct Watcher {
    std::shared_ptr<StatusCall> call;
    std::string last;                // What was sent last, serialised.
    int ticks = kTicksPerHeartbeat;  // Since then.
  };

  std::vector<std::shared_ptr<StatusCall>> Calls() {
    std::vector<std::shared_ptr<StatusCall>> calls;
    absl::MutexLock lock(&mutex_);
    for (auto& [key, watcher] : watchers_) calls.push_back(watcher.call);
    return calls;
  }

  void Remove(uint64_t key) {
    absl::MutexLock lock(&mutex_);
    watchers_.erase(key);
  }

  void Run() {
    const auto wake = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopped_; };
    for (int tick = 1;; ++tick) {
      if (tick % kTicksPerBeat == 0) beat_();
      v1::WorkerStatus status;
      std::vector<std::shared_ptr<StatusCall>> due;
      {
        absl::MutexLock lock(&mutex_);
        if (mutex_.AwaitWithTimeout(absl::Condition(&wake), absl::FromChrono(kStatusTick))) return;
        if (watchers_.empty()) continue;
        ToProto(status_(), &status);
        Seal(&status);
        due = TakeDue(status.SerializeAsString());
      }
      for (const auto& call : due) call->Write(status);
    }
  }

  // A watcher that does not read gets the newest status later, never a backlog.
  std::vector<std::shared_ptr<StatusCall>> TakeDue(const std::string& bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<std::shared_ptr<StatusCall>> due;
    for (auto& [key, watcher] : watchers_) {
      ++watcher.ticks;
      if (watcher.ticks < kTicksPerHeartbeat && bytes == watcher.last) continue;
      if (!watcher.call->Idle()) continue;
      due.push_back(watcher.call);
      watcher.last = bytes;
      watcher.ticks = 0;
    }
    return due;
  }

  const std::function<WorkerStatus()> status_;
  const int max_watchers_;
  const std::function<void()> beat_;
  absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, Watcher> watchers_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_key_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

}  // namespace

class WorkerServer::Impl : public v1::Decode::CallbackService,
                           public v1::Prefill::CallbackService,
                           public v1::Cluster::CallbackService {
 public:
  Impl(WorkerServerOptions options, WorkerInbox inbox)
      : options_(std::move(options)),
        inbox_(inbox),
        gate_(options_.hello.incarnation, {.vocab_size = options_.hello.vocab_size,
                                           .max_model_len = options_.hello.max_model_len}),
        broadcast_(options_.status, options_.max_watchers, [this] { Beat(); }) {}

  ~Impl() override { Shutdown(Duration::zero()); }

  absl::Status Start() {
    grpc::ServerBuilder builder;
    ApplyServerSettings(options_.max_streams_per_connection, &builder);
    const std::string address = absl::StrCat(options_.host, ":", options_.port);
    ASSIGN_OR_RETURN(const auto credentials, ServerCredentialsOf(options_.tls));
    builder.AddListeningPort(address, credentials, &port_);
    // Of whom is trusted no more AbandonUntrusted ends the other calls, and he may open none.
    if (options_.tls != nullptr) options_.tls->GuardServer(&builder);
    if (std::holds_alternative<Inbox<DecodeMail>*>(inbox_)) {
      builder.RegisterService(static_cast<v1::Decode::CallbackService*>(this));
    } else {
      builder.RegisterService(static_cast<v1::Prefill::CallbackService*>(this));
    }
    builder.RegisterService(static_cast<v1::Cluster::CallbackService*>(this));
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return absl::UnavailableError(absl::StrCat("--port ", options_.port, ": cannot listen on ",
                                                 address, "; choose a free port, or 0 for any"));
    }
    server_->GetHealthCheckService()->SetServingStatus(true);
    broadcast_.Start();
    return absl::OkStatus();
  }

  int port() const { return port_; }

  void Emit(CallId id, WorkerEvent event) {
    AnyCall call;
    {
      absl::MutexLock lock(&mutex_);
      const auto it = calls_.find(id);
      if (it == calls_.end()) return;
      call = it->second;
    }
    const auto write = [](const auto& one, const auto& e) {
      auto proto = EventOf(one);
      // An event of the other kind of call has no form here.
      if constexpr (requires { ToProto(e, &proto); }) {
        ToProto(e, &proto);
        one->Write(std::move(proto));
      }
    };
    std::visit(write, call, event);
  }

  void Close(CallId id, absl::Status status) {
    AnyCall call;
    {
      absl::MutexLock lock(&mutex_);
      const auto node = calls_.extract(id);
      if (node.empty()) return;
      call = node.mapped();
    }
    std::visit([&](auto& c) { c->Close(std::move(status)); }, call);
  }

  void Shutdown(Duration grace) {
    if (server_ == nullptr) return;
    server_->GetHealthCheckService()->SetServingStatus(false);
    broadcast_.CloseAll();
    server_->Shutdown(DeadlineAfter(grace));
    broadcast_.Stop();
    server_->Wait();
    server_.reset();
  }

  grpc::ServerWriteReactor<v1::DecodeEvent>* Decode(grpc::CallbackServerContext* context,
                                                    const v1::DecodeRequest* request) override {
    return Accept<DecodeMail, DecodeCall, DecodeOpened>(context, *request);
  }

  grpc::ServerWriteReactor<v1::PrefillEvent>* Prefill(grpc::CallbackServerContext* context,
                                                      const v1::PrefillRequest* request) override {
    return Accept<PrefillMail, PrefillCall, PrefillOpened>(context, *request);
  }

  // What comes of a Rebind or a Send is told on the call that it is about.
  grpc::ServerUnaryReactor* Rebind(grpc::CallbackServerContext* context,
                                   const v1::RebindRequest* request, v1::RebindResponse*) override {
    return FinishUnary(context, OfferTaken<DecodeMail, RebindAsked>(*request));
  }

  grpc::ServerUnaryReactor* Send(grpc::CallbackServerContext* context,
                                 const v1::SendRequest* request, v1::SendResponse*) override {
    return FinishUnary(context, OfferTaken<PrefillMail, SendAsked>(*request));
  }

  grpc::ServerUnaryReactor* Audit(grpc::CallbackServerContext* context,
                                  const v1::AuditRequest* request,
                                  v1::AuditResponse* response) override {
    if (const absl::Status status = CheckIfGiven(request->expected_incarnation()); !status.ok()) {
      return FinishUnary(context, status);
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    // gRPC keeps context and response until Finish, also of a call that was cancelled. A node that
    // stops without an answer drops the closure, which then finishes the call.
    auto pending = std::make_shared<PendingAudit>(context, reactor);
    const WorkerAuditAsked asked{[pending, response](WorkerAudit audit) {
      ToProto(audit, response);
      pending->Finish(absl::OkStatus());
    }};
    if (!std::visit([&](auto* inbox) { return inbox->Offer(asked); }, inbox_)) {
      pending->Finish(absl::ResourceExhaustedError("the worker's inbox is full: try later"));
    }
    return reactor;
  }

  grpc::ServerUnaryReactor* Hello(grpc::CallbackServerContext* context,
                                  const v1::HelloRequest* request,
                                  v1::HelloResponse* response) override {
    const int32_t version = request->protocol_version();
    if (version != 0 && version < kProtocolVersion - 1) {  // 0: a tool, which may look.
      return FinishUnary(context, absl::FailedPreconditionError(absl::StrCat(
                                      "protocol_version = ", version, ": this worker speaks ",
                                      kProtocolVersion, "; update the caller")));
    }
    ToProto(options_.hello, response);
    Seal(response);
    return FinishUnary(context, absl::OkStatus());
  }

  grpc::ServerWriteReactor<v1::WorkerStatus>* Watch(grpc::CallbackServerContext* context,
                                                    const v1::WatchRequest* request) override {
    if (const absl::Status status = CheckIfGiven(request->expected_incarnation()); !status.ok()) {
      auto call = StatusCall::Create(context, {});
      call->Close(status);
      return call.get();
    }
    return broadcast_.Add(context);
  }

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request, v1::DrainResponse*) override {
    const absl::Status status = CheckIfGiven(request->expected_incarnation());
    if (status.ok()) Post(inbox_, baton::Drain{});
    return FinishUnary(context, status);
  }

 private:
  // Who means no process in particular means any.
  absl::Status CheckIfGiven(Incarnation expected) const {
    return expected == 0 ? absl::OkStatus() : gate_.CheckIncarnation(expected);
  }

  // Only this kind of worker has a service that takes such mail.
  template <typename Mail>
  absl::Status Offer(Mail mail) {
    if (std::get<Inbox<Mail>*>(inbox_)->Offer(std::move(mail))) return absl::OkStatus();
    return absl::ResourceExhaustedError("the worker's inbox is full: try another worker or later");
  }

  // A Rebind or a Send.
  template <typename Mail, typename Asked, typename Request>
  absl::Status OfferTaken(const Request& request) {
    ASSIGN_OR_RETURN(auto valid, gate_.Take(request));
    return Offer<Mail>(Asked{std::move(valid)});
  }

  // Registers the call before it is offered, so that the node may answer at once.
  template <typename Mail, typename Call, typename Opened, typename Request>
  Call* Accept(grpc::CallbackServerContext* context, const Request& request) {
    const CallId id = next_call_.fetch_add(1) + 1;
    auto call = Call::Create(
        context,
        {.seal = [sealer = EventSealer(request.crc32c())](auto* event) mutable {
           sealer.Seal(event);
         },
         .on_broken =
             [this, id] {
               Forget(id);
               Post(inbox_, CallBroken{.call = id});
             }});
    const absl::Status status = Take<Mail, Opened>(id, call, request);
    if (!status.ok()) {
      Forget(id);
      call->Close(status);
    }
    return call.get();  // Owns itself until OnDone, which gRPC calls after this returns.
  }

  template <typename Mail, typename Opened, typename Call, typename Request>
  absl::Status Take(CallId id, const std::shared_ptr<Call>& call, const Request& request) {
    ASSIGN_OR_RETURN(auto valid, gate_.Take(request));
    {
      absl::MutexLock lock(&mutex_);
      if (std::ssize(calls_) >= options_.max_open_calls) {
        return absl::ResourceExhaustedError("too many open calls: try another worker or later");
      }
      calls_[id] = call;
    }
    return Offer<Mail>(Opened{.call = id, .request = std::move(valid)});
  }

  // Each second, also of calls that were let in while the CAs changed.
  void AbandonUntrusted(const std::vector<AnyCall>& calls) {
    if (options_.tls == nullptr) return;
    const auto is_trusted = [this](const grpc::AuthContext& peer) {
      return options_.tls->TrustsPeer(peer);
    };
    broadcast_.AbandonUnless(is_trusted);
    for (const AnyCall& call : calls) {
      std::visit([&](const auto& one) { one->AbandonUnless(is_trusted); }, call);
    }
  }

  void Beat() {
    std::vector<AnyCall> calls;
    {
      absl::MutexLock lock(&mutex_);
      for (const auto& [id, call] : calls_) calls.push_back(call);
    }
    const auto beat = [](const auto& one) {
      auto alive = EventOf(one);
      alive.mutable_alive();
      one->WriteIfIdle(std::move(alive));
    };
    for (const AnyCall& call : calls) std::visit(beat, call);
    AbandonUntrusted(calls);
  }

  void Forget(CallId id) {
    absl::MutexLock lock(&mutex_);
    calls_.erase(id);
  }

  const WorkerServerOptions options_;
  const WorkerInbox inbox_;
  const RequestGate gate_;
  StatusBroadcast broadcast_;
  std::atomic<CallId> next_call_ = 0;
  absl::Mutex mutex_;
  absl::flat_hash_map<CallId, AnyCall> calls_ ABSL_GUARDED_BY(mutex_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

WorkerServer::WorkerServer(WorkerServerOptions options, WorkerInbox inbox)
    : impl_(std::make_unique<Impl>(std::move(options), inbox)) {}

WorkerServer::~WorkerServer() = default;

absl::Status WorkerServer::Start() { return impl_->Start(); }

int WorkerServer::port() const { return impl_->port(); }

void WorkerServer::Emit(CallId call, WorkerEvent event) { impl_->Emit(call, std::move(event)); }

void WorkerServer::Close(CallId call, absl::Status status) {
  impl_->Close(call, std::move(status));
}

void WorkerServer::Shutdown(Duration grace) { impl_->Shutdown(grace); }

}  // namespace baton
