#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "router/node.h"

namespace baton {

// Keeps what the router's node asked of workers and told its clients.
class RecordingRouterOutbox : public RouterOutbox {
 public:
  struct Opened {
    CallId call = 0;
    int32_t worker = 0;
  };
  struct Client {
    std::map<int32_t, std::vector<TokenOutput>> tokens;  // By choice.
    std::vector<PromptScored> scored;
    std::vector<RequestEnded> ended;
    int events_after_end = 0;
  };

  void OpenDecode(CallId call, int32_t worker, DecodeRequest request) override {
    decodes.push_back({call, worker});
    decode_requests.push_back(std::move(request));
  }
  void OpenPrefill(CallId call, int32_t worker, PrefillRequest request) override {
    prefills.push_back({call, worker});
    prefill_requests.push_back(std::move(request));
  }
  void Rebind(CallId call, RebindRequest request) override { rebinds.emplace_back(call, request); }
  void Send(CallId call, SendRequest request) override { sends.emplace_back(call, request); }
  void Cancel(CallId call) override { cancelled.push_back(call); }
  void Emit(uint64_t request, ClientEvent event) override {
    Client& client = clients[request];
    client.events_after_end += !client.ended.empty();
    if (auto* tokens = std::get_if<ChoiceTokens>(&event)) {
      auto& all = client.tokens[tokens->choice];
      all.insert(all.end(), tokens->outputs.begin(), tokens->outputs.end());
    } else if (auto* scored = std::get_if<PromptScored>(&event)) {
      client.scored.push_back(std::move(*scored));
    } else {
      client.ended.push_back(std::get<RequestEnded>(std::move(event)));
    }
  }

  std::vector<Opened> decodes, prefills;
  std::vector<DecodeRequest> decode_requests;
  std::vector<PrefillRequest> prefill_requests;
  std::vector<std::pair<CallId, RebindRequest>> rebinds;
  std::vector<std::pair<CallId, SendRequest>> sends;
  std::vector<CallId> cancelled;
  std::map<uint64_t, Client> clients;
};

// A router with workers 0 (prefill), 1 and 2 (decode); workers and clients are played. Workers send
// no status, so their silence counts as hanging only where a test sets the limit.
class RouterHarness : public testing::Test {
 protected:
  static constexpr Incarnation kFirstIncarnation = 100;
  static constexpr Duration kNoLimit = std::chrono::hours(10000);

  void SetUp() override { Create({}); }
  void TearDown() override {
    for (const auto& [key, client] : outbox_.clients) EXPECT_EQ(client.events_after_end, 0);
  }

  void Create(RouterNodeOptions options, bool up = true,
              std::vector<Role> roles = {Role::kPrefill, Role::kDecode, Role::kDecode}) {
    options.incarnation = 1;
    if (options.hang_limit == RouterNodeOptions().hang_limit) options.hang_limit = kNoLimit;
    roles_ = std::move(roles);
    node_ = std::make_unique<RouterNode>(options, roles_, MakeRoutingPolicy("least_loaded").value(),
                                         outbox_);
    for (int32_t worker = 0; worker < static_cast<int32_t>(roles_.size()); ++worker) {
      if (up) Up(worker, kFirstIncarnation + worker);
    }
  }
  void Up(int32_t worker, Incarnation incarnation, int32_t max_model_len = 200) {
    Handle(WorkerUp{.worker = worker,
                    .hello = {.role = roles_[worker],
                              .incarnation = incarnation,
                              .block_size = 16,
                              .num_blocks = 100,
                              .max_model_len = max_model_len}});
  }
  void Handle(RouterMail mail) {
    node_->Handle(std::move(mail), now_);
    node_->Step(now_);
  }
  void Wait(Duration time) {
    now_ += time;
    node_->Step(now_);
  }

  static ValidRequest Request(int32_t prompt_length = 3, int32_t max_tokens = 4) {
    ValidRequest request{.timeout = std::chrono::seconds(1000)};
    request.prompts = {std::vector<int32_t>(prompt_length, 7)};
    request.sampling.max_tokens = max_tokens;
    return request;
  }
  void Submit(uint64_t key, ValidRequest request) {
    Handle(ClientSubmit{.request = key, .body = std::move(request)});
  }

