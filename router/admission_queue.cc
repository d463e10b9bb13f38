#include "router/admission_queue.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "router/error.h"

namespace baton {

void AdmissionQueue::Size::Add(const Size& other, int64_t times) {
  requests += times * other.requests;
  tokens += times * other.tokens;
  bytes += times * other.bytes;
}

AdmissionQueue::Size AdmissionQueue::SizeOf(const ValidRequest& body) {
  Size size{.requests = 1, .bytes = body.bytes};
  for (const auto& prompt : body.prompts) size.tokens += static_cast<int64_t>(prompt.size());
  return size;
}

// What an empty queue would not hold is refused for good.
absl::Status AdmissionQueue::CheckSize(const ValidRequest& body) const {
  const int64_t num_sequences = static_cast<int64_t>(body.prompts.size()) * body.num_choices;
  if (num_sequences < 1 || num_sequences > kMaxSequencesPerRequest) {
    return InvalidField("n", absl::StrFormat("prompts times n make %d sequences; allowed: 1 to %d.",
                                             num_sequences, kMaxSequencesPerRequest));
  }
  const Size size = SizeOf(body);
  if (size.tokens > options_.max_queued_tokens) {
    return InvalidField(
        body.prompt_param,
        absl::StrFormat("%s has %d tokens; this server takes at most %d in one request.",
                        body.prompt_param, size.tokens, options_.max_queued_tokens));
  }
  if (size.bytes > options_.max_queued_bytes) {
    return RequestTooLarge(size.bytes, options_.max_queued_bytes);
  }
  return absl::OkStatus();
}

absl::Status AdmissionQueue::Check(const ValidRequest& body, Time now) {
  RETURN_IF_ERROR(CheckSize(body));
  if (options_.max_queue_wait == Duration::max()) return absl::OkStatus();
  const Duration most = std::min(options_.max_queue_wait, body.timeout);
  const std::optional<Duration> wait = PredictedWait(body, now);
  if (!wait || *wait <= most) return absl::OkStatus();
  return TryLater(
      absl::StrFormat("this request would wait for %d s and may wait for %d s; try again later",
                      std::chrono::ceil<std::chrono::seconds>(*wait).count(),
                      std::chrono::floor<std::chrono::seconds>(most).count()),
      *wait - most);
}

// ---- What waits --------------------------------------------------------------------------------

bool AdmissionQueue::Fits(const Size& total) const {
  return total.requests <= options_.max_queued_requests &&
         total.tokens <= options_.max_queued_tokens && total.bytes <= options_.max_queued_bytes;
}

// In millionths of the queue's cap that it fills most of, by weight.
int64_t AdmissionQueue::ShareOf(const Size& size, int32_t weight) const {
  const auto part = [](int64_t value, int64_t cap) {
    return static_cast<double>(value) / static_cast<double>(cap);
  };
  const double most = std::max({part(size.requests, options_.max_queued_requests),
                                part(size.tokens, options_.max_queued_tokens),
                                part(size.bytes, options_.max_queued_bytes)});
  return static_cast<int64_t>(most * 1e6 / weight);
}

std::optional<uint64_t> AdmissionQueue::GoesFor(const ValidRequest& body) const {
  const Size size = SizeOf(body);
  Size total = total_;
  total.Add(size, 1);
  if (Fits(total) || by_share_.empty()) return std::nullopt;
  const auto& [share, name] = *by_share_.rbegin();
  const Backlog& largest = backlogs_.at(name);
  Size own = size;
  if (const auto it = backlogs_.find(body.tenant); it != backlogs_.end()) {
    own.Add(it->second.size, 1);
  }
  if (name == body.tenant || share <= ShareOf(own, body.weight)) return std::nullopt;
  // Not in vain: without the largest there is room.
  total.Add(largest.size, -1);
  if (!Fits(total)) return std::nullopt;
  const uint64_t newest = *largest.requests.rbegin();
  BATON_CHECK(live_.at(newest).waits);
  return newest;
}

absl::Status AdmissionQueue::Admit(uint64_t request, const ValidRequest& body, Time now) {
  BATON_CHECK(!live_.contains(request));
  Request admitted{.size = SizeOf(body), .priority = body.priority, .cost = CostOf(body)};
  Size total = total_;
  total.Add(admitted.size, 1);
  if (!Fits(total)) return FullFor(body, now);
  admitted.account = &counters_.Join(body.tenant, body.weight);
  Count(request, admitted, 1);
  live_.emplace(request, admitted);
  return absl::OkStatus();
}

// For others, room may be made.
std::optional<AdmissionQueue::Full> AdmissionQueue::IsFull(Time now) {
  if (total_.requests < options_.max_queued_requests || by_share_.empty()) return std::nullopt;
  const std::string& largest = by_share_.rbegin()->second;
  // As if its class were the last: of heads it is not known.
  const int32_t last = cost_.empty() ? 0 : cost_.rbegin()->first;
  return Full{.tenant = largest, .status = FullFor({.tenant = largest, .priority = last}, now)};
}

absl::Status AdmissionQueue::FullFor(const ValidRequest& body, Time now) {
  return TryLater("the router's queue is full; try again later",
                  PredictedWait(body, now).value_or(Duration::zero()));
}

// Adds it to what waits, or takes it away.
void AdmissionQueue::Count(uint64_t key, const Request& request, int64_t times) {
  total_.Add(request.size, times);
  num_by_class_[request.priority < 0 ? 0 : request.priority == 0 ? 1 : 2] += times;
  if ((cost_[request.priority] += times * request.cost) == 0) cost_.erase(request.priority);
  const std::string& name = request.account->name;
  Backlog& backlog = backlogs_[name];
  BATON_CHECK((by_share_.erase({backlog.share, name}) == 1) == !backlog.requests.empty());
  waiting_weight_ -= backlog.requests.empty() ? 0 : backlog.weight;
  backlog.size.Add(request.size, times);
  int64_t& cost = backlog.cost[request.priority];
  if ((cost += times * request.cost) == 0) backlog.cost.erase(request.priority);
  if (times > 0) {
    BATON_CHECK(backlog.requests.insert(key).second);
    backlog.weight = request.account->weight;
  } else {
    BATON_CHECK(backlog.requests.erase(key) == 1);
  }
  if (backlog.requests.empty()) {
    BATON_CHECK(backlog.size.tokens == 0 && backlog.size.bytes == 0 && backlog.cost.empty());
    backlogs_.erase(name);
  } else {
    waiting_weight_ += backlog.weight;
    backlog.share = ShareOf(backlog.size, backlog.weight);
    by_share_.emplace(backlog.share, name);
  }
  BATON_CHECK(total_.requests >= 0 && total_.tokens >= 0 && total_.bytes >= 0);
  BATON_CHECK(by_share_.size() == backlogs_.size() && waiting_weight_ >= 0);
}

// Nothing is done the second time.
void AdmissionQueue::Start(uint64_t request, Time now) {
  Request& started = live_.at(request);
  if (!std::exchange(started.waits, false)) return;
  Count(request, started, -1);
  forecast_.OnStarted(started.cost, now);
}

void AdmissionQueue::End(uint64_t request) {
  const auto it = live_.find(request);
  if (it == live_.end()) return;
  if (it->second.waits) Count(request, it->second, -1);
  TenantAccount& account = *it->second.account;
  live_.erase(it);
  counters_.Part(account);
  BATON_CHECK(!live_.empty() || (backlogs_.empty() && total_.requests == 0 && cost_.empty()));
}

void AdmissionQueue::Charge(uint64_t request, int64_t tokens) {
  TenantAccount& account = *live_.at(request).account;
  counters_.Charge(account, tokens);
  if (tokens < 0) waiting_.Rerank(account);
}

// ---- How long it will wait ---------------------------------------------------------------------

int64_t AdmissionQueue::CostOf(const ValidRequest& body) const {
  const int64_t choices = static_cast<int64_t>(body.prompts.size()) * body.num_choices;
  const int64_t answer =
      body.score_only ? 0 : forecast_.ExpectedTokens(body.sampling.max_tokens);
  return SizeOf(body).tokens + kAnswerWeight * choices * answer;
}

// Of this class and better ones.
int64_t AdmissionQueue::CostAhead(const CostByClass& cost, int32_t priority) {
  int64_t sum = 0;
  for (auto it = cost.begin(); it != cost.end() && it->first <= priority; ++it) sum += it->second;
  return sum;
}

// Until its tenant's own requests have had their turn, or all have.
std::optional<Duration> AdmissionQueue::PredictedWait(const ValidRequest& body, Time now) {
  int64_t ahead = CostAhead(cost_, body.priority);
  if (ahead == 0) return std::nullopt;
  const auto own = backlogs_.find(body.tenant);
  const int64_t weight = std::clamp(body.weight, 1, TenantCounters::kMaxWeight);
  const int64_t weights =
      own == backlogs_.end() ? waiting_weight_ + weight : waiting_weight_;
  const int64_t own_ahead =
      own == backlogs_.end() ? 0 : CostAhead(own->second.cost, body.priority);
  const double fair = static_cast<double>(own_ahead) * static_cast<double>(weights) /
                      static_cast<double>(own == backlogs_.end() ? weight : own->second.weight);
  if (fair < static_cast<double>(ahead)) ahead = static_cast<int64_t>(fair);
  return forecast_.Until(ahead, now);
}

// ---- Sequences ---------------------------------------------------------------------------------

void AdmissionQueue::Add(const SequenceState& sequence, Time now) {
  BATON_CHECK(sequence.state == SequenceState::State::kQueued);
  Remove(sequence);
  if (sequence.Holds()) {
    BATON_CHECK(holders_.insert(sequence.key()).second);
  } else {
    waiting_.Add(sequence, now);
  }
}

void AdmissionQueue::Remove(const SequenceState& sequence) {
  waiting_.Remove(sequence.id.counter);
  holders_.erase(sequence.key());
}

void AdmissionQueue::Take(const SequenceState& sequence, Time now) {
  BATON_CHECK(Contains(sequence));
  waiting_.Take(sequence.id.counter, now);
  holders_.erase(sequence.key());
  Start(sequence.request, now);
}

bool AdmissionQueue::Contains(const SequenceState& sequence) const {
  const bool in_queue = waiting_.Contains(sequence.id.counter);
  const bool in_holders = holders_.contains(sequence.key());
  // In one of them, and in the right one.
  BATON_CHECK(!(in_queue && sequence.Holds()) && !(in_holders && !sequence.Holds()));
  return in_queue || in_holders;
}

std::optional<QueueKey> AdmissionQueue::NextHolder(const std::optional<QueueKey>& after) const {
  const auto it = after ? holders_.upper_bound(*after) : holders_.begin();
  if (it == holders_.end()) return std::nullopt;
  return *it;
}

}  // namespace baton
