#include "common/rpc/session_server.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/connection.h"
#include "common/rpc/reaction_order.h"

namespace baton {
namespace {

constexpr int kMostEnded = 64;

}  // namespace

std::shared_ptr<SessionServer> SessionServer::Create(grpc::CallbackServerContext* context,
                                                     Options options) {
  std::shared_ptr<SessionServer> session(new SessionServer(context, std::move(options)));
  session->self_ = session;
  session->unsent_.OnTooMuch([one = std::weak_ptr<SessionServer>(session)] {
    if (const auto here = one.lock()) here->Abandon();
  });
  ReactionEnds(session.get());
  session->StartRead(&session->received_);
  return session;
}

size_t SessionServer::num_calls() const {
  absl::MutexLock lock(&mutex_);
  return open_.size();
}

void SessionServer::Tell(uint64_t call, v1::CallTold told) {
  {
    absl::MutexLock lock(&mutex_);
    const auto it = open_.find(call);
    if (it == open_.end()) return;
    GiveBack(it->second);
  }
  if (static_cast<int64_t>(told.ByteSizeLong()) > kMostItemBytes) {
    return Break(call, absl::InternalError("an event is larger than a message may be"));
  }
  told.set_call(call);
  bool is_read = false;
  {
    absl::MutexLock lock(&mutex_);
    is_read = Queue(std::move(told));
  }
  if (!is_read) Break(call, absl::UnavailableError("its scores are not read"));
  options_.unsent->EndLargest();
}

void SessionServer::End(uint64_t call, const absl::Status& status) { EndCall(call, status); }

void SessionServer::Flush() {
  {
    absl::MutexLock lock(&mutex_);
    is_due_ = !output_.empty();
  }
  Advance();
}

void SessionServer::Break(uint64_t call, const absl::Status& status) {
  if (EndCall(call, status)) options_.hooks.on_broken(call, /*session_ended=*/false);
}

bool SessionServer::Forget(uint64_t call) {
  absl::MutexLock lock(&mutex_);
  return Erase(call);
}

bool SessionServer::Erase(uint64_t call) {
  const auto it = open_.find(call);
  if (it == open_.end()) return false;
  GiveBack(it->second);
  open_.erase(it);
  return true;
}

// Nothing, and no lock that all sessions share, for each event of a call but its first.
void SessionServer::GiveBack(int64_t& weight) {
  if (weight == 0) return;
  opens_.Add(-std::exchange(weight, 0));
}

bool SessionServer::EndCall(uint64_t call, const absl::Status& status) {
  v1::CallTold told;
  told.set_call(call);
  told.mutable_end()->set_code(static_cast<int32_t>(status.code()));
  told.mutable_end()->set_message(std::string(status.message().substr(0, kMostEndBytes)));
  {
    // At once: a session that closes ends when no call is left and nothing is to be said.
    absl::MutexLock lock(&mutex_);
    if (!Erase(call)) return false;
    Queue(std::move(told));
  }
  options_.unsent->EndLargest();
  return true;
}

bool SessionServer::Queue(v1::CallTold told) {
  if (finishing_.has_value()) return true;
  const uint64_t call = told.call();
  if (!told.has_prefill() || !told.prefill().has_scores()) {
    output_.Add(std::move(told));
    return true;
  }
  output_.AddBulk(std::move(told));
  if (output_.BulkBytesOf(call) <= kMostBulkBytes) return true;
  output_.DropBulk(call);  // Nobody will miss them: the call ends.
  return false;
}

void SessionServer::Beat(bool node_lives) {
  if (silence_.Sweep()) return Abandon();
  {
    absl::MutexLock lock(&mutex_);
    says_alive_ = node_lives && key_.has_value();
  }
  Advance();
}

void SessionServer::Close(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = status;
  }
  Flush();
}

void SessionServer::AbandonIf(uint32_t key) {
  {
    absl::MutexLock lock(&mutex_);
    if (key_ != key) return;
  }
  BreakAll();
  Abandon();
}

// Whoever is here first: the other returns when all is with the node.
void SessionServer::BreakAll() {
  absl::MutexLock taking(&taking_);
  is_over_ = true;
  std::vector<uint64_t> broken;
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [call, weight] : open_) {
      GiveBack(weight);
      broken.push_back(call);
    }
    open_.clear();
  }
  for (const uint64_t call : broken) options_.hooks.on_broken(call, /*session_ended=*/true);
}

void SessionServer::Abandon() {
  const std::lock_guard lock(context_mutex_);
  if (has_context_) context_->TryCancel();  // May call OnCancel, even OnDone, from within.
}

void SessionServer::AbandonUnless(const std::function<bool(const grpc::AuthContext&)>& is_trusted) {
  const std::lock_guard lock(context_mutex_);
  if (has_context_ && !is_trusted(*context_->auth_context())) context_->TryCancel();
}

absl::Status SessionServer::TakeFirst(const v1::SessionOpen& open) {
  has_first_ = true;
  if (open.expected_incarnation() != options_.incarnation) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected_incarnation = ", open.expected_incarnation(),
                     ": another process runs here now; say Hello again"));
  }
  if (open.ended_size() > kMostEnded) {
    return absl::InvalidArgumentError(
        absl::StrCat("ended has ", open.ended_size(), " keys; allowed: 0 to ", kMostEnded));
  }
  for (const uint32_t key : open.ended()) options_.hooks.on_replaced(key);
  input_.set_key(open.key());
  {
    absl::MutexLock lock(&mutex_);
    key_ = open.key();
  }
  // Whoever says so from now on finds this session by its key.
  if (!options_.hooks.has_ended(open.key())) return absl::OkStatus();
  return absl::CancelledError("its router has said that this session has ended");
}

