#include "common/rpc/worker_links.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/call_events.h"
#include "common/rpc/client_call.h"
#include "common/rpc/connection.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"
#include "common/rpc/session_client.h"
#include "common/rpc/silence.h"
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
      : options_(std::move(options)),
        inbox_(inbox),
        session_memory_{.unsent = std::make_shared<SessionMemory>(options_.max_unsent_bytes),
                        .untaken = std::make_shared<SessionMemory>(options_.max_untaken_bytes)} {
    absl::MutexLock lock(&mutex_);
    for (const WorkerAddress& address : options_.workers) MakeLink(FreeSlot(), address);
  }

  ~Impl() { Stop(); }

  void Start() {
    absl::MutexLock lock(&mutex_);
    for (const Slot& slot : slots_) slot.link->Start();
    SetSweep();
  }

  std::optional<int32_t> Add(const WorkerAddress& address) {
    absl::MutexLock lock(&mutex_);
    const int32_t index = FreeSlot();
    if (stopped_ || index >= options_.max_workers) return std::nullopt;
    MakeLink(index, address);
    inbox_->Post(WorkerListed{.worker = index, .role = address.role, .address = address.address});
    slots_[index].link->Start();
    return index;
  }

  bool RemoveIfSilentSince(int32_t worker, Time time) {
    std::shared_ptr<WorkerLink> link;
    {
      absl::MutexLock lock(&mutex_);
      Slot& slot = slots_[worker];
      if (stopped_ || slot.leaves || !slot.link->IsSilentSince(time)) return false;
      slot.leaves = true;
      link = slot.link;
    }
    link->Stop();
    return true;
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
    if (const auto call = EntryOf(id).call; call != nullptr) call->Cancel();
  }

  void Tell(CallId id, const RebindRequest& request) {
    if (const Entry entry = EntryOf(id); entry.peer.session != nullptr) {
      return entry.peer.session->Rebind(entry.call.get(), request);
    }
    TellWorker<v1::RebindRequest, v1::RebindResponse>(
        id, request,
        [](const WorkerStubs& worker, auto* context, auto* sent, auto* answer, auto done) {
          worker.decode->async()->Rebind(context, sent, answer, std::move(done));
        });
  }

  void Tell(CallId id, const SendRequest& request) {
    if (const Entry entry = EntryOf(id); entry.peer.session != nullptr) {
      return entry.peer.session->Send(entry.call.get(), request);
    }
    TellWorker<v1::SendRequest, v1::SendResponse>(
        id, request,
        [](const WorkerStubs& worker, auto* context, auto* sent, auto* answer, auto done) {
          worker.prefill->async()->Send(context, sent, answer, std::move(done));
        });
  }

  void Stop() {
    std::vector<std::shared_ptr<OpenCall>> open;
    std::vector<std::shared_ptr<WorkerLink>> links;
    {
      absl::MutexLock lock(&mutex_);
      stopped_ = true;
      for (auto& [id, entry] : calls_) open.push_back(entry.call);
      for (const Slot& slot : slots_) {
        if (slot.link != nullptr) links.push_back(slot.link);
      }
      if (sweep_ != nullptr) sweep_->Cancel();
    }
    for (const auto& call : open) call->Cancel();
    open.clear();
    for (const auto& link : links) link->Stop();
    const auto quiet = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return active_ == 0; };
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&quiet));
  }

 private:
  struct Entry {
    std::shared_ptr<OpenCall> call;
    int32_t worker = 0;
    std::shared_ptr<WorkerLink> link;
    WorkerLink::Peer peer;
  };
  // What an index names. Free without a link.
  struct Slot {
    std::shared_ptr<WorkerLink> link;
    int num_calls = 0;     // That are open.
    int num_unmailed = 0;  // That have ended, of which mail is on its way.
    bool leaves = false;  // No call is opened any more.
    bool idle = false;    // The link has stopped: nothing is mailed of it any more.
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
    std::shared_ptr<WorkerLink> link;
    std::shared_ptr<const WorkerStubs> stubs;
    {
      absl::MutexLock lock(&mutex_);
      const auto it = calls_.find(id);
      if (it == calls_.end() || stopped_) return;
      link = it->second.link;
      stubs = it->second.peer.stubs;
      told->request.set_expected_incarnation(it->second.peer.incarnation);
      ++active_;
    }
    ToProto(request, &told->request);
    Seal(&told->request);
    told->context.set_deadline(DeadlineAfter(kTellLimit));
    start(*stubs, &told->context, &told->request, &told->response,
          [this, id, link, stubs, told](const grpc::Status& grpc_status) mutable {
            const absl::Status status = FromGrpc(grpc_status, told->context);
            if (IsOfTheConnection(status, ReasonIn(told->context))) link->Distrust(stubs.get());
            if (!status.ok()) GiveUp(id);
            told.reset();
            link.reset();
            stubs.reset();  // After Release nobody may hold the channel here.
            Release();
          });
  }

  // Empty of a call that is not open.
  Entry EntryOf(CallId id) {
    absl::MutexLock lock(&mutex_);
    const auto it = calls_.find(id);
    return it == calls_.end() ? Entry{} : it->second;
  }

  void GiveUp(CallId id) {
    if (const auto call = EntryOf(id).call; call != nullptr) call->GiveUp();
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

  // Over the worker's session, if it serves them.
  template <typename Proto, typename Call, typename Request, typename StartOnStub>
  void OpenCallTo(CallId id, int32_t index, const Request& request, StartOnStub start) {
    const std::shared_ptr<WorkerLink> link = LinkOf(index);
    WorkerLink::Peer peer = link == nullptr ? WorkerLink::Peer{} : link->peer();
    if (peer.incarnation == 0) {
      return MailClosed(id, absl::UnavailableError("the worker is not connected"));
    }
    if (peer.incarnation != request.worker) {
      return MailClosed(
          id, absl::FailedPreconditionError("another process runs at the worker's address"));
    }
    Entry entry{.worker = index, .link = link, .peer = std::move(peer)};
    if (SessionClient* const session = entry.peer.session.get(); session != nullptr) {
      entry.call = session->MakeCall(id);
      if (Register(id, entry, /*is_awaited=*/false)) session->Open(entry.call.get(), request);
    } else {
      const auto call = MakeCall<Proto, Call>(id, request, entry.peer.limits);
      entry.call = call;
      if (!Register(id, entry, /*is_awaited=*/true)) return;
      call->context()->set_deadline(DeadlineAfter(request.timeout));
      start(*entry.peer.stubs, call.get());
      call->Start(call);
    }
    const WorkerStubs* const stubs = entry.peer.stubs.get();
    if (!link->Holds(stubs)) GiveUpOver(stubs);  // Lost meanwhile.
  }

  // One that goes for itself.
  template <typename Proto, typename Call, typename Request>
  std::shared_ptr<Call> MakeCall(CallId id, const Request& request, const WireLimits& limits) {
    Proto proto;
    ToProto(request, &proto);
    Seal(&proto);
    return std::make_shared<Call>(
        std::move(proto), limits, MaxOutputs(request),
        typename Call::Hooks{
            .on_event = [this, id](WorkerEvent event) { MailEvent(id, std::move(event)); },
            .on_closed =
                [this, id](CallEvents::End end) {
                  MailAll({SessionClient::Ended{.id = id, .end = std::move(end)}});
                },
            .on_released = [this] { Release(); }});
  }

  // A session with one of the workers, which Stop awaits.
  std::shared_ptr<SessionClient> MakeSession(const WireLimits& limits,
                                             std::function<void(const std::string&)> on_over) {
    absl::MutexLock lock(&mutex_);
    if (stopped_) return nullptr;
    ++active_;
    return std::make_shared<SessionClient>(
        limits,
        SessionClient::Hooks{.on_told = [this](auto told) { MailAll(std::move(told)); },
                             .on_over = std::move(on_over),
                             .node_lives = [this] { return NodeLives(options_.in_turn_for); },
                             .on_released = [this] { Release(); }},
        session_memory_);
  }

  // False: the call is not to be opened, which was mailed. `is_awaited`: by Stop, until Release.
  bool Register(CallId id, const Entry& entry, bool is_awaited) {
    absl::MutexLock lock(&mutex_);
    if (stopped_) return false;
    Slot& slot = slots_[entry.worker];
    const auto refuse = [&](const absl::Status& status) {
      inbox_->Post(CallClosed{.call = id, .status = status});
      return false;
    };
    if (slot.link != entry.link || slot.leaves) {
      return refuse(absl::UnavailableError("the worker was forgotten"));
    }
    if (slot.num_calls >= options_.max_calls_to_worker) {
      return refuse(absl::ResourceExhaustedError("too many calls to one worker"));
    }
    ++slot.num_calls;
    if (is_awaited) ++active_;
    calls_[id] = entry;
    return true;
  }

  void MailEvent(CallId id, WorkerEvent event) {
    inbox_->Post(WorkerEventReceived{.call = id, .event = std::move(event)});
  }

  void MailClosed(CallId id, absl::Status status) {
    absl::MutexLock lock(&mutex_);
    if (!stopped_) inbox_->Post(CallClosed{.call = id, .status = std::move(status)});
  }

  // What came together goes to the node together.
  void MailAll(std::vector<SessionClient::Told> told) {
    std::vector<RouterMail> mail;
    std::vector<int32_t> workers_of_ended;
    mail.reserve(told.size());
    for (SessionClient::Told& one : told) {
      if (auto* const ended = std::get_if<SessionClient::Ended>(&one)) {
        if (const auto worker = Close(*ended, mail)) workers_of_ended.push_back(*worker);
      } else {
        mail.push_back(std::get<WorkerEventReceived>(std::move(one)));
      }
    }
    if (!IsStopped()) inbox_->PostAll(std::move(mail));  // Who is woken by it may want the lock.
    if (workers_of_ended.empty()) return;
    absl::MutexLock lock(&mutex_);
    // Last: from here on the index may go to another.
    for (const int32_t worker : workers_of_ended) --slots_[worker].num_unmailed;
  }

  bool IsStopped() {
    absl::MutexLock lock(&mutex_);
    return stopped_;
  }

  // Of a call that was open: its worker, whose mail is on its way until all of `mail` is posted.
  std::optional<int32_t> Close(SessionClient::Ended& ended, std::vector<RouterMail>& mail) {
    Entry entry;
    {
      absl::MutexLock lock(&mutex_);
      const auto node = calls_.extract(ended.id);
      if (node.empty()) return std::nullopt;
      entry = node.mapped();
      --slots_[entry.worker].num_calls;
      ++slots_[entry.worker].num_unmailed;
    }
    if (ended.end.is_broken) entry.link->Distrust(entry.peer.stubs.get());
    // It was ended with its connection, which was replaced: that says nothing of the worker.
    CallClosed closed{.call = ended.id, .status = std::move(ended.end.status)};
    if ((absl::IsUnavailable(closed.status) || absl::IsCancelled(closed.status)) &&
        entry.link->IsExpiring(entry.peer.stubs.get())) {
      closed.status = absl::AbortedError("the connection to the worker was replaced");
      closed.is_replaced = true;
    }
    mail.push_back(std::move(closed));
    return entry.worker;
  }

  std::shared_ptr<WorkerLink> LinkOf(int32_t worker) {
    absl::MutexLock lock(&mutex_);
    return slots_[worker].leaves ? nullptr : slots_[worker].link;
  }

  // The lowest index that names nobody.
  int32_t FreeSlot() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    const auto is_free = [](const Slot& slot) { return slot.link == nullptr; };
    return static_cast<int32_t>(std::find_if(slots_.begin(), slots_.end(), is_free) -
                                slots_.begin());
  }

  void MakeLink(int32_t index, const WorkerAddress& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (index == static_cast<int32_t>(slots_.size())) slots_.emplace_back();
    slots_[index].link = std::make_shared<WorkerLink>(
        WorkerLink::Options{
            .worker = index,
            .address = address,
            .tls = options_.tls,
            .retired = &retired_,
            .expiry_sweeps = options_.expiry_sweeps,
            .make_session =
                [this](const WireLimits& limits, std::function<void(const std::string&)> on_over) {
                  return MakeSession(limits, std::move(on_over));
                },
            .on_lost = [this](const WorkerStubs* lost) { GiveUpOver(lost); },
            .on_idle = [this, index] { OnIdle(index); }},
        inbox_);
    ++active_;
  }

  void OnIdle(int32_t index) {
    absl::MutexLock lock(&mutex_);
    slots_[index].idle = true;
    --active_;
  }

  // At each sweep only: on_idle may still be returning into a link that has just stopped.
  void FreeSlots(std::vector<std::shared_ptr<WorkerLink>>* left)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (int32_t i = 0; i < static_cast<int32_t>(slots_.size()); ++i) {
      Slot& slot = slots_[i];
      const bool is_known = slot.num_calls + slot.num_unmailed > 0;
      if (stopped_ || !slot.leaves || !slot.idle || is_known) continue;
      inbox_->Post(WorkerForgotten{.worker = i});
      left->push_back(std::exchange(slot, {}).link);
    }
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
    std::vector<std::shared_ptr<WorkerLink>> left;
    std::vector<std::shared_ptr<WorkerLink>> links;
    {
      absl::MutexLock lock(&mutex_);
      for (auto& [id, entry] : calls_) entry.call->Sweep();
      FreeSlots(&left);
      for (const Slot& slot : slots_) {
        if (slot.link != nullptr) links.push_back(slot.link);
      }
    }
    for (const auto& link : links) link->Sweep();
    for (const auto& link : left) link->Retire();
    links.clear();
    left.clear();
    {
      absl::MutexLock lock(&mutex_);
      SetSweep();
    }
    Release();
  }

  const WorkerLinksOptions options_;
  Inbox<RouterMail>* const inbox_;
  const SessionClient::Memory session_memory_;
  RetiredChannels retired_;  // Outlives the links.
  absl::Mutex mutex_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);  // By worker.
  absl::flat_hash_map<CallId, Entry> calls_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Alarm> sweep_ ABSL_GUARDED_BY(mutex_);
  int active_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

WorkerLinks::WorkerLinks(WorkerLinksOptions options, Inbox<RouterMail>* inbox)
    : impl_(std::make_unique<Impl>(std::move(options), inbox)) {}

WorkerLinks::~WorkerLinks() = default;

void WorkerLinks::Start() { impl_->Start(); }

std::optional<int32_t> WorkerLinks::Add(const WorkerAddress& address) {
  return impl_->Add(address);
}

bool WorkerLinks::RemoveIfSilentSince(int32_t worker, Time time) {
  return impl_->RemoveIfSilentSince(worker, time);
}

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