  // The process that a Decode call was opened to.
  Incarnation DecodeOf(CallId call) const {
    for (size_t i = 0; i < outbox_.decodes.size(); ++i) {
      if (outbox_.decodes[i].call == call) return outbox_.decode_requests[i].worker;
    }
    return 0;
  }
  CallId decode_call() const { return outbox_.decodes.back().call; }
  CallId prefill_call() const { return outbox_.prefills.back().call; }
  void Reserved(CallId call, Attempt attempt = 1, int32_t cached = 0) {
    Handle(WorkerEventReceived{call, ReservedEvent{.attempt = attempt,
                                                   .ticket = {8, call},
                                                   .ranks = {{"d:1", {0, 4}}},
                                                   .pair_key = {3},
                                                   .decode = DecodeOf(call),
                                                   .cached_tokens = cached}});
  }
  void Prefilled(CallId call, int32_t position, int32_t token, Attempt attempt = 1) {
    Handle(WorkerEventReceived{
        call, PrefilledEvent{.attempt = attempt,
                             .first = TokenOutput{.position = position, .token = token},
                             .cached_tokens = std::min(2, position - 1)}});
  }
  // Log probabilities of the positions [begin, end) of a prompt of Request().
  void Scores(CallId call, int32_t begin, int32_t end, Attempt attempt = 1) {
    ScoresEvent event{.attempt = attempt, .logprobs = {}};
    for (int32_t p = begin; p < end; ++p) {
      event.logprobs.push_back({.position = p, .token = 7, .logprob = -1.0f * p, .rank = 1});
    }
    Handle(WorkerEventReceived{call, std::move(event)});
  }
  // The positions whose log probabilities a client was given, in order.
  std::vector<int32_t> Scored(uint64_t key, int32_t prompt = 0) {
    std::vector<int32_t> positions;
    for (const PromptScored& scored : outbox_.clients[key].scored) {
      if (scored.prompt != prompt) continue;
      for (const PromptLogprob& one : scored.logprobs) positions.push_back(one.position);
    }
    return positions;
  }
  void Tokens(CallId call, int32_t position, int32_t token,
              FinishReason finish = FinishReason::kNone, Attempt attempt = 1) {
    Handle(WorkerEventReceived{
        call, TokensEvent{.attempt = attempt,
                          .outputs = {{.position = position, .token = token, .finish = finish}}}});
  }
  void Closed(CallId call, absl::Status status = absl::OkStatus()) {
    Handle(CallClosed{.call = call, .status = std::move(status)});
  }

  // The tokens that a client has seen of a choice.
  std::vector<int32_t> Seen(uint64_t key, int32_t choice = 0) {
    std::vector<int32_t> tokens;
    for (const TokenOutput& output : outbox_.clients[key].tokens[choice]) {
      tokens.push_back(output.token);
    }
    return tokens;
  }
  // How the request ended; nothing while it lives.
  std::optional<absl::StatusCode> Ended(uint64_t key) {
    const auto& ended = outbox_.clients[key].ended;
    EXPECT_LE(ended.size(), 1u);
    if (ended.empty()) return std::nullopt;
    return ended[0].status.code();
  }

  // Request `key` has reserved and is being prefilled for call decode_call().
  void ToPrefilling(uint64_t key, ValidRequest request = Request()) {
    Submit(key, std::move(request));
    Reserved(decode_call());
  }
  // And has its first token, 50, from the prefill worker and from the decode worker.
  void ToDecoding(uint64_t key, ValidRequest request = Request()) {
    ToPrefilling(key, std::move(request));
    Prefilled(prefill_call(), 3, 50);
    Tokens(decode_call(), 3, 50);
  }

  Time now_{};
  std::vector<Role> roles_;
  RecordingRouterOutbox outbox_;
  std::unique_ptr<RouterNode> node_;
};

}  // namespace baton
