#include "common/rpc/worker_link.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/rpc/connection.h"
#include "common/rpc/gate.h"
#include "common/telemetry/log.h"

namespace baton {
namespace {

constexpr Duration kHelloTimeout = std::chrono::seconds(2);
constexpr int kRenewalSweeps = 5;    // Between two tries to renew a connection.
constexpr int kRenewalTries = 2;     // Where the worker of the old one is trusted no more.
constexpr int kProvenStatuses = 10;  // From then on a connection counts as good.
constexpr size_t kEndedKeys = 8;     // Those before have long been over at the worker too.

absl::string_view RoleName(Role role) { return role == Role::kPrefill ? "prefill" : "decode"; }

}  // namespace

WorkerStubs::WorkerStubs(const WorkerAddress& address, const ClusterTls* tls)
    : identity(tls == nullptr ? nullptr : tls->current()),
      note(std::make_shared<HandshakeNote>()),
      channel(grpc::CreateCustomChannel(address.address,
                                        ChannelCredentialsOf(tls, TlsRoleOf(address.role), note),
                                        ClusterChannelArguments())),
      cluster(v1::Cluster::NewStub(channel)),
      decode(v1::Decode::NewStub(channel)),
      prefill(v1::Prefill::NewStub(channel)),
      session(v1::Session::NewStub(channel)) {}

WorkerLink::WorkerLink(Options options, Inbox<RouterMail>* inbox)
    : options_(std::move(options)),
      inbox_(inbox),
      stubs_(std::make_shared<WorkerStubs>(options_.address, options_.tls)),
      last_peer_(SteadyNow()) {}

void WorkerLink::Start() { SayHello(); }

std::vector<std::shared_ptr<SessionClient>> WorkerLink::Sessions() const {
  std::vector<std::shared_ptr<SessionClient>> sessions;
  for (const Expiring& one : expiring_) {
    if (one.session != nullptr) sessions.push_back(one.session);
  }
  if (peer_.session != nullptr) sessions.push_back(peer_.session);
  return sessions;
}

void WorkerLink::Stop() {
  bool idle = false;
  std::vector<std::shared_ptr<SessionClient>> sessions;
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_) return;
    stopped_ = true;
    sessions = Sessions();
    idle = !busy_;
    if (context_ != nullptr) context_->TryCancel();
    if (alarm_ != nullptr) alarm_->Cancel();
  }
  for (const auto& session : sessions) session->End();
  if (idle) options_.on_idle();
}

WorkerLink::Peer WorkerLink::peer() const {
  absl::MutexLock lock(&mutex_);
  return peer_;
}

bool WorkerLink::Holds(const WorkerStubs* stubs) const {
  {
    absl::MutexLock lock(&mutex_);
    if (peer_.stubs.get() == stubs) return true;
  }
  return IsExpiring(stubs);
}

bool WorkerLink::IsExpiring(const WorkerStubs* stubs) const {
  absl::MutexLock lock(&mutex_);
  return std::any_of(expiring_.begin(), expiring_.end(),
                     [&](const Expiring& one) { return one.stubs.get() == stubs; });
}

bool WorkerLink::IsSilentSince(Time time) const {
  absl::MutexLock lock(&mutex_);
  return peer_.incarnation == 0 && last_peer_ <= time;
}

void WorkerLink::Retire() {
  absl::MutexLock lock(&mutex_);
  peer_ = {};
  options_.retired->Add(std::exchange(stubs_, nullptr)->channel);
  if (next_ != nullptr) options_.retired->Add(std::exchange(next_, nullptr)->channel);
  for (const Expiring& one : expiring_) options_.retired->Add(one.stubs->channel);
  expiring_.clear();
}

void WorkerLink::Sweep() {
  std::vector<std::shared_ptr<SessionClient>> sessions;
  {
    absl::MutexLock lock(&mutex_);
    sessions = Sessions();
    num_swept_ = num_statuses_;
  }
  for (const auto& session : sessions) session->Sweep();
  sessions.clear();
  SweepExpiring();
  absl::MutexLock lock(&mutex_);
  // It may have ended before it was the peer's.
  if (peer_.session != nullptr && peer_.session->IsOver()) {
    distrusted_ = true;
    context_->TryCancel();
    return;
  }
  // A Hello that renews has a limit of its own, and no statuses come beside it.
  if (peer_.stubs == nullptr || next_ != nullptr) return;
  if (!silence_.Sweep()) return RenewIfDue();
  distrusted_ = true;
  context_->TryCancel();
}

