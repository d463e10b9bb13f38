#include "tests/sim/clients.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/fake_model.h"

namespace baton::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

// ---- What they ask -----------------------------------------------------------------------------

ValidRequest Clients::DrawRequest() {
  ValidRequest request;
  Random& random = world_.random;
  const int32_t num_prompts = random.Below(5) == 0 ? 2 : 1;
  for (int32_t p = 0; p < num_prompts; ++p) {
    // Few distinct prefixes, so that caches are hit.
    Random prefix(random.Below(4));
    std::vector<int32_t> prompt;
    const int64_t shared = random.Below(scenario_.max_prompt_tokens - 7);
    for (int64_t i = 0; i < shared; ++i) prompt.push_back(prefix.Below(kVocab));
    const int64_t own = 1 + random.Below(8);
    for (int64_t i = 0; i < own; ++i) prompt.push_back(random.Below(kVocab));
    request.prompts.push_back(std::move(prompt));
  }
  request.num_choices = 1 + random.Below(2);
  request.sampling.seed = random.Next();
  request.sampling.max_tokens = 1 + random.Below(scenario_.max_answer_tokens);
  request.sampling.ignore_eos = random.Below(2) == 0;
  request.score_only = random.Below(10) == 0;
  if (request.score_only || random.Below(8) == 0) request.sampling.num_prompt_logprobs = 1;
  request.tenant = random.Below(4) == 0 ? "b" : "a";
  request.weight = request.tenant == "b" ? 3 : 1;
  request.priority = static_cast<int32_t>(request.sampling.seed % 4) - 2;
  request.timeout = seconds(600);
  if (world_.Chance(scenario_.deadline_rate)) {
    request.timeout = world_.Micros(1000, random.Below(4) == 0 ? 6000000 : 300000);
  }
  return request;
}

void Clients::ToRouter(int router, RouterMail mail) {
  RouterHost* host = routers_[router];
  host->At(world_.now(), [host, mail = std::move(mail)] { host->Deliver(mail); });
}

uint64_t Clients::Submit(int router, const ValidRequest& request) {
  Client client{.router = router, .request = request, .submitted = world_.now()};
  const size_t choices = request.prompts.size() * request.num_choices;
  for (size_t c = 0; c < choices; ++c) {
    SamplingParams params = request.sampling;
    params.choice = c % request.num_choices;
    client.expected.push_back(
        request.score_only
            ? std::vector<int32_t>{}
            : ExpectedTokens(request.prompts[c / request.num_choices], params, scenario_.arch()));
    client.stop_at.push_back(world_.Chance(scenario_.stop_rate)
                                 ? 1 + world_.random.Below(request.sampling.max_tokens)
                                 : 0);
  }
  client.seen.resize(choices);
  client.finished.resize(choices);
  client.stopped.resize(choices);
  client.next_score.resize(request.prompts.size(), 1);
  const uint64_t key = next_key_++;
  client.request.label = absl::StrCat(key);
  if (trace_.on()) {
    trace_.Add(
        world_.now(), -1,
        absl::StrCat("client submits request ", key, " to R", router, ": ", request.prompts.size(),
                     " prompts, first of ", request.prompts[0].size(), " tokens, n ",
                     request.num_choices, request.score_only ? ", score only" : "", ", answer ",
                     client.expected[0].size()));
  }
  const ValidRequest& sent = clients_.emplace(key, std::move(client)).first->second.request;
  if (!routers_[router]->up()) {
    clients_.at(key).ended = absl::UnavailableError("connection refused");
    ++num_lost_with_router;
    return key;
  }
  ++num_live_;
  routers_[router]->At(world_.now(), [this, key, router, request = sent] {
    // Clocks differ, and a node may take more mail before it looks at the time.
    ExpectEnd(key, world_.now() + request.timeout * 106 / 100 + milliseconds(5));
    routers_[router]->Deliver(ClientSubmit{.request = key, .body = request});
  });
  return key;
}

// I6: an end within the deadline; a router that is stopped looks at it when it goes on.
void Clients::ExpectEnd(uint64_t key, Time when) {
  world_.At(when, [this, key] {
    const Client& client = clients_.at(key);
    if (client.ended) return;
    if (routers_[client.router]->paused()) return ExpectEnd(key, world_.now() + milliseconds(50));
    violation_(absl::StrCat("I6: request ", key, " outlives its deadline"));
  });
}

void Clients::SubmitDrawn(int router) {
  const uint64_t key = Submit(router, DrawRequest());
  if (!world_.Chance(scenario_.cancel_rate)) return;
  world_.After(world_.Micros(0, world_.random.Below(4) == 0 ? 5000000 : 100000),
               [this, key] { Cancel(key); });
}

