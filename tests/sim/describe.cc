// Messages as they are shown in a trace.
#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/sim/control_net.h"

namespace baton::sim {
namespace {

std::string Name(const SequenceId& id, Attempt attempt) {
  return absl::StrCat(id.counter, "/", attempt);
}

struct EventText {
  std::string operator()(const ReservedEvent& e) const {
    return absl::StrCat("Reserved attempt ", e.attempt, " cached ", e.cached_tokens);
  }
  std::string operator()(const TokensEvent& e) const {
    std::string text = absl::StrCat("Tokens attempt ", e.attempt, ":");
    for (const TokenOutput& output : e.outputs) {
      absl::StrAppend(&text, " ", output.position,
                      output.finish != FinishReason::kNone ? " (last)" : "");
    }
    if (e.cached_tokens > 0) absl::StrAppend(&text, " cached ", e.cached_tokens);
    return text;
  }
  std::string operator()(const ScoresEvent& e) const {
    return absl::StrCat("Scores attempt ", e.attempt, ": ", e.logprobs.front().position, " to ",
                        e.logprobs.back().position);
  }
  std::string operator()(const PrefilledEvent& e) const {
    return absl::StrCat("Prefilled attempt ", e.attempt, e.first ? " first token" : "");
  }
  std::string operator()(const HandoffFailedEvent& e) const {
    return absl::StrCat("HandoffFailed attempt ", e.attempt, ": ", e.reason);
  }
};

}  // namespace

std::string Describe(const RouterMail& mail) {
  if (auto* event = std::get_if<WorkerEventReceived>(&mail)) {
    return std::visit(EventText{}, event->event);
  }
  if (auto* closed = std::get_if<CallClosed>(&mail)) {
    return absl::StrCat("closed: ", closed->status.ToString());
  }
  return "mail";
}

std::string Describe(const AnyWorkerMail& mail) {
  if (auto* rebind = std::get_if<RebindAsked>(&mail)) {
    return absl::StrCat("Rebind ", Name(rebind->request.sequence, rebind->request.attempt), " to ",
                        rebind->request.prefill);
  }
  if (auto* send = std::get_if<SendAsked>(&mail)) {
    return absl::StrCat("Send ", Name(send->request.sequence, send->request.attempt), " to ",
                        send->request.handoff.decode);
  }
  return "mail";
}

}  // namespace baton::sim
