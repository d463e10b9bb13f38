#include "common/rpc/worker_links.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/call_events.h"
#include "common/rpc/client_call.h"
#include "common/rpc/connection.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"
#include "common/rpc/worker_link.h"

namespace baton {
namespace {

constexpr Duration kTellLimit = std::chrono::seconds(2);

using DecodeClientCall = ClientCall<v1::DecodeRequest, v1::DecodeEvent>;
using PrefillClientCall = ClientCall<v1::PrefillRequest, v1::PrefillEvent>;

}  // namespace

class WorkerLinks::Impl {
 public:
  Impl(WorkerLinksOptions options, Inbox<RouterMail>* inbox)
      : max_calls_to_worker_(options.max_calls_to_worker), inbox_(inbox) {
    for (const WorkerAddress& address : options.workers) {
      links_.push_back(std::make_unique<WorkerLink>(
          WorkerLink::Options{.worker = static_cast<int32_t>(links_.size()),
                              .address = address,
                              .tls = options.tls,
                              .retired = &retired_,
                              .on_lost = [this](const WorkerStubs* lost) { GiveUpOver(lost); },
                              .on_idle = [this] { Release(); }},
          inbox));
    }
    absl::MutexLock lock(&mutex_);
    active_ = static_cast<int>(links_.size());
    num_calls_.resize(links_.size());
  }

  ~Impl() { Stop(); }

  void Start() {
    for (const auto& link : links_) link->Start();
    absl::MutexLock lock(&mutex_);
    SetSweep();
  }

  void Open(CallId id, int32_t index, const DecodeRequest& request) {
    OpenCallTo<v1::DecodeRequest, DecodeClientCall>(
        id, index, request, [](const WorkerStubs& worker, auto* call) {
          worker.decode->async()->Decode(call->context(), call->request(), call);
        });
  }

  void Open(CallId id, int32_t index, const PrefillRequest& request) {
    OpenCallTo<v1::PrefillRequest, PrefillClientCall>(
        id, index, request, [](const WorkerStubs& worker, auto* call) {
          worker.prefill->async()->Prefill(call->context(), call->request(), call);
        });
  }

  void Cancel(CallId id) {
    std::shared_ptr<OpenCall> call;
    {
      absl::MutexLock lock(&mutex_);
      const auto it = calls_.find(id);
      if (it == calls_.end()) return;
      call = it->second.call;
    }
    call->Cancel();
  }

  void Tell(CallId id, const RebindRequest& request) {
    TellWorker<v1::RebindRequest, v1::RebindResponse>(
        id, request,
        [](const WorkerStubs& worker, auto* context, auto* sent, auto* answer, auto done) {
          worker.decode->async()->Rebind(context, sent, answer, std::move(done));
        });
  }

  void Tell(CallId id, const SendRequest& request) {
    TellWorker<v1::SendRequest, v1::SendResponse>(
        id, request,
        [](const WorkerStubs& worker, auto* context, auto* sent, auto* answer, auto done) {
          worker.prefill->async()->Send(context, sent, answer, std::move(done));
        });
  }

