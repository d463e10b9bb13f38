#include "router/router_service.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>
#include <variant>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/telemetry/log.h"

namespace baton {
namespace {

// Of a task, while others of its thread wait. A delivery may have more tokens for itself.
constexpr size_t kMostDeliveries = 64;
constexpr size_t kMostTokens = 1024;
// What is shown of workers is as old at most: a copy of all of them in each turn would cost more
// than the turn.
constexpr Duration kPublishInterval = std::chrono::milliseconds(50);
constexpr absl::Duration kAuditLimit = absl::Seconds(2);

// What became usable or unusable; both in order of index.
std::vector<WorkerView> Changed(const std::vector<WorkerView>& before,
                                const std::vector<WorkerView>& after) {
  std::vector<WorkerView> changed;
  auto old = before.begin();
  for (const WorkerView& worker : after) {
    while (old != before.end() && old->index < worker.index) ++old;
    const bool is_same = old != before.end() && old->index == worker.index &&
                         old->role == worker.role && old->address == worker.address;
    const bool has_changed =
        is_same ? old->healthy != worker.healthy || old->reason != worker.reason : worker.healthy;
    if (has_changed) changed.push_back(worker);
  }
  return changed;
}

}  // namespace

class RouterService::Outbox : public RouterOutbox {
 public:
  explicit Outbox(RouterService* service) : service_(service) {}

  void OpenDecode(CallId call, int32_t worker, DecodeRequest request) override {
    service_->links_.OpenDecode(call, worker, request);
  }
  void OpenPrefill(CallId call, int32_t worker, PrefillRequest request) override {
    service_->links_.OpenPrefill(call, worker, request);
  }
  void Rebind(CallId call, RebindRequest request) override {
    service_->links_.Rebind(call, request);
  }
  void Send(CallId call, SendRequest request) override { service_->links_.Send(call, request); }
  void Cancel(CallId call) override { service_->links_.Cancel(call); }
  void Emit(uint64_t request, ClientEvent event) override {
    service_->Emit(request, std::move(event));
  }

 private:
  RouterService* const service_;
};

// The node; woken, too, when its state is to be published.
class RouterService::DrivenNode : public Node<RouterMail> {
 public:
  explicit DrivenNode(RouterService* service) : service_(service) {}

  void Handle(RouterMail mail, Time now) override {
    // A worker that goes and is there again before the next time was lost all the same.
    if (std::holds_alternative<WorkerUp>(mail) || std::holds_alternative<WorkerDown>(mail)) {
      service_->published_at_ = {};
    }
    service_->node_.Handle(std::move(mail), now);
  }
  void Step(Time now) override { service_->node_.Step(now); }
  Time NextDeadline() const override {
    return std::min(service_->node_.NextDeadline(), service_->publish_due_);
  }

 private:
  RouterService* const service_;
};

RouterService::RouterService(RouterServiceOptions options, std::unique_ptr<RoutingPolicy> policy)
    : options_(std::move(options)),
      thread_({.name = "router", .max_offered_requests = options_.max_offered_requests}),
      links_({.workers = options_.workers,
              .tls = options_.tls,
              .in_turn_for = [this] { return thread_.InTurnFor(SteadyNow()); }},
             &thread_),
      outbox_(std::make_unique<Outbox>(this)),
      node_(options_.node, {}, std::move(policy), *outbox_),
      driven_node_(std::make_unique<DrivenNode>(this)),
      readiness_(std::make_shared<Readiness>(this)) {
  int32_t index = 0;
  for (const WorkerAddress& worker : options_.workers) {
    node_.Handle(WorkerListed{.worker = index++, .role = worker.role, .address = worker.address},
                 Time{});
  }
  Publish(Time{});
}

RouterService::~RouterService() { Stop(); }

void RouterService::Start(Hooks hooks) {
  hooks_ = std::move(hooks);
  readiness_->set_on_change(hooks_.on_ready);
  thread_.Start(driven_node_.get(), [this](Time now) { EndTurn(now); });
  links_.Start();
}

absl::StatusOr<uint64_t> RouterService::Submit(ValidRequest request,
                                               std::shared_ptr<ResponseSink> sink) {
  uint64_t key = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_) return absl::UnavailableError("the router is shutting down");
    // Of few a pause of this process is the cause: they are told in the next turn.
    if (deliveries_.size() >= options_.max_deliveries &&
        SteadyNow() - deliveries_.front().since > options_.max_delivery_wait) {
      return absl::ResourceExhaustedError(
          "the router is behind with its answers: try again in a second");
    }
    key = ++last_request_;
    listeners_[key].sink = std::move(sink);
  }
  if (thread_.Offer(ClientSubmit{.request = key, .body = std::move(request)})) return key;
  absl::MutexLock lock(&mutex_);
  // Stop came in between: it tells the sink, so that it is told once.
  if (listeners_.erase(key) == 0) return key;
  return absl::ResourceExhaustedError("the router is busy: try again in a second");
}

