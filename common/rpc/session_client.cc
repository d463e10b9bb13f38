#include "common/rpc/session_client.h"

#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/rpc/call_end.h"
#include "common/rpc/connection.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/reaction_order.h"
#include "common/rpc/wire_fields.h"

namespace baton {
namespace {

constexpr int kMostAtOnce = 256;  // Of the calls in a message, before others get the lock.
constexpr int64_t kSpread = 4;    // Numbers take so many times less on the wire than as mail.

// A call's number cannot be left out. With nothing in it the worker refuses it, which nobody hears.
void CutOpening(v1::CallAsked& asked) {
  asked.has_decode() ? asked.mutable_decode()->Clear() : asked.mutable_prefill()->Clear();
}

}  // namespace

class SessionClient::Call : public OpenCall {
 public:
  Call(std::shared_ptr<SessionClient> session, CallId id) : session(std::move(session)), id(id) {}

  void Cancel() override { session->Drop(this, /*is_given_up=*/false); }
  void GiveUp() override { session->Drop(this, /*is_given_up=*/true); }
  void Sweep() override {}  // The session's sweep looks after its calls.

  const std::shared_ptr<SessionClient> session;
  const CallId id;
  // Under the session's mutex.
  uint64_t number = 0;      // 0 until it is open.
  bool is_dropped = false;  // Before it was open.
};

void SessionClient::Start(v1::Session::Stub* stub, Incarnation worker,
                          const std::vector<uint32_t>& ended) {
  v1::ToWorker first;
  first.mutable_open()->set_expected_incarnation(worker);
  key_ = static_cast<uint32_t>(
      absl::HashOf(worker, SteadyNow().time_since_epoch().count(), static_cast<void*>(this)));
  first.mutable_open()->set_key(key_);
  first.mutable_open()->mutable_ended()->Assign(ended.begin(), ended.end());
  input_.set_key(key_);
  self_ = shared_from_this();
  const auto ends = [this](std::string why) {
    return [session = weak_from_this(), why = std::move(why)] {
      if (const auto here = session.lock()) here->End(why);
    };
  };
  unsent_.OnTooMuch(ends("it does not read what it is asked"));
  untaken_->OnTooMuch(ends("it says more than this router takes in"));
  grpc::ClientContext* context = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    context_ = std::make_unique<grpc::ClientContext>();
    context = context_.get();
    sent_ = SealFrame(output_.Next(std::move(first)), kNoPlace);
    writing_ = held_ = true;
  }
  stub->async()->Open(context, this);
  ReactionEnds(this);
  AddHold();  // Until it is over and nothing is written: most writes begin on other threads.
  StartRead(&received_);
  StartWrite(&sent_);
  StartCall();
}

std::shared_ptr<OpenCall> SessionClient::MakeCall(CallId id) {
  return std::make_shared<Call>(shared_from_this(), id);
}

template <typename Request>
void SessionClient::OpenEntry(OpenCall* call, const Request& request, v1::CallAsked asked) {
  auto* const mine = static_cast<Call*>(call);
  auto events = std::make_unique<CallEvents>(limits_, MaxOutputs(request), std::nullopt);
  {
    absl::MutexLock lock(&mutex_);
    absl::Status refused;
    if (mine->is_dropped) {
      refused = absl::CancelledError("the call was cancelled");
    } else if (over_) {
      refused = absl::UnavailableError("the connection to the worker was lost");
    } else if (static_cast<int64_t>(asked.ByteSizeLong()) > kMostItemBytes) {
      refused = absl::InvalidArgumentError("the prompt is larger than a message to a worker");
    } else if (unsent_.IsHalfFull()) {
      refused = absl::ResourceExhaustedError("the worker does not read what it is asked");
    }
    if (refused.ok()) {
      mine->number = ++last_number_;
      entries_[mine->number] = {
          .id = mine->id, .deadline = SteadyNow() + request.timeout, .events = std::move(events)};
      asked.set_call(mine->number);
      output_.AddBulk(std::move(asked));
    } else {
      told_.push_back(Ended{.id = mine->id, .end = {.status = refused, .is_broken = over_}});
    }
  }
  Advance();
}

