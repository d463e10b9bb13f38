#include "router/admission_queue.h"

#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "router/error.h"

namespace baton {

// What an empty queue would not hold is refused for good.
absl::Status AdmissionQueue::CheckSize(const ValidRequest& body, const Size& size,
                                       const RouterNodeOptions& options) {
  const int64_t num_sequences = static_cast<int64_t>(body.prompts.size()) * body.num_choices;
  if (num_sequences < 1 || num_sequences > kMaxSequencesPerRequest) {
    return InvalidField("n", absl::StrFormat("prompts times n make %d sequences; allowed: 1 to %d.",
                                             num_sequences, kMaxSequencesPerRequest));
  }
  if (size.tokens > options.max_queued_tokens) {
    return InvalidField(
        body.prompt_param,
        absl::StrFormat("%s has %d tokens; this server takes at most %d in one request.",
                        body.prompt_param, size.tokens, options.max_queued_tokens));
  }
  if (size.bytes > options.max_queued_bytes) {
    return RequestTooLarge(size.bytes, options.max_queued_bytes);
  }
  return absl::OkStatus();
}

absl::Status AdmissionQueue::Admit(uint64_t request, const ValidRequest& body) {
  BATON_CHECK(!counted_.contains(request));
  Size size{.bytes = body.bytes};
  for (const auto& prompt : body.prompts) size.tokens += static_cast<int64_t>(prompt.size());
  RETURN_IF_ERROR(CheckSize(body, size, options_));
  if (num_requests() + 1 > options_.max_queued_requests ||
      total_.tokens + size.tokens > options_.max_queued_tokens ||
      total_.bytes + size.bytes > options_.max_queued_bytes) {
    return absl::ResourceExhaustedError("the router's queue is full; try again later");
  }
  counted_.emplace(request, size);
  total_.tokens += size.tokens;
  total_.bytes += size.bytes;
  return absl::OkStatus();
}

void AdmissionQueue::Leave(uint64_t request) {
  const auto it = counted_.find(request);
  if (it == counted_.end()) return;
  total_.tokens -= it->second.tokens;
  total_.bytes -= it->second.bytes;
  counted_.erase(it);
  BATON_CHECK(total_.tokens >= 0 && total_.bytes >= 0);
  BATON_CHECK(!counted_.empty() || (total_.tokens == 0 && total_.bytes == 0));
}

void AdmissionQueue::Add(const SequenceState& sequence) {
  BATON_CHECK(sequence.state == SequenceState::State::kQueued);
  Remove(sequence);
  (sequence.Holds() ? holders_ : queue_).insert(sequence.key());
}

void AdmissionQueue::Remove(const SequenceState& sequence) {
  queue_.erase(sequence.key());
  holders_.erase(sequence.key());
}

bool AdmissionQueue::Contains(const SequenceState& sequence) const {
  const bool in_queue = queue_.contains(sequence.key());
  const bool in_holders = holders_.contains(sequence.key());
  // In one of them, and in the right one.
  BATON_CHECK(!(in_queue && sequence.Holds()) && !(in_holders && !sequence.Holds()));
  return in_queue || in_holders;
}

std::optional<QueueKey> AdmissionQueue::Next(bool holds,
                                             const std::optional<QueueKey>& after) const {
  const std::set<QueueKey>& waiting = holds ? holders_ : queue_;
  const auto it = after ? waiting.upper_bound(*after) : waiting.begin();
  if (it == waiting.end()) return std::nullopt;
  return *it;
}

}  // namespace baton