absl::Status RouterService::CheckRoom(const std::string& tenant) const {
  absl::MutexLock lock(&mutex_);
  if (!full_.has_value() || full_->tenant != tenant) return absl::OkStatus();
  return full_->status;
}

void RouterService::Cancel(uint64_t request) { thread_.Post(ClientCancel{.request = request}); }

void RouterService::StopChoice(uint64_t request, int32_t choice) {
  thread_.Post(ClientStop{.request = request, .choice = choice});
}

RouterView RouterService::View() const {
  absl::MutexLock lock(&mutex_);
  return view_;
}

std::string RouterService::NumericsId() const {
  absl::MutexLock lock(&mutex_);
  return numerics_id_;
}

absl::StatusOr<RouterAudit> RouterService::Audit() {
  struct Answer {
    absl::Notification come;
    RouterAudit audit;
  };
  auto answer = std::make_shared<Answer>();
  const bool taken = thread_.Offer(RouterAuditAsked{[answer](RouterAudit audit) {
    answer->audit = std::move(audit);
    answer->come.Notify();
  }});
  if (!taken) return absl::ResourceExhaustedError("the router is busy: try again in a second");
  if (!answer->come.WaitForNotificationWithTimeout(kAuditLimit)) {
    return absl::DeadlineExceededError("the router did not answer within 2 s");
  }
  return answer->audit;
}

bool RouterService::Ready() const {
  return readiness_->ready() && StandsFor() < options_.most_turn / 6;
}

bool RouterService::Alive() const { return StandsFor() < options_.most_turn; }

// How long one turn of the node, or one task that tells clients, has not ended.
Duration RouterService::StandsFor() const {
  const Time now = SteadyNow();
  const Duration in_turn = thread_.InTurnFor(now);
  absl::MutexLock lock(&mutex_);
  return is_delivering_ ? std::max(in_turn, now - told_last_) : in_turn;
}

RouterCounters RouterService::counters() const {
  absl::MutexLock lock(&mutex_);
  return counters_;
}

void RouterService::Emit(uint64_t request, ClientEvent event) {
  absl::MutexLock lock(&mutex_);
  const auto it = listeners_.find(request);
  if (it == listeners_.end()) return;
  auto* const tokens = std::get_if<ChoiceTokens>(&event);
  if (tokens != nullptr && JoinWaiting(it->second, *tokens)) return;
  const bool is_last = std::holds_alternative<RequestEnded>(event);
  deliveries_.push_back({.sink = it->second.sink, .event = std::move(event), .since = SteadyNow()});
  if (is_last) listeners_.erase(it);
}