absl::Status SessionServer::Weigh(const v1::CallAsked& asked) {
  if (unsent_.IsHalfFull()) {
    return absl::ResourceExhaustedError("this router does not read what it is told");
  }
  const auto weight = static_cast<int64_t>(asked.SpaceUsedLong());
  if (!opens_.Take(weight)) {
    return absl::ResourceExhaustedError("too much waits here to be computed: try another worker");
  }
  open_[asked.call()] = weight;
  return absl::OkStatus();
}

absl::Status SessionServer::OpenCall(const v1::CallAsked& asked) {
  if (asked.call() != last_call_ + 1) {
    return absl::DataLossError(
        absl::StrCat("call ", asked.call(), " was opened where ", last_call_ + 1, " was to be"));
  }
  ++last_call_;
  absl::Status refused;
  {
    absl::MutexLock lock(&mutex_);
    open_[asked.call()] = 0;  // Before it is offered, so that the node may answer at once.
    refused = closing_.has_value() ? *closing_ : Weigh(asked);
  }
  if (refused.ok()) refused = options_.hooks.on_asked(asked.call(), asked);
  if (!refused.ok()) EndCall(asked.call(), refused);
  return absl::OkStatus();
}

// An error is of the session; what is wrong with a call alone ends that.
absl::Status SessionServer::TakeAsked(const v1::CallAsked& asked) {
  if (asked.has_decode() || asked.has_prefill()) return OpenCall(asked);
  if (asked.call() == 0 || asked.call() > last_call_) {
    return absl::DataLossError(absl::StrCat("call ", asked.call(), " was not opened"));
  }
  if (asked.has_cancel()) {
    if (Forget(asked.call())) options_.hooks.on_broken(asked.call(), /*session_ended=*/false);
    absl::MutexLock lock(&mutex_);
    output_.DropBulk(asked.call());
    return absl::OkStatus();
  }
  {
    absl::MutexLock lock(&mutex_);
    if (!open_.contains(asked.call())) return absl::OkStatus();
  }
  const absl::Status refused = options_.hooks.on_asked(asked.call(), asked);
  if (!refused.ok()) Break(asked.call(), absl::UnavailableError(refused.message()));
  return absl::OkStatus();
}

absl::Status SessionServer::TakeMessage() {
  v1::ToWorker message;
  RETURN_IF_ERROR(input_.Take(received_, &message));
  silence_.OnRead(true);
  if (has_first_ == message.has_open()) {
    return absl::InvalidArgumentError("open belongs into the first message, and into no other");
  }
  if (!has_first_) RETURN_IF_ERROR(TakeFirst(message.open()));
  return TakeCalls(message);
}

absl::Status SessionServer::TakeCalls(const v1::ToWorker& message) {
  absl::MutexLock lock(&taking_);
  if (is_over_) return absl::CancelledError("another session has replaced this one");
  for (const v1::CallAsked& asked : message.calls()) RETURN_IF_ERROR(TakeAsked(asked));
  return absl::OkStatus();
}

void SessionServer::OnReadDone(bool ok) {
  ReactionBegins(this);
  const absl::Status taken =
      ok ? TakeMessage() : absl::CancelledError("the router has ended the session");
  ReactionEnds(this);
  if (!taken.ok()) return Finish(taken);
  StartRead(&received_);
  Flush();  // Calls that were refused; and the last of a session that closes may be gone.
}

void SessionServer::OnWriteDone(bool ok) {
  ReactionBegins(this);
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    output_.Written();
  }
  ReactionEnds(this);
  if (!ok) return Finish(absl::CancelledError("the session was lost"));
  Advance();
}

void SessionServer::OnCancel() {
  ReactionBegins(this);
  Finish(absl::CancelledError("the session was cancelled"));
  ReactionEnds(this);
}

void SessionServer::Finish(absl::Status status) {
  {
    absl::MutexLock lock(&mutex_);
    if (!finishing_.has_value()) finishing_ = std::move(status);
    output_.Clear();
  }
  Advance();
}

void SessionServer::Advance() {
  absl::Status finish;
  v1::ToRouter message;
  uint32_t key = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (writing_ || finished_) return;
    if (!finishing_.has_value() && closing_.has_value() && open_.empty() && output_.empty()) {
      finishing_ = closing_;
    }
    if (finishing_.has_value()) {
      finished_ = true;
      finish = *finishing_;
    } else if ((is_due_ && !output_.empty()) || says_alive_) {
      message = is_due_ ? output_.Next() : output_.SignOfLife();
      key = *key_;
      is_due_ = is_due_ && !output_.empty();
      says_alive_ = false;
      writing_ = true;
    } else {
      return;
    }
  }
  if (finish.ok()) {
    sent_ = SealFrame(message, key);
    return StartWrite(&sent_);
  }
  context_->AddTrailingMetadata(kReasonKey, ReasonOf(finish.code()));
  ServerBidiReactor::Finish(ToGrpc(finish));
}

// After all else has returned: no call is being opened any more.
void SessionServer::OnDone() {
  ReactionBegins(this);
  {
    const std::lock_guard lock(context_mutex_);
    has_context_ = false;
  }
  {
    absl::MutexLock lock(&mutex_);
    finished_ = true;
  }
  BreakAll();
  options_.hooks.on_done();
  self_.reset();  // May delete this.
}

}  // namespace baton
