#include "router/node.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "common/base/overloaded.h"
#include "router/error.h"

namespace baton {
namespace {

constexpr char kAlone[] = "no prefill worker pairs with it: it computes prompts itself";

}  // namespace

RouterNode::RouterNode(const RouterNodeOptions& options, const std::vector<Role>& worker_roles,
                       std::unique_ptr<RoutingPolicy> policy, RouterOutbox& outbox)
    : options_(options),
      directory_(worker_roles, options.hang_limit, options.alone_after),
      queue_(options_),
      room_claims_(options.room_claim),
      waits_(options_),
      recovery_(options_, directory_, counters_),
      returns_(options_, directory_),
      prefixes_(options.max_directory_entries),
      pairs_(options_,
             {.directory = directory_,
              .recovery = recovery_,
              .claims = room_claims_,
              .prefixes = prefixes_},
             std::move(policy)),
      charges_(queue_),
      output_(outbox, charges_, counters_),
      calls_(directory_, outbox),
      outbox_(outbox) {}

void RouterNode::Handle(RouterMail mail, Time now) {
  std::visit(Overloaded{[&](ClientSubmit& submit) { OnSubmit(std::move(submit), now); },
                        [&](const ClientCancel& cancel) {
                          EndRequest(cancel.request,
                                     absl::CancelledError("the client cancelled the request"));
                        },
                        [&](const ClientStop& stop) { OnStop(stop, now); },
                        [&](WorkerEventReceived& event) { OnWorkerEvent(std::move(event), now); },
                        [&](const CallClosed& closed) { OnCallClosed(closed, now); },
                        [&](WorkerListed& listed) {
                          ++counters_.workers_listed;
                          directory_.List(listed.worker, listed.role, std::move(listed.address));
                        },
                        [&](const WorkerForgotten& forgotten) {
                          ++counters_.workers_forgotten;
                          returns_.Note(forgotten.worker);
                          prefixes_.Forget(forgotten.worker);
                          directory_.Forget(forgotten.worker, now);
                        },
                        [&](const WorkerUp& up) { OnWorkerUp(up, now); },
                        [&](const WorkerStatusChanged& changed) {
                          directory_.OnStatus(changed.worker, changed.status, now);
                          returns_.Note(changed.worker);
                        },
                        // Its calls end by themselves, each with a CallClosed.
                        [&](const WorkerDown& down) {
                          directory_.OnDown(down.worker, down.reason, now, down.is_gone);
                          returns_.Note(down.worker);
                        },
                        [&](const RouterAuditAsked& audit) { audit.answer(Audit(now)); }},
             mail);
}

void RouterNode::OnWorkerUp(const WorkerUp& up, Time now) {
  returns_.Note(up.worker);  // Of the process that was there before.
  if (directory_.OnUp(up.worker, up.hello, now)) prefixes_.Forget(up.worker);
  returns_.Note(up.worker);
}

void RouterNode::Step(Time now) {
  // Woken late, the router knows nothing of its workers' silence: answers may lie unread.
  if (wake_due_ != kNever && now - wake_due_ > options_.hang_limit / 6) {
    directory_.Forgive(now);
    for (auto& [counter, sequence] : sequences_) {
      waits_.Restart(sequence, now);
      returns_.Restart(sequence, now);
    }
  }
  while (auto request = deadlines_.Expired(now)) {
    EndRequest(*request, absl::DeadlineExceededError("the request's time limit has passed"));
  }
  // Stopped for a shorter time, it has not read its mail yet when it wakes.
  directory_.OnLook(now);
  if (now >= directory_.FenceAt()) FenceHungWorkers(now);
  while (auto counter = waits_.Expired(now)) CheckWatch(*counter, now);
  Dispatch(now);
  stepped_at_ = now;
  wake_due_ = NextDeadline();
}

Time RouterNode::NextDeadline() const {
  return std::min({deadlines_.Next(), waits_.Next(), retry_at_, directory_.FenceAt()});
}

// ---- Clients -----------------------------------------------------------------------------------

void RouterNode::OnSubmit(ClientSubmit submit, Time now) {
  ++counters_.requests;
  if (requests_.contains(submit.request)) {
    ++counters_.stale_mail;
    return;
  }
  RequestState& request = requests_[submit.request];
  request.body = std::move(submit.body);
  request.arrival = now;
  request.deadline = now + request.body.timeout;
  deadlines_.Set(submit.request, request.deadline);
  if (absl::Status status = Admit(submit.request, request, now); !status.ok()) {
    ++counters_.refused;
    EndRequest(submit.request, status);
    return;
  }
  recovery_.OnRequest();
  AddSequences(submit.request, request, now);
  BATON_FAIL_POINT("router.queued");
}

absl::Status RouterNode::Admit(uint64_t key, const RequestState& request, Time now) {
  if (absl::Status status = queue_.Check(request.body, now); !status.ok()) {
    counters_.shed += absl::IsResourceExhausted(status) ? 1 : 0;
    return status;
  }
  // Who fills the queue makes room for others.
  while (const std::optional<uint64_t> newest = queue_.GoesFor(request.body)) {
    ++counters_.evicted;
    EndRequest(*newest, TryLater("the router's queue is full, most of it with requests like this "
                                   "one's; try again later",
                                   Duration::zero()));
  }
  return queue_.Admit(key, request.body, now);
}

void RouterNode::AddSequences(uint64_t key, RequestState& request, Time now) {
  const ValidRequest& body = request.body;
  request.cache_counted.resize(body.prompts.size());
  const TenantAccount* account = queue_.AccountOf(key);
  const bool wants_score = body.sampling.num_prompt_logprobs >= 0;
  const int32_t choices = body.score_only ? 1 : body.num_choices;
  for (int32_t p = 0; p < static_cast<int32_t>(body.prompts.size()); ++p) {
    const auto& prompt = body.prompts[p];
    const auto hashes = PrefixDirectory::Hashes(body.tenant, prompt);
    const uint64_t first = next_sequence_;
    for (int32_t c = 0; c < choices; ++c) {
      const uint64_t counter = next_sequence_++;
      const auto [it, is_new] = sequences_.try_emplace(counter);
      BATON_CHECK(is_new);
      SequenceState& sequence = it->second;
      sequence.id = {options_.incarnation, counter};
      sequence.request = key;
      sequence.body = &body;
      sequence.account = account;
      sequence.arrival = request.arrival;
      sequence.choice = p * body.num_choices + c;
      sequence.prompt = p;
      sequence.owes_score = wants_score && c == 0 && prompt.size() > 1;
      // Of one token each nothing is ever decoded.
      sequence.leader = c > 0 && body.sampling.max_tokens > 1 ? first : 0;
      sequence.prefix_hashes = hashes;
      sequence.queued_since = now;
      request.sequences.push_back(counter);
      queue_.Add(sequence, now);
    }
  }
  BATON_CHECK(!request.sequences.empty());
}

void RouterNode::OnStop(const ClientStop& stop, Time now) {
  auto it = requests_.find(stop.request);
  if (it == requests_.end()) {
    ++counters_.stale_mail;
    return;
  }
  for (uint64_t counter : it->second.sequences) {
    SequenceState& sequence = sequences_.at(counter);
    if (sequence.choice != stop.choice) continue;
    sequence.finished = true;
    FinishIfDone(sequence, now);
    CheckInvariants(counter);
    return;
  }
}

// The one place where a request ends: everything of it is let go, then the terminal event.
void RouterNode::EndRequest(uint64_t key, absl::Status status) {
  auto it = requests_.find(key);
  if (it == requests_.end()) {
    ++counters_.stale_mail;
    return;
  }
  BATON_FAIL_POINT("router.finishing");
  RequestState& request = it->second;
  for (uint64_t counter : request.sequences) {
    SequenceState& sequence = sequences_.at(counter);
    ReleaseAll(sequence);
    sequences_.erase(counter);
  }
  queue_.End(key);
  deadlines_.Clear(key, request.deadline);
  ++(status.ok()                 ? counters_.ok
     : absl::IsCancelled(status) ? counters_.cancelled
                                 : counters_.failed);
  RequestEnded ended{.status = std::move(status), .cached_tokens = request.cached_tokens};
  requests_.erase(it);
  BATON_CHECK(!requests_.empty() || (sequences_.empty() && calls_.empty()));
  outbox_.Emit(key, std::move(ended));
}

// The client has all of this choice: its workers are let go, and the request ends with its last.
void RouterNode::FinishIfDone(SequenceState& sequence, Time now) {
  if (!sequence.finished) return;
  if (sequence.owes_score) return AwaitScore(sequence, now);
  const uint64_t key = sequence.request;
  const uint64_t counter = sequence.id.counter;
  if (!sequence.body->score_only) queue_.OnAnswer(std::ssize(sequence.emitted));
  ReleaseAll(sequence);
  RequestState& request = requests_.at(key);
  BATON_CHECK(std::erase(request.sequences, counter) == 1);
  sequences_.erase(counter);
  if (request.sequences.empty()) EndRequest(key, absl::OkStatus());
}

// Only a call that scores is needed any more, the one that is open or another.
void RouterNode::AwaitScore(SequenceState& sequence, Time now) {
  BATON_CHECK(sequence.finished && sequence.owes_score);
  returns_.Forget(sequence);
  // It is what brings them.
  if (sequence.IsAlone() && sequence.decode.call != 0) return;
  calls_.Drop(sequence.decode);
  if (sequence.prefill.call == 0) return Enqueue(sequence, now);
  queue_.Remove(sequence);
  sequence.state = State::kPrefilling;
  waits_.Clear(sequence);
}

// What holds between two pieces of mail, if the sequence still lives: which calls are open in which
// state, who queues, and that somebody's time runs.
void RouterNode::CheckInvariants(uint64_t counter) const {
  const auto it = sequences_.find(counter);
  if (it == sequences_.end()) return;
  const SequenceState& sequence = it->second;
  BATON_CHECK(queue_.Contains(sequence) ==
              (sequence.state == State::kQueued && !returns_.IsWaiting(sequence)));
  BATON_CHECK(!sequence.finished || sequence.owes_score);
  BATON_CHECK(!returns_.IsWaiting(sequence) ||
              (sequence.state == State::kQueued && !sequence.Holds() && sequence.losses.empty()));
  for (const Side* side : {&sequence.prefill, &sequence.decode}) {
    BATON_CHECK(side->call == 0 || calls_.OwnerOf(side->call) == counter);
    BATON_CHECK(side->call != 0 || side->tokens == 0 || side == &sequence.prefill);
  }
  switch (sequence.state) {
    case State::kQueued:
      BATON_CHECK(sequence.prefill.call == 0 || sequence.decode.call == 0);
      BATON_CHECK(waits_.IsHeld(sequence) == sequence.Holds());
      return;
    case State::kReserving:
    case State::kRebinding:
      BATON_CHECK(sequence.decode.call != 0 && waits_.Awaits(sequence));
      return;
    case State::kPrefilling:
      // The verdict is waited for when P has said that all was sent.
      BATON_CHECK(sequence.prefill.call != 0 || waits_.Awaits(sequence));
      BATON_CHECK(!waits_.IsHeld(sequence));
      return;
    case State::kDecoding:
      BATON_CHECK(sequence.decode.call != 0 && !waits_.Awaits(sequence));
      BATON_CHECK(!sequence.recovering && sequence.losses.empty());
      BATON_CHECK(sequence.back.until == Time{});
  }
}

// ---- Snapshots ---------------------------------------------------------------------------------

RouterView RouterNode::View() const {
  RouterView view;
  const std::vector<std::string> why_unpaired = directory_.WhyUnpaired();
  for (int32_t i = 0; i < static_cast<int32_t>(directory_.workers().size()); ++i) {
    const WorkerDirectory::Worker& w = directory_.workers()[i];
    if (!w.listed || (w.up && w.is_alias)) continue;
    const bool draining = w.up && w.status.draining;
    const bool alone = directory_.IsAlone(i, stepped_at_);
    const std::string& unpaired = why_unpaired[i];
    view.workers.push_back(
        {.role = w.role,
         .index = i,
         .address = w.address,
         .healthy = w.up && !w.hung && !draining,
         .reason = draining && !w.hung ? "draining"
                   : alone            ? absl::StrCat(kAlone, unpaired.empty() ? "" : "; ", unpaired)
                   : unpaired.empty() ? w.reason
                                      : unpaired,
         .hello = w.hello,
         .pair = w.pair,
         .status = w.status,
         .alone = alone,
         .last_token = w.last_token,
         .last_prompt = w.last_prompt});
  }
  Count(&view);
  return view;
}

void RouterNode::Count(RouterView* view) const {
  view->queued_requests = queue_.num_requests();
  view->queued_tokens = queue_.num_tokens();
  view->running_requests = static_cast<int64_t>(requests_.size()) - queue_.num_requests();
  view->queued_by_class = queue_.num_by_class();
  view->live_tenants = static_cast<int64_t>(queue_.num_tenants());
}

RouterAudit RouterNode::Audit(Time now) const {
  static constexpr const char* kNames[] = {"QUEUED", "RESERVING", "REBINDING", "PREFILLING",
                                           "DECODING"};
  RouterAudit audit{
      .incarnation = options_.incarnation, .sequences = {}, .blamed = recovery_.Blamed(now)};
  for (const auto& [counter, sequence] : sequences_) {
    const auto open = [](const Side& side) { return side.call != 0 ? side.incarnation : 0; };
    audit.sequences.push_back({.sequence = sequence.id,
                               .label = sequence.body->label,
                               .attempt = sequence.attempt,
                               .state = kNames[static_cast<int>(sequence.state)],
                               .prefill = open(sequence.prefill),
                               .decode = open(sequence.decode),
                               .age = now - requests_.at(sequence.request).arrival,
                               .moves = sequence.moves,
                               .retries = sequence.retries,
                               .handoff_failures = sequence.handoff_failures,
                               .lost = sequence.lost});
  }
  return audit;
}

}  // namespace baton