void SessionClient::Open(OpenCall* call, const DecodeRequest& request) {
  v1::CallAsked asked;
  ToProto(request, asked.mutable_decode());
  OpenEntry(call, request, std::move(asked));
}

void SessionClient::Open(OpenCall* call, const PrefillRequest& request) {
  v1::CallAsked asked;
  ToProto(request, asked.mutable_prefill());
  OpenEntry(call, request, std::move(asked));
}

void SessionClient::Ask(OpenCall* call, v1::CallAsked asked) {
  {
    absl::MutexLock lock(&mutex_);
    const uint64_t number = static_cast<Call*>(call)->number;
    if (!entries_.contains(number)) return;
    asked.set_call(number);
    output_.Add(std::move(asked));
  }
  Advance();
}

void SessionClient::Rebind(OpenCall* call, const RebindRequest& request) {
  v1::CallAsked asked;
  ToProto(request, asked.mutable_rebind());
  Ask(call, std::move(asked));
}

void SessionClient::Send(OpenCall* call, const SendRequest& request) {
  v1::CallAsked asked;
  ToProto(request, asked.mutable_send());
  Ask(call, std::move(asked));
}

void SessionClient::Drop(Call* call, bool is_given_up) {
  {
    absl::MutexLock lock(&mutex_);
    const auto entry = entries_.find(call->number);
    call->is_dropped = call->number == 0;
    if (entry == entries_.end()) return;
    if (is_given_up) entry->second.events->GiveUp();
    const PeerEnd end{.code = absl::StatusCode::kCancelled};
    CloseEntry(call->number, entry->second.events->EndOf(end), /*tell=*/true);
  }
  Advance();
}

void SessionClient::End(const std::string& why) {
  absl::MutexLock lock(&mutex_);
  over_ = true;
  if (why_.empty()) why_ = why;
  if (context_ != nullptr) context_->TryCancel();
}

bool SessionClient::IsOver() const {
  absl::MutexLock lock(&mutex_);
  return over_;
}

void SessionClient::Sweep() {
  memory_.unsent->EndLargest();
  {
    absl::MutexLock lock(&mutex_);
    if (over_) {
      if (context_ != nullptr) context_->TryCancel();  // It may not have ended by itself.
      return;
    }
    if (silence_.Sweep()) {
      over_ = true;
      context_->TryCancel();
    }
    const Time now = SteadyNow();
    std::vector<uint64_t> late;
    for (const auto& [number, entry] : entries_) {
      if (entry.deadline <= now) late.push_back(number);
    }
    for (const uint64_t number : late) {
      const PeerEnd end{.code = absl::StatusCode::kDeadlineExceeded, .is_late = true};
      CloseEntry(number, entries_.at(number).events->EndOf(end), /*tell=*/true);
    }
    says_alive_ = hooks_.node_lives();
  }
  Advance();
}

void SessionClient::CloseEntry(uint64_t number, CallEvents::End end, bool tell) {
  const auto node = entries_.extract(number);
  told_.push_back(Ended{.id = node.mapped().id, .end = std::move(end)});
  if (!tell || over_) return;
  if (output_.Withdraw(number, CutOpening)) return;
  v1::CallAsked asked;
  asked.set_call(number);
  asked.mutable_cancel();
  output_.Add(std::move(asked));
}

absl::Status SessionClient::TakeTold(const v1::CallTold& told,
                                     const std::shared_ptr<const void>& held) {
  if (told.call() == 0 || told.call() > last_number_) {
    return absl::DataLossError(absl::StrCat("call ", told.call(), " was not opened"));
  }
  const auto it = entries_.find(told.call());
  if (it == entries_.end()) return absl::OkStatus();  // It was dropped meanwhile.
  Entry& entry = it->second;
  if (told.has_end()) {
    RETURN_IF_ERROR(CheckRange("end.code", told.end().code(), 0, 16));
    const auto code = static_cast<absl::StatusCode>(told.end().code());
    const PeerEnd end{.code = code,
                      .message = told.end().message().substr(0, kMostEndBytes),
                      .reason = code == absl::StatusCode::kOk ? "" : ReasonOf(code)};
    CloseEntry(told.call(), entry.events->EndOf(end), /*tell=*/false);
    return absl::OkStatus();
  }
  absl::StatusOr<std::optional<WorkerEvent>> event =
      told.has_decode() ? entry.events->Take(told.decode()) : entry.events->Take(told.prefill());
  if (!event.ok()) {
    CloseEntry(told.call(), entry.events->EndOf({}), /*tell=*/true);
  } else if (event->has_value()) {
    told_.push_back(
        WorkerEventReceived{.call = entry.id, .event = **std::move(event), .held = held});
  }
  return absl::OkStatus();
}

