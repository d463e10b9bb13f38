#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/node/message.h"
#include "common/rpc/sampling_wire.h"

// Random valid values of every struct that crosses the network.
namespace baton {

inline constexpr WireLimits kLimits{.vocab_size = 1000, .max_model_len = 512};

class WireSamples {
 public:
  explicit WireSamples(uint64_t seed) : random_(seed) {}

  int32_t Int(int32_t low, int32_t high) {
    return low + static_cast<int32_t>(random_.Below(static_cast<uint64_t>(high - low) + 1));
  }
  bool Coin() { return random_.Below(2) == 0; }
  float Float(float low, float high) {
    return low + static_cast<float>(random_.Unit()) * (high - low);
  }
  int32_t Token() { return Int(0, kLimits.vocab_size - 1); }
  std::vector<int32_t> Tokens(int32_t size) {
    std::vector<int32_t> tokens(size);
    for (int32_t& token : tokens) token = Token();
    return tokens;
  }
  std::vector<DataRank> Ranks() {
    const int size = 1 << Int(0, 3);
    const int32_t heads = 1 << Int(0, 3);
    std::vector<DataRank> ranks;
    for (int i = 0; i < size; ++i) {
      ranks.push_back({absl::StrCat("127.0.0.1:", 4000 + i), HeadsOf(i, size, heads)});
    }
    return ranks;
  }
  TicketId Ticket() {
    return {.hi = random_.Next() | 1, .lo = random_.Next() & ~TicketId::kRankBits};
  }
  PairKey Key() {
    PairKey key;
    for (uint8_t& byte : key) byte = static_cast<uint8_t>(random_.Next());
    return key;
  }
  uint64_t Id() { return random_.Next() | 1; }

  SamplingParams Sampling() {
    SamplingParams p;
    p.temperature = Float(0, 2);
    p.top_k = Int(0, 100);
    p.top_p = Float(0.1f, 1);
    p.min_p = Float(0, 1);
    p.repetition_penalty = Float(0.5f, 2);
    p.frequency_penalty = Float(-2, 2);
    p.presence_penalty = Float(-2, 2);
    for (int32_t token = Int(0, 50); token < 200; token += Int(1, 80)) {
      p.logit_bias.push_back({.token = token, .bias = Float(-100, 100)});
    }
    p.seed = random_.Next();
    p.choice = static_cast<uint32_t>(Int(0, 7));
    p.max_tokens = Int(1, kLimits.max_model_len);
    p.min_tokens = Int(0, 20);
    p.ignore_eos = Coin();
    p.stop_token_ids = Tokens(Int(0, 4));
    p.num_logprobs = Int(-1, 20);
    p.num_prompt_logprobs = Int(-1, 20);
    p.logits_digest = Coin();
    return p;
  }

  std::vector<TokenLogprob> Top() {
    std::vector<TokenLogprob> top(Int(0, 5));
    for (TokenLogprob& one : top) one = {.token = Token(), .logprob = Float(-20, 0)};
    return top;
  }

  TokenOutput Output(int32_t position) {
    return {.position = position,
            .token = Token(),
            .logprob = Float(-20, 0),
            .top = Top(),
            .logits_digest = random_.Next(),
            .finish = static_cast<FinishReason>(Int(0, 2))};
  }

  PromptLogprob Prompt(int32_t position) {
    return {.position = position,
            .token = Token(),
            .logprob = Float(-20, 0),
            .rank = Int(1, kLimits.vocab_size),
            .top = Top()};
  }

  template <typename Request>
  Request CommonRequest() {
    Request r;
    r.sequence = {.router = Id(), .counter = random_.Next()};
    r.attempt = static_cast<Attempt>(Int(1, 9));
    r.tokens = Tokens(Int(1, kLimits.max_model_len));
    r.prompt_length = Int(1, static_cast<int32_t>(r.tokens.size()));
    r.sampling = Sampling();
    r.tenant = Coin() ? "" : "tenant-a";
    r.age = std::chrono::microseconds(Int(0, 1 << 30));
    r.timeout = std::chrono::microseconds(Int(1, 1 << 30));
    return r;
  }

  DecodeRequest Decode() {
    DecodeRequest r = CommonRequest<DecodeRequest>();
    r.worker = Id();
    r.prefill = Id();
    if (Coin()) {
      r.prefill = 0;
      r.compute_prompt = Coin();
    }
    return r;
  }

  PrefillRequest Prefill() {
    PrefillRequest r = CommonRequest<PrefillRequest>();
    r.worker = Id();
    r.score_only = Coin();
    if (!r.score_only && Coin()) {
      r.handoff = HandoffTarget{.ticket = Ticket(),
                                .ranks = Ranks(),
                                .pair_key = Key(),
                                .decode = Id(),
                                .first_token = Int(0, static_cast<int32_t>(r.tokens.size()) - 1)};
    }
    return r;
  }