void WorkerLink::RenewIfDue() {
  // After the first status: the Watch is what is in flight.
  if (options_.tls == nullptr || num_statuses_ == 0 || stopped_) return;
  if (sweeps_to_renewal_ > 0) --sweeps_to_renewal_;
  if (sweeps_to_renewal_ > 0 || options_.tls->current() == stubs_->identity) return;
  next_ = std::make_shared<WorkerStubs>(options_.address, options_.tls);
  context_->TryCancel();
}

void WorkerLink::SweepExpiring() {
  std::vector<std::shared_ptr<const WorkerStubs>> late;
  std::vector<Expiring> unused;
  {
    absl::MutexLock lock(&mutex_);
    for (Expiring& one : expiring_) {
      if (one.stubs.use_count() == 1) {
        unused.push_back(std::exchange(one, {}));
      } else if (--one.sweeps_left < 0) {
        late.push_back(one.stubs);  // Until its last call has ended.
      }
    }
    std::erase_if(expiring_, [](const Expiring& one) { return one.stubs == nullptr; });
  }
  for (const auto& stubs : late) options_.on_lost(stubs.get());
  for (const Expiring& one : unused) {
    if (one.session != nullptr) one.session->End();
    options_.retired->Add(one.stubs->channel);
  }
}

void WorkerLink::Distrust(const WorkerStubs* stubs, const std::string& why) {
  absl::MutexLock lock(&mutex_);
  if (stubs != peer_.stubs.get()) return;
  distrusted_ = true;
  if (!why.empty()) why_distrusted_ = why;
  context_->TryCancel();  // The Watch.
}

std::pair<const WorkerStubs*, grpc::ClientContext*> WorkerLink::Begin() {
  {
    absl::MutexLock lock(&mutex_);
    busy_ = !stopped_;
    if (busy_) {
      context_ = std::make_unique<grpc::ClientContext>();
      if (distrusted_) context_->TryCancel();
      return {next_ != nullptr ? next_.get() : stubs_.get(), context_.get()};
    }
  }
  options_.on_idle();
  return {};
}

void WorkerLink::SayHello() {
  const auto [stubs, context] = Begin();
  if (context == nullptr) return;
  {
    absl::MutexLock lock(&mutex_);
    context->set_wait_for_ready(!probes_);  // Connects as soon as the worker listens.
  }
  context->set_deadline(DeadlineAfter(kHelloTimeout));
  hello_request_.set_protocol_version(kProtocolVersion);
  hello_response_.Clear();
  stubs->cluster->async()->Hello(context, &hello_request_, &hello_response_,
                                 [this](grpc::Status status) { OnHello(status); });
}

absl::Status WorkerLink::CheckHello(const HelloInfo& hello) const {
  if (hello.role != options_.address.role) {
    return absl::FailedPreconditionError(
        absl::StrCat("a ", RoleName(hello.role), " worker answers where a ",
                     RoleName(options_.address.role), " worker was configured"));
  }
  const int32_t spoken = hello.protocol_version;
  if (spoken < OldestSpoken() || spoken > kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("it speaks protocol ", spoken,
                                                      ", this router ", OldestSpoken(), " to ",
                                                      kProtocolVersion, "; update the older one"));
  }
  return absl::OkStatus();
}

std::string WorkerLink::WhyNoHello(const grpc::Status& status, const WorkerStubs& stubs) const {
  if (status.error_code() == grpc::StatusCode::PERMISSION_DENIED) {
    return absl::StrCat("it refuses this router: ", status.error_message());
  }
  if (options_.tls == nullptr) return "no worker answers";
  const std::string refused = stubs.note->Get();
  if (!refused.empty()) return refused;
  return "no worker answers by TLS with a certificate of this CA";
}

std::shared_ptr<const WorkerStubs> WorkerLink::CurrentStubs() const {
  absl::MutexLock lock(&mutex_);
  return stubs_;
}

std::shared_ptr<const WorkerStubs> WorkerLink::NextStubs() const {
  absl::MutexLock lock(&mutex_);
  return next_;
}

bool WorkerLink::IsRenewing() const {
  absl::MutexLock lock(&mutex_);
  return next_ != nullptr;
}

