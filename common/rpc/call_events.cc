#include "common/rpc/call_events.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/caller_protocols.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"
#include "common/rpc/wire_fields.h"

namespace baton {
namespace {

constexpr int64_t kMaxPrefillEvents = 64;

// Of a prompt: for each position its log probabilities, and at worst an event of its own.
template <typename Request>
int64_t MostScores(const Request& request) {
  const int64_t top = request.sampling.num_prompt_logprobs;
  return top < 0 ? 0 : request.prompt_length * (top + 2);
}

uint32_t PlaceOf(uint32_t request_seal, uint64_t num_before) {
  return request_seal + static_cast<uint32_t>(num_before);
}

}  // namespace

// Each token may come alone, and counts once as an event and once as an output.
int64_t MaxOutputs(const DecodeRequest& request) {
  const int64_t scores = request.compute_prompt ? MostScores(request) : 0;
  return 2 * int64_t{request.sampling.max_tokens} + 16 + scores;
}

int64_t MaxOutputs(const PrefillRequest& request) {
  return kMaxPrefillEvents + MostScores(request);
}

template <typename Event>
void EventSealer::SealNext(Event* event) {
  if (event->has_alive()) event->mutable_alive()->set_num_events(num_sent_);
  baton::Seal(event, PlaceOf(request_seal_, num_sent_));
  if (!event->has_alive()) ++num_sent_;
}

bool EventSealer::Seal(v1::DecodeEvent* event) {
  if (protocol_ < kFirstProtocolOfRanks && event->has_reserved()) {
    v1::Reserved* const reserved = event->mutable_reserved();
    reserved->set_data_endpoint(WriteEndpoint(reserved->ranks()));
    reserved->clear_ranks();
  }
  SealNext(event);
  return true;
}

bool EventSealer::Seal(v1::PrefillEvent* event) {
  if (protocol_ < kFirstProtocolOfScores) {
    if (event->has_scores()) {
      scores_.MergeFrom(event->scores());
      return false;
    }
    if (event->has_prefilled()) {
      event->mutable_prefilled()->mutable_prompt_logprobs()->Swap(
          scores_.mutable_prompt_logprobs());
    }
  }
  SealNext(event);
  return true;
}

template <typename Event>
absl::StatusOr<std::optional<WorkerEvent>> CallEvents::TakeNext(const Event& event) {
  silence_.OnRead(true);
  bad_ = CheckWhole(event);
  is_damaged_ = !bad_.ok();
  if (is_damaged_) return bad_;
  if (event.has_alive()) return std::nullopt;
  ++num_events_;
  absl::StatusOr<WorkerEvent> valid = FromProto(event, limits_);
  bad_ = valid.ok() ? CountOutputs(*valid) : valid.status();
  if (!bad_.ok()) return bad_;
  return std::optional(*std::move(valid));
}

absl::StatusOr<std::optional<WorkerEvent>> CallEvents::Take(const v1::DecodeEvent& event) {
  return TakeNext(event);
}

absl::StatusOr<std::optional<WorkerEvent>> CallEvents::Take(const v1::PrefillEvent& event) {
  return TakeNext(event);
}

template <typename Event>
absl::Status CallEvents::CheckWhole(const Event& event) const {
  if (!request_seal_.has_value()) return absl::OkStatus();
  if (event.has_alive() && event.alive().num_events() != num_events_) {
    return absl::DataLossError(absl::StrCat("of ", event.alive().num_events(),
                                            " events that were sent ", num_events_, " came"));
  }
  return CheckSeal(event, PlaceOf(*request_seal_, num_events_));
}

// The router's memory is bounded by what was asked for, not by what a worker sends.
absl::Status CallEvents::CountOutputs(const WorkerEvent& event) {
  int64_t outputs = 1;
  if (const auto* tokens = std::get_if<TokensEvent>(&event)) {
    outputs += static_cast<int64_t>(tokens->outputs.size());
  } else if (const auto* scores = std::get_if<ScoresEvent>(&event)) {
    for (const PromptLogprob& one : scores->logprobs) outputs += NumScores(one);
  }
  outputs_left_ -= outputs;
  if (outputs_left_ >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError("more events than the request allows");
}

bool CallEvents::Sweep() {
  if (!silence_.Sweep()) return false;
  is_silent_ = true;
  return true;
}

// An event that arrived whole and is refused all the same says nothing of the connection; who gives
// the call up has looked at that himself.
CallEvents::End CallEvents::EndOf(const PeerEnd& peer) const {
  if (!bad_.ok()) {
    return {absl::DataLossError(absl::StrCat("the worker sent a bad event: ", bad_.message())),
            is_damaged_};
  }
  const bool is_own_word = peer.code == absl::StatusCode::kOk || !peer.reason.empty();
  if (is_given_up_ && !is_own_word) return {absl::UnavailableError("the worker was given up")};
  absl::Status status =
      is_silent_ && !is_own_word ? absl::UnavailableError("the call went silent") : StatusOf(peer);
  const bool is_broken = !is_given_up_ && IsOfTheConnection(status, peer.reason);
  return {std::move(status), is_broken};
}

}  // namespace baton