void Clients::Cancel(uint64_t key) {
  Client& client = clients_.at(key);
  if (client.ended) return;
  if (trace_.on()) trace_.Add(world_.now(), -1, absl::StrCat("client cancels request ", key));
  client.cancelled = true;
  ToRouter(client.router, ClientCancel{key});
}

void Clients::RouterDied(int router) {
  for (auto& [key, client] : clients_) {
    if (client.router != router || client.ended) continue;
    client.ended = absl::UnavailableError("the router is gone");
    ++num_lost_with_router;
    --num_live_;
  }
}

// ---- What they are told ------------------------------------------------------------------------

void Clients::OnTokens(uint64_t key, Client& client, const ChoiceTokens& tokens) {
  const int32_t choice = tokens.choice;
  const auto& expected = client.expected.at(choice);
  const auto& prompt = client.request.prompts[choice / client.request.num_choices];
  for (const TokenOutput& output : tokens.outputs) {
    size_t& seen = client.seen[choice];
    if (client.finished[choice]) return violation_("I4: a token after the last one");
    if (client.stopped[choice]) return violation_("I4: a token of a choice that was stopped");
    if (output.position != static_cast<int32_t>(prompt.size() + seen)) {
      return violation_("I4: a position twice or skipped");
    }
    if (seen >= expected.size() || output.token != expected[seen]) {
      return violation_("I4: a token differs from the fault-free run");
    }
    ++seen;
    ++num_tokens;
    if (on_token) on_token(key);
    client.finished[choice] = output.finish != FinishReason::kNone;
    if (client.finished[choice] != (seen == expected.size())) {
      return violation_("I4: a finish reason too early or missing");
    }
    if (seen != client.stop_at[choice]) continue;
    RouterHost* host = routers_[client.router];
    host->After(world_.Micros(0, 5000), [this, host, key, choice] {
      if (trace_.on()) {
        trace_.Add(world_.now(), host->column(),
                   absl::StrCat("client stops choice ", choice, " of request ", key));
      }
      clients_.at(key).stopped[choice] = true;
      host->Deliver(ClientStop{.request = key, .choice = choice});
    });
  }
}

void Clients::OnScored(Client& client, const PromptScored& scored) {
  const std::vector<int32_t>& prompt = client.request.prompts.at(scored.prompt);
  int32_t& next = client.next_score.at(scored.prompt);
  if (scored.logprobs.empty()) violation_("I4: a piece of a score is empty");
  for (const PromptLogprob& score : scored.logprobs) {
    if (next >= static_cast<int32_t>(prompt.size()) || score != FakeScore(prompt, next)) {
      return violation_("I4: a score is missing, repeated or another's");
    }
    ++next;
  }
}

void Clients::OnEnded(Client& client, const absl::Status& status) {
  client.ended = status;
  --num_live_;
  ++(status.ok() ? num_ok : num_failed);
  if (!status.ok()) {
    num_cancelled += client.cancelled ? 1 : 0;
    const bool asked_for = client.cancelled || client.request.timeout < seconds(600);
    if (!asked_for && on_failure) on_failure(client.router, client.submitted, status);
    return;
  }
  for (size_t c = 0; c < client.expected.size(); ++c) {
    const bool complete = client.seen[c] == client.expected[c].size();
    if (!complete && !client.stopped[c]) return violation_("I4: an OK answer is incomplete");
  }
  const bool wants_score = client.request.sampling.num_prompt_logprobs >= 0;
  for (size_t p = 0; p < client.next_score.size(); ++p) {
    const auto length = static_cast<int32_t>(client.request.prompts[p].size());
    if (client.next_score[p] != (wants_score ? length : 1)) {
      return violation_("I4: an OK answer lacks prompt log probabilities, or has some unasked");
    }
  }
}

void Clients::Emit(int router, uint64_t key, ClientEvent event) {
  Client& client = clients_.at(key);
  if (client.ended || client.router != router) {
    return violation_("I5: an event after the terminal one");
  }
  if (auto* tokens = std::get_if<ChoiceTokens>(&event)) {
    OnTokens(key, client, *tokens);
  } else if (auto* scored = std::get_if<PromptScored>(&event)) {
    OnScored(client, *scored);
  } else {
    const auto& ended = std::get<RequestEnded>(event);
    if (trace_.on()) {
      trace_.Add(world_.now(), router,
                 absl::StrCat("request ", key, " ends ", ended.status.ToString()));
    }
    OnEnded(client, ended.status);
  }
}

std::string Clients::FirstLive() const {
  for (const auto& [key, client] : clients_) {
    if (!client.ended) return absl::StrCat("request ", key, " of R", client.router);
  }
  return "";
}

}  // namespace baton::sim