absl::StatusOr<HelloInfo> WorkerLink::TakeHelloOfNext(const grpc::Status& status) const {
  if (!status.ok()) return absl::UnavailableError("nobody answers");
  ASSIGN_OR_RETURN(HelloInfo hello, TakeHello(hello_response_));
  RETURN_IF_ERROR(CheckHello(hello));
  if (hello.incarnation == peer().incarnation) return hello;
  return absl::FailedPreconditionError("another process answers");
}

std::shared_ptr<SessionClient> WorkerLink::StartSession(
    const HelloInfo& hello, const std::shared_ptr<const WorkerStubs>& stubs) {
  if (!hello.serves_sessions || !options_.make_session) return nullptr;
  const WireLimits limits{.vocab_size = hello.vocab_size, .max_model_len = hello.max_model_len};
  // They are not held, so that they can be seen to be unused.
  auto session = options_.make_session(
      limits, [link = weak_from_this(),
               over = std::weak_ptr<const WorkerStubs>(stubs)](const std::string& why) {
        const auto here = link.lock();
        if (const auto lost = over.lock(); here != nullptr && lost != nullptr) {
          here->OnSessionOver(lost.get(), why);
        }
      });
  if (session == nullptr) return nullptr;
  std::vector<uint32_t> ended;
  {
    absl::MutexLock lock(&mutex_);
    ended.assign(ended_keys_.begin(), ended_keys_.end());
  }
  session->Start(stubs->session.get(), hello.incarnation, ended);
  return session;
}

// Without a reason of its own it goes as the Watch goes, which says why.
void WorkerLink::OnSessionOver(const WorkerStubs* stubs, const std::string& why) {
  if (!why.empty()) return Distrust(stubs, why);
  absl::MutexLock lock(&mutex_);
  if (stubs == peer_.stubs.get()) context_->TryCancel();
}

void WorkerLink::Switch(std::shared_ptr<SessionClient> session) {
  expiring_.push_back({.stubs = std::exchange(stubs_, std::exchange(next_, nullptr)),
                       .session = std::exchange(peer_.session, std::move(session)),
                       .sweeps_left = options_.expiry_sweeps});
  peer_.stubs = stubs_;
  failed_renewals_ = 0;
  distrusted_ = false;  // That was the other one.
  why_distrusted_.clear();
  if (stopped_ && peer_.session != nullptr) peer_.session->End();
}

void WorkerLink::OnHelloOfNext(const grpc::Status& status) {
  Incarnation incarnation = 0;
  std::shared_ptr<const WorkerStubs> failed;
  bool is_over = false;
  const absl::StatusOr<HelloInfo> hello = TakeHelloOfNext(status);
  std::shared_ptr<SessionClient> session;
  if (hello.ok()) session = StartSession(*hello, NextStubs());
  {
    absl::MutexLock lock(&mutex_);
    if (hello.ok()) {
      Switch(std::move(session));
    } else {
      failed = std::exchange(next_, nullptr);
      sweeps_to_renewal_ = kRenewalSweeps;
      ++failed_renewals_;
    }
    incarnation = peer_.incarnation;
    is_over = failed_renewals_ >= kRenewalTries && !options_.tls->Trusts(stubs_->note->peer());
    num_statuses_ = num_swept_ = 0;
    silence_.OnRead(true);
  }
  if (failed == nullptr) {
    Log(LogLevel::kInfo, "connection renewed", {{"worker", options_.address.address}});
  } else {
    Log(LogLevel::kWarning, "connection not renewed",
        {{"worker", options_.address.address}, {"why", WhyNoHello(status, *failed)}});
    options_.retired->Add(failed->channel);
  }
  if (is_over) return Retry("its certificate is of a CA that is trusted no more");
  StartWatch(incarnation);
}

void WorkerLink::OnHello(const grpc::Status& status) {
  if (IsRenewing()) return OnHelloOfNext(status);
  bool probed = false;
  {
    absl::MutexLock lock(&mutex_);
    probed = std::exchange(probes_, false);
  }
  const bool is_gone = probed && status.error_code() == grpc::StatusCode::UNAVAILABLE;
  if (!status.ok()) return Retry(WhyNoHello(status, *CurrentStubs()), is_gone);
  const absl::StatusOr<HelloInfo> hello = TakeHello(hello_response_);
  if (!hello.ok()) return Retry(absl::StrCat("bad hello: ", hello.status().message()));
  if (const absl::Status ok = CheckHello(*hello); !ok.ok()) return Retry(std::string(ok.message()));
  std::shared_ptr<SessionClient> session = StartSession(*hello, CurrentStubs());
  {
    absl::MutexLock lock(&mutex_);
    peer_ = {.incarnation = hello->incarnation,
             .limits = {.vocab_size = hello->vocab_size, .max_model_len = hello->max_model_len},
             .stubs = stubs_,
             .session = std::move(session)};
    if (stopped_ && peer_.session != nullptr) peer_.session->End();
    num_statuses_ = num_swept_ = 0;
    silence_.OnRead(true);
    last_reason_.clear();
  }
  inbox_->Post(WorkerUp{.worker = options_.worker, .hello = *hello});
  StartWatch(hello->incarnation);
}