  SequenceId Sequence() { return {.router = Id(), .counter = random_.Next()}; }
  Attempt Attempts() { return static_cast<Attempt>(Int(1, 9)); }

  RebindRequest Rebind() {
    return {.sequence = Sequence(), .attempt = Attempts(), .prefill = Coin() ? Id() : 0};
  }

  SendRequest Send() {
    return {.sequence = Sequence(),
            .attempt = Attempts(),
            .handoff = {.ticket = Ticket(),
                        .ranks = Ranks(),
                        .pair_key = Key(),
                        .decode = Id(),
                        .first_token = Int(0, kLimits.max_model_len - 1)}};
  }

  HandoffFailedEvent HandoffFailed() { return {.attempt = Attempts(), .reason = "link cut"}; }

  WorkerAudit Audit() {
    WorkerAudit audit{.incarnation = Id(),
                      .blocks = {.free = Int(0, 9), .ready = Int(0, 9)},
                      .num_unowned = Int(0, 3),
                      .unowned_leg_ranks = {Int(0, 7)},
                      .calls = {}};
    for (int i = Int(0, 3); i > 0; --i) {
      audit.calls.push_back({.sequence = Sequence(),
                             .attempt = Attempts(),
                             .state = "RECEIVING",
                             .num_blocks = Int(0, 100),
                             .transfer_open = Coin(),
                             .leg_ranks = {Int(0, 7), Int(0, 7)},
                             .age = std::chrono::microseconds(Int(0, 1000000))});
    }
    return audit;
  }

  ReservedEvent Reserved() {
    return {.attempt = static_cast<Attempt>(Int(1, 9)),
            .ticket = Ticket(),
            .ranks = Ranks(),
            .pair_key = Key(),
            .decode = Id(),
            .cached_tokens = Int(0, kLimits.max_model_len)};
  }

  TokensEvent TokensOf(int32_t count) {
    TokensEvent event{.attempt = static_cast<Attempt>(Int(1, 9))};
    int32_t position = Int(1, 100);
    for (int32_t i = 0; i < count; ++i) event.outputs.push_back(Output(position++));
    event.cached_tokens = Int(0, kLimits.max_model_len);
    return event;
  }

  PrefilledEvent Prefilled() {
    PrefilledEvent event{.attempt = static_cast<Attempt>(Int(1, 9))};
    if (Coin()) event.first = Output(Int(1, 500));
    event.cached_tokens = Int(0, kLimits.max_model_len);
    return event;
  }

  ScoresEvent Scores() {
    ScoresEvent event{.attempt = static_cast<Attempt>(Int(1, 9)), .logprobs = {}};
    int32_t position = Int(1, 400);
    for (int32_t i = Int(1, 6); i > 0; --i) event.logprobs.push_back(Prompt(position++));
    return event;
  }

  HelloInfo Hello() {
    return {.protocol_version = kProtocolVersion,
            .kv_wire_version = Int(1, 65535),
            .role = Coin() ? Role::kPrefill : Role::kDecode,
            .incarnation = Id(),
            .numerics_id = "cpu-v1/f32",
            .layout_digest = random_.Next(),
            .model_digest = random_.Next(),
            .tp_size = Int(1, 8),
            .block_size = Int(1, 64),
            .num_blocks = Int(1, 1 << 20),
            .layer_groups = Int(1, 32),
            .max_model_len = Int(1, 1 << 20),
            .vocab_size = Int(1, 1 << 20),
            .computes_prompts = Coin(),
            .serves_sessions = Coin()};
  }

  WorkerStatus Status() {
    WorkerStatus s;
    s.incarnation = Id();
    s.blocks = {.free = Int(0, 1000),
                .reserved = Int(0, 1000),
                .filling = Int(0, 1000),
                .ready = Int(0, 1000),
                .cached = Int(0, 1000),
                .draining = Int(0, 1000)};
    s.running = Int(0, 100);
    s.waiting = Int(0, 100);
    s.preempted = Int(0, 100);
    s.queued_tokens = Int(0, 1 << 30);
    s.tokens_per_s = Int(0, 1 << 30);
    s.draining = Coin();
    s.progress = random_.Next();
    s.computing = Coin();
    s.longest_layer = std::chrono::microseconds(Int(1, 1 << 30));
    return s;
  }

  // Changes 1 to 8 bytes, or cuts, or appends.
  void Mutate(std::string* bytes) {
    for (int i = Int(1, 8); i > 0 && !bytes->empty(); --i) {
      (*bytes)[random_.Below(bytes->size())] = static_cast<char>(random_.Next());
    }
    if (Int(0, 9) == 0) bytes->resize(random_.Below(bytes->size() + 1));
    if (Int(0, 9) == 0) bytes->push_back(static_cast<char>(random_.Next()));
  }

 private:
  Random random_;
};

}  // namespace baton
