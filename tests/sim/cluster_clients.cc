// The half of Cluster that plays the clients and the ones who look over the router's shoulder.
#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster.h"
#include "tests/sim/worker.h"

namespace baton::sim {

using std::chrono::seconds;

ValidRequest Cluster::DrawRequest() {
  ValidRequest request;
  Random& random = world_.random;
  const int32_t num_prompts = random.Below(5) == 0 ? 2 : 1;
  for (int32_t p = 0; p < num_prompts; ++p) {
    // Few distinct prefixes, so that caches are hit.
    Random prefix(random.Below(4));
    std::vector<int32_t> prompt;
    const int64_t shared = random.Below(33);
    for (int64_t i = 0; i < shared; ++i) prompt.push_back(prefix.Below(kVocab));
    const int64_t own = 1 + random.Below(8);
    for (int64_t i = 0; i < own; ++i) prompt.push_back(random.Below(kVocab));
    request.prompts.push_back(std::move(prompt));
  }
  request.num_choices = 1 + random.Below(2);
  request.sampling.seed = random.Next();
  request.sampling.max_tokens = 1 + random.Below(24);
  request.sampling.ignore_eos = random.Below(2) == 0;
  request.score_only = random.Below(10) == 0;
  if (request.score_only || random.Below(8) == 0) request.sampling.num_prompt_logprobs = 1;
  request.tenant = random.Below(4) == 0 ? "b" : "a";
  request.timeout =
      world_.Chance(scenario_.deadline_rate) ? world_.Micros(1000, 300000) : seconds(600);
  return request;
}

uint64_t Cluster::Submit(const ValidRequest& request) {
  Client client{.request = request};
  const size_t choices = request.prompts.size() * request.num_choices;
  for (size_t c = 0; c < choices; ++c) {
    SamplingParams params = request.sampling;
    params.choice = c % request.num_choices;
    client.expected.push_back(
        request.score_only ? std::vector<int32_t>{}
                           : ExpectedTokens(request.prompts[c / request.num_choices], params));
  }
  client.seen.resize(choices);
  client.finished.resize(choices);
  client.scored.resize(request.prompts.size());
  const uint64_t key = next_request_++;
  Trace(absl::StrCat("client submits ", key));
  clients_.emplace(key, client);
  ToRouter(ClientSubmit{.request = key, .body = client.request});
  return key;
}

void Cluster::SubmitDrawn() {
  const uint64_t key = Submit(DrawRequest());
  if (world_.Chance(scenario_.cancel_rate)) {
    world_.After(world_.Micros(0, 100000), [this, key] {
      Trace(absl::StrCat("client cancels ", key));
      if (!clients_.at(key).ended) clients_.at(key).cancelled = true;
      ToRouter(ClientCancel{key});
    });
  }
  const auto index = static_cast<int32_t>(world_.random.Below(workers_.size()));
  if (world_.Chance(scenario_.crash_rate)) {
    world_.After(world_.Micros(0, 50000), [this, index] {
      if (workers_[index]->up()) Crash(index);
    });
  } else if (world_.Chance(scenario_.drain_rate)) {
    world_.After(world_.Micros(0, 50000), [this, index] { Drain(index); });
  }
}

void Cluster::OnClientTokens(Client& client, const ChoiceTokens& tokens) {
  const auto& expected = client.expected.at(tokens.choice);
  const auto& prompt = client.request.prompts[tokens.choice / client.request.num_choices];
  for (const TokenOutput& output : tokens.outputs) {
    size_t& seen = client.seen[tokens.choice];
    if (client.finished[tokens.choice]) return Violation("a token after the last one");
    if (output.position != static_cast<int32_t>(prompt.size() + seen)) {
      return Violation("a position twice or skipped");
    }
    if (seen >= expected.size() || output.token != expected[seen]) {
      return Violation("a token differs from the fault-free run");
    }
    ++seen;
    client.finished[tokens.choice] = output.finish != FinishReason::kNone;
    if (client.finished[tokens.choice] != (seen == expected.size())) {
      return Violation("a finish reason too early or missing");
    }
  }
}

void Cluster::Emit(uint64_t key, ClientEvent event) {
  Client& client = clients_.at(key);
  if (client.ended) return Violation("an event after the terminal one");
  if (auto* tokens = std::get_if<ChoiceTokens>(&event)) {
    OnClientTokens(client, *tokens);
  } else if (auto* scored = std::get_if<PromptScored>(&event)) {
    if (client.scored.at(scored->prompt)) return Violation("a prompt scored twice");
    client.scored[scored->prompt] = true;
    if (scored->logprobs.size() + 1 != client.request.prompts[scored->prompt].size()) {
      return Violation("prompt log probabilities are missing");
    }
  } else {
    const auto& ended = std::get<RequestEnded>(event);
    Trace(absl::StrCat("request ", key, " ends ", ended.status.ToString()));
    client.ended = ended.status;
    ++(ended.status.ok() ? num_ok_ : num_failed_);
    if (!ended.status.ok()) return;
    for (size_t c = 0; c < client.expected.size(); ++c) {
      if (client.seen[c] != client.expected[c].size()) Violation("an OK answer is incomplete");
    }
    for (bool scored : client.scored) {
      if (scored != (client.request.sampling.num_prompt_logprobs >= 0)) {
        Violation("an OK answer lacks prompt log probabilities");
      }
    }
  }
}

// A request after everything has healed: is anything of the trouble still counted against a worker?
void Cluster::Probe() {
  ValidRequest request;
  request.prompts = {{2, 3, 5, 7}};
  request.sampling.max_tokens = 4;
  request.timeout = seconds(600);
  is_probe_ = true;
  const uint64_t key = Submit(request);
  is_probe_ = false;
  const Time limit = world_.now() + seconds(10);
  while (violation_.empty() && world_.RunOne(limit)) Check();
  const Client& client = clients_.at(key);
  if (!client.ended || !client.ended->ok()) Violation("the healed cluster answers no request");
}

void Cluster::OnSnapshot(const RoutingSnapshot& snapshot) {
  for (const auto* side : {&snapshot.prefill, &snapshot.decode}) {
    for (const Candidate& candidate : *side) {
      if (candidate.pending_tokens < 0) Violation("a worker has less than no work pending");
      if (is_probe_ && candidate.pending_tokens != 0) {
        Violation("an idle worker has work pending");
      }
    }
  }
  if (is_probe_ && snapshot.prefill.size() + snapshot.decode.size() != workers_.size()) {
    Violation("an idle worker is no candidate");
  }
}

void Cluster::CheckCacheHit(const Call& call, int32_t cached_tokens) {
  if (cached_tokens == 0) return;
  if (cached_tokens >= static_cast<int32_t>(call.prompt.size())) {
    return Violation("a whole prompt is said to be cached");
  }
  const auto wanted = std::span(call.prompt).first(cached_tokens);
  for (const auto& [id, other] : calls_) {
    if (&other == &call || other.incarnation != call.incarnation || other.tenant != call.tenant) {
      continue;
    }
    if (std::ranges::mismatch(wanted, other.prompt).in1 == wanted.end()) return;
    if (std::ranges::mismatch(wanted, other.answered).in1 == wanted.end()) return;
  }
  Violation("a prefix is said to be cached that this tenant never sent to this worker");
}

}  // namespace baton::sim