absl::Status SessionClient::TakeMessage() {
  v1::ToRouter message;
  RETURN_IF_ERROR(input_.Take(received_, &message));
  silence_.OnRead(true);
  has_heard_ = true;
  if (message.calls().empty()) return absl::OkStatus();
  const auto num_calls = static_cast<int64_t>(message.calls_size());
  const auto num_bytes = static_cast<int64_t>(received_.message().size());
  const std::shared_ptr<const void> held =
      HoldIn(untaken_, kSpread * num_bytes + num_calls * int64_t{sizeof(RouterMail)});
  absl::Status taken;
  for (auto told = message.calls().begin(); taken.ok() && told != message.calls().end();) {
    {
      absl::MutexLock lock(&mutex_);  // Of some at a time: nobody waits for a long message.
      for (int i = 0; taken.ok() && i < kMostAtOnce && told != message.calls().end(); ++i, ++told) {
        taken = TakeTold(*told, held);
      }
    }
    Tell();
  }
  memory_.untaken->EndLargest();
  return taken;
}

void SessionClient::OnReadDone(bool ok) {
  ReactionBegins(this);
  const absl::Status taken = ok ? TakeMessage() : absl::OkStatus();
  bool goes_on = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!ok || !taken.ok()) over_ = true;
    if (!taken.ok()) {
      why_ = std::string(taken.message());
      context_->TryCancel();
    }
    goes_on = !over_;
  }
  ReactionEnds(this);
  if (goes_on) StartRead(&received_);
  Advance();
}

void SessionClient::OnWriteDone(bool ok) {
  ReactionBegins(this);
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    output_.Written();
    if (!ok) over_ = true;
  }
  ReactionEnds(this);
  Advance();
}

void SessionClient::Advance() {
  std::optional<v1::ToWorker> message;
  bool lets_go = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!over_ && !writing_ && (!output_.empty() || says_alive_)) {
      message = output_.Next();
      says_alive_ = false;
      writing_ = true;
    }
    if (over_ && !writing_) lets_go = std::exchange(held_, false);
  }
  if (message.has_value()) {
    sent_ = SealFrame(*message, key_);
    StartWrite(&sent_);
  }
  Tell();
  if (lets_go) RemoveHold();
}

// What the node is told at once costs it one turn, and its thread one wake.
void SessionClient::Tell() {
  for (bool is_first = true;; is_first = false) {
    std::vector<Told> told;
    {
      absl::MutexLock lock(&mutex_);
      if (is_first && telling_) return;
      telling_ = !told_.empty();
      if (!telling_) return;
      told.swap(told_);
    }
    hooks_.on_told(std::move(told));
  }
}

void SessionClient::OnDone(const grpc::Status& status) {
  ReactionBegins(this);
  std::string why;
  std::unique_ptr<grpc::ClientContext> context;
  {
    absl::MutexLock lock(&mutex_);
    over_ = true;
    context = std::move(context_);
    why = ReasonIn(*context).empty() ? why_ : status.error_message().substr(0, kMostEndBytes);
  }
  hooks_.on_over(why);  // First, or the ends of its calls speak for it.
  {
    absl::MutexLock lock(&mutex_);
    const PeerEnd lost{.code = absl::StatusCode::kUnavailable};
    while (!entries_.empty()) {
      const auto& [number, entry] = *entries_.begin();
      CloseEntry(number, entry.events->EndOf(lost), /*tell=*/false);
    }
    output_.Clear();
  }
  Advance();
  context.reset();
  const std::function<void()> on_released = hooks_.on_released;
  self_.reset();  // May delete this.
  on_released();
}

}  // namespace baton