void WorkerLink::StartWatch(Incarnation incarnation) {
  const auto [stubs, context] = Begin();
  if (context == nullptr) return;
  bad_status_.clear();
  watch_request_.set_expected_incarnation(incarnation);
  stubs->cluster->async()->Watch(context, &watch_request_, this);
  StartRead(&status_);
  StartCall();
}

void WorkerLink::OnReadDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  silence_.OnRead(ok);
  if (!ok) return;
  const absl::StatusOr<WorkerStatus> status = TakeStatus(status_, peer_.incarnation);
  if (++num_statuses_ == kProvenStatuses) backoff_.OnProven();
  if (!status.ok()) {
    bad_status_ = absl::StrCat("bad status: ", status.status().message());
  } else if (num_statuses_ > num_swept_ + options_.most_statuses) {
    bad_status_ = absl::StrCat("it gives more than ", options_.most_statuses, " statuses a second");
  } else {
    inbox_->Post(WorkerStatusChanged{.worker = options_.worker, .status = *status});
  }
  if (!bad_status_.empty()) return context_->TryCancel();
  StartRead(&status_);
}

void WorkerLink::OnDone(const grpc::Status& status) {
  if (!bad_status_.empty()) return Retry(bad_status_);
  if (IsRenewing()) return SayHello();
  Retry(status.error_code() == grpc::StatusCode::FAILED_PRECONDITION
            ? "another process answers at its address"
            : "the connection was lost");
}

void WorkerLink::Retry(const std::string& failure, bool is_gone) {
  const bool had_begun = Disconnect(failure, is_gone);
  {
    absl::MutexLock lock(&mutex_);
    if (!stopped_) {
      // A new alarm each time: the last one may still be returning from its callback.
      alarm_ = std::make_unique<grpc::Alarm>();
      alarm_->Set(DeadlineAfter(backoff_.OnEnd(had_begun, SteadyNow())),
                  [this](bool) { SayHello(); });
      return;
    }
  }
  options_.on_idle();
}

void WorkerLink::NoteEnded(const std::vector<std::shared_ptr<SessionClient>>& sessions) {
  for (const auto& session : sessions) ended_keys_.push_back(session->key());
  while (ended_keys_.size() > kEndedKeys) ended_keys_.pop_front();
}

bool WorkerLink::Disconnect(const std::string& failure, bool is_gone) {
  std::vector<std::shared_ptr<const WorkerStubs>> lost;
  std::vector<std::shared_ptr<SessionClient>> sessions;
  bool had_begun = false;
  {
    absl::MutexLock lock(&mutex_);
    std::string reason = failure;
    if (std::exchange(distrusted_, false)) {
      const std::string why = std::exchange(why_distrusted_, "");
      reason = why.empty() ? "something was damaged or lost on the way" : why;
    }
    if (!stopped_ && (is_gone || reason != last_reason_)) {
      inbox_->Post(WorkerDown{.worker = options_.worker, .reason = reason, .is_gone = is_gone});
    }
    last_reason_ = reason;
    if (peer_.incarnation != 0) {
      last_peer_ = SteadyNow();
      probes_ = true;
    }
    sessions = Sessions();
    NoteEnded(sessions);
    had_begun = peer_.session != nullptr && peer_.session->HasHeard();
    peer_ = {};
    lost.push_back(
        std::exchange(stubs_, std::make_shared<WorkerStubs>(options_.address, options_.tls)));
    if (next_ != nullptr) lost.push_back(std::exchange(next_, nullptr));
    for (Expiring& one : expiring_) lost.push_back(std::move(one.stubs));
    expiring_.clear();
  }
  for (const auto& session : sessions) session->End();
  for (const auto& stubs : lost) {
    options_.on_lost(stubs.get());
    options_.retired->Add(stubs->channel);
  }
  return had_begun;
}

}  // namespace baton