// However far the thread that tells clients is behind, of each choice one more event waits than fit
// the limit; and it catches up, as tokens that lie together cost less.
bool RouterService::JoinWaiting(Listener& listener, ChoiceTokens& tokens) {
  const auto choice = static_cast<size_t>(tokens.choice);
  if (listener.last_tokens.size() <= choice) listener.last_tokens.resize(choice + 1);
  uint64_t& last = listener.last_tokens[choice];
  if (deliveries_.size() < options_.max_deliveries || last < next_delivery_) {
    last = next_delivery_ + deliveries_.size();
    return false;
  }
  auto& waiting = std::get<ChoiceTokens>(deliveries_[last - next_delivery_].event).outputs;
  std::ranges::move(tokens.outputs, std::back_inserter(waiting));
  return true;
}

// All that a turn says to clients goes to the thread that writes to them as one task.
void RouterService::EndTurn(Time now) {
  bool begins = false;
  std::optional<AdmissionQueue::Full> full = node_.Full(now);
  {
    absl::MutexLock lock(&mutex_);
    full_.swap(full);
    if (!deliveries_.empty()) begins = !std::exchange(is_delivering_, true);
    if (begins) told_last_ = SteadyNow();
    counters_ = node_.counters();
    node_.Count(&view_);
  }
  if (begins) Deliver();
  PublishSoon(now);
}

void RouterService::PublishSoon(Time now) {
  publish_due_ = published_at_ + kPublishInterval;
  if (now < publish_due_) return;
  published_at_ = now;
  publish_due_ = kNever;
  Publish(now);
}

// What is left is a task of its own, so that others of the thread have their turns. An exception
// ends the process: were it one task's end, as it is to an HTTP server, no client would hear more.
void RouterService::Deliver() noexcept {
  const auto go_on = [this] {
    if (DeliverSome()) Deliver();
  };
  while (!hooks_.deliver || !hooks_.deliver(go_on)) {
    if (!DeliverSome()) return;
  }
}

// One at a time, so that each sink hears all in order. False: nothing is left.
bool RouterService::DeliverSome() noexcept {
  std::vector<Delivery> some;
  {
    absl::MutexLock lock(&mutex_);
    for (size_t num_tokens = 0;
         !deliveries_.empty() && some.size() < kMostDeliveries && num_tokens < kMostTokens;) {
      some.push_back(std::move(deliveries_.front()));
      deliveries_.pop_front();
      ++next_delivery_;
      const auto* const tokens = std::get_if<ChoiceTokens>(&some.back().event);
      num_tokens += tokens != nullptr ? tokens->outputs.size() : 0;
    }
  }
  for (Delivery& one : some) one.sink->OnEvent(std::move(one.event));
  some.clear();  // A sink may go with its last event.
  absl::MutexLock lock(&mutex_);
  told_last_ = SteadyNow();
  is_delivering_ = !deliveries_.empty();
  return is_delivering_;
}

void RouterService::Publish(Time now) {
  RouterView view = node_.View();
  readiness_->OnView(view, now);
  std::vector<WorkerView> changed;
  {
    absl::MutexLock lock(&mutex_);
    changed = Changed(view_.workers, view.workers);
    view_ = std::move(view);
    numerics_id_ = NumericsIdOf(view_);
  }
  // Without the lock: whoever reads the log may be slow.
  for (const WorkerView& worker : changed) {
    Log(worker.healthy && worker.reason.empty() ? LogLevel::kInfo : LogLevel::kWarning,
        worker.healthy ? "worker is up" : "worker cannot be used",
        {{"address", worker.address}, {"reason", worker.reason}});
  }
}

void RouterService::Stop() {
  readiness_->Close();
  thread_.Stop();
  links_.Stop();
  absl::flat_hash_map<uint64_t, Listener> left;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    left.swap(listeners_);
  }
  // The node's thread has ended, so nobody else calls these sinks.
  for (auto& [key, listener] : left) {
    listener.sink->OnEvent(
        RequestEnded{.status = absl::UnavailableError("the router is shutting down")});
  }
}

}  // namespace baton