  void Stop() {
    std::vector<std::shared_ptr<OpenCall>> open;
    {
      absl::MutexLock lock(&mutex_);
      stopped_ = true;
      for (auto& [id, entry] : calls_) open.push_back(entry.call);
      if (sweep_ != nullptr) sweep_->Cancel();
    }
    for (const auto& call : open) call->Cancel();
    open.clear();
    for (const auto& link : links_) link->Stop();
    const auto quiet = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return active_ == 0; };
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&quiet));
  }

 private:
  struct Entry {
    std::shared_ptr<OpenCall> call;
    int32_t worker = 0;
    WorkerLink::Peer peer;
  };
  template <typename Request, typename Response>
  struct Told {
    grpc::ClientContext context;
    Request request;
    Response response;
  };

  template <typename Proto, typename Response, typename Request, typename StartOnStub>
  void TellWorker(CallId id, const Request& request, StartOnStub start) {
    auto told = std::make_shared<Told<Proto, Response>>();
    int32_t worker = 0;
    std::shared_ptr<const WorkerStubs> stubs;
    {
      absl::MutexLock lock(&mutex_);
      const auto it = calls_.find(id);
      if (it == calls_.end() || stopped_) return;
      worker = it->second.worker;
      stubs = it->second.peer.stubs;
      told->request.set_expected_incarnation(it->second.peer.incarnation);
      ++active_;
    }
    ToProto(request, &told->request);
    Seal(&told->request);
    told->context.set_deadline(DeadlineAfter(kTellLimit));
    start(*stubs, &told->context, &told->request, &told->response,
          [this, id, worker, stubs, told](const grpc::Status& grpc_status) mutable {
            const absl::Status status = FromGrpc(grpc_status, told->context);
            if (IsOfTheConnection(status, ReasonIn(told->context))) {
              links_[worker]->Distrust(stubs.get());
            }
            if (!status.ok()) GiveUp(id);
            told.reset();
            stubs.reset();  // After Release nobody may hold the channel here.
            Release();
          });
  }

  void GiveUp(CallId id) {
    std::shared_ptr<OpenCall> call;
    {
      absl::MutexLock lock(&mutex_);
      const auto it = calls_.find(id);
      if (it == calls_.end()) return;
      call = it->second.call;
    }
    call->GiveUp();
  }

  void GiveUpOver(const WorkerStubs* lost) {
    std::vector<std::shared_ptr<OpenCall>> calls;
    {
      absl::MutexLock lock(&mutex_);
      for (const auto& [id, entry] : calls_) {
        if (entry.peer.stubs.get() == lost) calls.push_back(entry.call);
      }
    }
    for (const auto& call : calls) call->GiveUp();
  }

  template <typename Proto, typename Call, typename Request, typename StartOnStub>
  void OpenCallTo(CallId id, int32_t index, const Request& request, StartOnStub start) {
    const WorkerLink::Peer peer = links_.at(index)->peer();
    if (peer.incarnation == 0) {
      return MailClosed(id, absl::UnavailableError("the worker is not connected"));
    }
    if (peer.incarnation != request.worker) {
      return MailClosed(
          id, absl::FailedPreconditionError("another process runs at the worker's address"));
    }
    Proto proto;
    ToProto(request, &proto);
    Seal(&proto);
    auto call = std::make_shared<Call>(
        std::move(proto), peer.limits, MaxOutputs(request),
        typename Call::Hooks{
            .on_event =
                [this, id](WorkerEvent event) {
                  inbox_->Post(WorkerEventReceived{.call = id, .event = std::move(event)});
                },
            .on_closed = [this, id](CallEvents::End end) { Closed(id, std::move(end)); },
            .on_released = [this] { Release(); }});
    {
      absl::MutexLock lock(&mutex_);
      if (stopped_) return;
      if (++num_calls_[index] > max_calls_to_worker_) {
        --num_calls_[index];
        inbox_->Post(CallClosed{
            .call = id, .status = absl::ResourceExhaustedError("too many calls to one worker")});
        return;
      }
      ++active_;
      calls_[id] = {.call = call, .worker = index, .peer = peer};
    }
    call->context()->set_deadline(DeadlineAfter(request.timeout));
    start(*peer.stubs, call.get());
    call->Start(call);
    if (links_[index]->peer().stubs != peer.stubs) GiveUpOver(peer.stubs.get());  // Lost meanwhile.
  }

  void MailClosed(CallId id, absl::Status status) {
    absl::MutexLock lock(&mutex_);
    if (!stopped_) inbox_->Post(CallClosed{.call = id, .status = std::move(status)});
  }

  void Closed(CallId id, CallEvents::End end) {
    Entry entry;
    {
      absl::MutexLock lock(&mutex_);
      const auto node = calls_.extract(id);
      if (node.empty()) return;
      entry = node.mapped();
      --num_calls_[entry.worker];
    }
    if (end.is_broken) links_[entry.worker]->Distrust(entry.peer.stubs.get());
    MailClosed(id, std::move(end.status));
  }

  // One of the things that Stop waits for is over. Nothing of this may be touched after it.
  void Release() {
    absl::MutexLock lock(&mutex_);
    --active_;
  }

  void SetSweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (stopped_) return;
    ++active_;
    sweep_ = std::make_unique<grpc::Alarm>();
    sweep_->Set(DeadlineAfter(kSweepInterval), [this](bool) { Sweep(); });
  }

  void Sweep() {
    {
      absl::MutexLock lock(&mutex_);
      for (auto& [id, entry] : calls_) entry.call->Sweep();
      for (const auto& link : links_) link->Sweep();
      SetSweep();
    }
    Release();
  }

  const int max_calls_to_worker_;
  Inbox<RouterMail>* const inbox_;
  RetiredChannels retired_;  // Outlives the links.
  std::vector<std::unique_ptr<WorkerLink>> links_;
  absl::Mutex mutex_;
  absl::flat_hash_map<CallId, Entry> calls_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Alarm> sweep_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> num_calls_ ABSL_GUARDED_BY(mutex_);  // Of each worker.
  int active_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

WorkerLinks::WorkerLinks(WorkerLinksOptions options, Inbox<RouterMail>* inbox)
    : impl_(std::make_unique<Impl>(std::move(options), inbox)) {}

WorkerLinks::~WorkerLinks() = default;

void WorkerLinks::Start() { impl_->Start(); }

void WorkerLinks::OpenDecode(CallId call, int32_t worker, const DecodeRequest& request) {
  impl_->Open(call, worker, request);
}

void WorkerLinks::OpenPrefill(CallId call, int32_t worker, const PrefillRequest& request) {
  impl_->Open(call, worker, request);
}

void WorkerLinks::Rebind(CallId call, const RebindRequest& request) { impl_->Tell(call, request); }

void WorkerLinks::Send(CallId call, const SendRequest& request) { impl_->Tell(call, request); }

void WorkerLinks::Cancel(CallId call) { impl_->Cancel(call); }

void WorkerLinks::Stop() { impl_->Stop(); }

}  // namespace baton
