#include "common/rpc/worker_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/cluster.grpc.pb.h"
#include "baton/v1/decode.grpc.pb.h"
#include "baton/v1/prefill.grpc.pb.h"
#include "baton/v1/session.grpc.pb.h"
#include "common/base/status.h"
#include "common/rpc/call_events.h"
#include "common/rpc/caller_protocols.h"
#include "common/rpc/cluster_tls.h"
#include "common/rpc/connection.h"
#include "common/rpc/ended_keys.h"
#include "common/rpc/gate.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/pending_audit.h"
#include "common/rpc/seal.h"
#include "common/rpc/server_call.h"
#include "common/rpc/session_server.h"
#include "common/rpc/status_broadcast.h"

namespace baton {
namespace {

// A call of a session has the session's number above its own.
constexpr int kCallBits = 40;
constexpr uint64_t kCallMask = (uint64_t{1} << kCallBits) - 1;
constexpr size_t kMaxSessions = 1024;

using DecodeCall = ServerCall<v1::DecodeEvent>;
using PrefillCall = ServerCall<v1::PrefillEvent>;
using StatusCall = ServerCall<v1::WorkerStatus>;
using AnyCall = std::variant<std::shared_ptr<DecodeCall>, std::shared_ptr<PrefillCall>>;

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

}  // namespace

class WorkerServer::Impl : public v1::Decode::CallbackService,
                           public v1::Prefill::CallbackService,
                           public v1::Session::CallbackService,
                           public v1::Cluster::CallbackService {
 public:
  Impl(WorkerServerOptions options, WorkerInbox inbox)
      : options_(std::move(options)),
        inbox_(inbox),
        gate_(options_.hello.incarnation, {.vocab_size = options_.hello.vocab_size,
                                           .max_model_len = options_.hello.max_model_len}),
        unsent_(std::make_shared<SessionMemory>(options_.max_unsent_bytes)),
        opens_(std::make_shared<SessionMemory>(options_.max_open_bytes)),
        callers_(options_.data_ranks),
        broadcast_({.status = options_.status,
                    .node_lives = [this] { return NodeLives(options_.in_turn_for); },
                    .beat = [this] { Beat(); }},
                   options_.max_watchers) {}

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
    if (options_.serves_sessions) {
      builder.RegisterService(static_cast<v1::Session::CallbackService*>(this));
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
    if (id > kCallMask) return EmitInSession(id, event);
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
    if (id > kCallMask) {
      const auto session = SessionOf(id);
      return session == nullptr ? void() : session->End(id & kCallMask, status);
    }
    AnyCall call;
    {
      absl::MutexLock lock(&mutex_);
      const auto node = calls_.extract(id);
      if (node.empty()) return;
      call = node.mapped();
    }
    std::visit([&](auto& c) { c->Close(std::move(status)); }, call);
  }

  void Flush() {
    for (const auto& session : Sessions()) session->Flush();
  }

  void Shutdown(Duration grace) {
    if (server_ == nullptr) return;
    server_->GetHealthCheckService()->SetServingStatus(false);
    broadcast_.CloseAll();
    {
      absl::MutexLock lock(&mutex_);
      is_closing_ = true;
    }
    for (const auto& session : Sessions()) session->Close(ShuttingDown());
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

  grpc::ServerBidiReactor<v1::SessionFrame, v1::SessionFrame>* Open(
      grpc::CallbackServerContext* context) override {
    absl::MutexLock lock(&mutex_);
    const uint64_t number = ++last_session_;
    auto session = SessionServer::Create(
        context, {.incarnation = options_.hello.incarnation,
                  .hooks = {.on_asked =
                                [this, number](uint64_t call, const v1::CallAsked& asked) {
                                  return Take(number << kCallBits | call, asked);
                                },
                            .on_broken =
                                [this, number](uint64_t call, bool session_ended) {
                                  BreakCall(number, call, session_ended);
                                },
                            .on_replaced = [this](uint32_t key) { EndSession(key); },
                            .has_ended = [this](uint32_t key) { return ended_keys_.Contains(key); },
                            .on_done = [this, number] { ForgetSession(number); }},
                  .unsent = unsent_,
                  .opens = opens_});
    if (is_closing_) {
      session->Close(ShuttingDown());
    } else if (sessions_.size() >= kMaxSessions) {
      session->Close(absl::ResourceExhaustedError("too many sessions: end one of them"));
    } else {
      sessions_[number] = session;
    }
    return session.get();  // Owns itself until OnDone.
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
    if (version < 0) {  // 0: a tool, which may look.
      return FinishUnary(context, WireError("protocol_version", version, "counted from 1"));
    }
    if (version != 0 && !NodeLives(options_.in_turn_for)) {
      return FinishUnary(context, absl::UnavailableError("the worker's node stands still"));
    }
    if (const absl::Status status = callers_.Check(version); !status.ok()) {
      return FinishUnary(context, status);
    }
    callers_.Note(context->peer(), version);
    ToProto(options_.hello, response);
    if (version != 0) response->set_protocol_version(std::min(version, kProtocolVersion));
    // They would pair equal numbers of ranks only.
    if (version != 0 && version < kFirstProtocolOfRanks) response->set_tp_size(1);
    response->set_serves_sessions(options_.serves_sessions);
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
  absl::Status OfferTaken(const Request& request, Came came = Came::kAlone) {
    ASSIGN_OR_RETURN(auto valid, gate_.Take(request, came));
    return Offer<Mail>(Asked{std::move(valid)});
  }

  static absl::Status ShuttingDown() {
    return absl::UnavailableError("the worker is shutting down");
  }

  // What a router asks of a call in its session.
  absl::Status Take(CallId id, const v1::CallAsked& asked) {
    const bool decodes = std::holds_alternative<Inbox<DecodeMail>*>(inbox_);
    if (asked.has_decode() && decodes) {
      return TakeOpened<DecodeMail, DecodeOpened>(id, asked.decode());
    }
    if (asked.has_rebind() && decodes) {
      return OfferTaken<DecodeMail, RebindAsked>(asked.rebind(), Came::kInSession);
    }
    if (asked.has_prefill() && !decodes) {
      return TakeOpened<PrefillMail, PrefillOpened>(id, asked.prefill());
    }
    if (asked.has_send() && !decodes) {
      return OfferTaken<PrefillMail, SendAsked>(asked.send(), Came::kInSession);
    }
    return absl::UnimplementedError("this kind of worker does not take that");
  }

  template <typename Mail, typename Opened, typename Request>
  absl::Status TakeOpened(CallId id, const Request& request) {
    RETURN_IF_ERROR(gate_.CheckIncarnation(request.expected_incarnation()));
    ASSIGN_OR_RETURN(auto valid, gate_.Take(request, Came::kInSession));
    // This one is among its session's already.
    if (NumCalls() > options_.max_open_calls) return TooManyCalls();
    return Offer<Mail>(Opened{.call = id, .request = std::move(valid)});
  }

  int64_t NumCalls() {
    int64_t num_calls = 0;
    for (const auto& session : Sessions()) num_calls += session->num_calls();
    absl::MutexLock lock(&mutex_);
    return num_calls + std::ssize(calls_);
  }

  static absl::Status TooManyCalls() {
    return absl::ResourceExhaustedError("too many open calls: try another worker or later");
  }

  std::shared_ptr<SessionServer> SessionOf(CallId id) {
    absl::MutexLock lock(&mutex_);
    const auto it = sessions_.find(id >> kCallBits);
    return it == sessions_.end() ? nullptr : it->second;
  }

  std::vector<std::shared_ptr<SessionServer>> Sessions() {
    std::vector<std::shared_ptr<SessionServer>> sessions;
    absl::MutexLock lock(&mutex_);
    for (const auto& [number, session] : sessions_) sessions.push_back(session);
    return sessions;
  }

  // Kept first: a session that is not found by its key yet will look there.
  void EndSession(uint32_t key) {
    ended_keys_.Add(key);
    for (const auto& session : Sessions()) session->AbandonIf(key);
  }

  void BreakCall(uint64_t number, uint64_t call, bool with_session) {
    Post(inbox_, CallBroken{number << kCallBits | call, /*session_ended=*/with_session});
  }

  void ForgetSession(uint64_t number) {
    absl::MutexLock lock(&mutex_);
    sessions_.erase(number);
  }

  void EmitInSession(CallId id, const WorkerEvent& event) {
    const auto session = SessionOf(id);
    if (session == nullptr) return;
    v1::CallTold told;
    const bool decodes = std::holds_alternative<Inbox<DecodeMail>*>(inbox_);
    const auto write = [&](const auto& one) {
      if constexpr (requires { ToProto(one, told.mutable_decode()); }) {
        if (decodes) return ToProto(one, told.mutable_decode());
      }
      if constexpr (requires { ToProto(one, told.mutable_prefill()); }) {
        if (!decodes) return ToProto(one, told.mutable_prefill());
      }
    };
    std::visit(write, event);
    session->Tell(id & kCallMask, std::move(told));
  }

  // Registers the call before it is offered, so that the node may answer at once.
  template <typename Mail, typename Call, typename Opened, typename Request>
  Call* Accept(grpc::CallbackServerContext* context, const Request& request) {
    const CallId id = next_call_.fetch_add(1) + 1;
    EventSealer sealer(request.crc32c(), callers_.Of(context->peer()));
    auto call =
        Call::Create(context, {.seal = [sealer](auto* event) mutable { return sealer.Seal(event); },
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
    if (NumCalls() >= options_.max_open_calls) return TooManyCalls();
    {
      absl::MutexLock lock(&mutex_);
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
    for (const auto& session : Sessions()) session->AbandonUnless(is_trusted);
    for (const AnyCall& call : calls) {
      std::visit([&](const auto& one) { one->AbandonUnless(is_trusted); }, call);
    }
  }

  void Beat() {
    const bool node_lives = NodeLives(options_.in_turn_for);
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
    for (size_t i = 0; node_lives && i < calls.size(); ++i) std::visit(beat, calls[i]);
    for (const auto& session : Sessions()) session->Beat(node_lives);
    AbandonUntrusted(calls);
  }

  void Forget(CallId id) {
    absl::MutexLock lock(&mutex_);
    calls_.erase(id);
  }

  const WorkerServerOptions options_;
  const WorkerInbox inbox_;
  const RequestGate gate_;
  const std::shared_ptr<SessionMemory> unsent_;
  const std::shared_ptr<SessionMemory> opens_;
  EndedKeys ended_keys_;
  CallerProtocols callers_;
  StatusBroadcast broadcast_;
  std::atomic<CallId> next_call_ = 0;
  absl::Mutex mutex_;
  absl::flat_hash_map<CallId, AnyCall> calls_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<SessionServer>> sessions_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_session_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_closing_ ABSL_GUARDED_BY(mutex_) = false;
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

void WorkerServer::Flush() { impl_->Flush(); }

void WorkerServer::Shutdown(Duration grace) { impl_->Shutdown(grace); }

}  // namespace baton
