#include <functional>
#include <string>
#include <vector>

#include "tests/unit/common/rpc/out_of_range.h"

namespace baton {
namespace {

// What DecodeRequest and PrefillRequest have in common.
template <typename P>
void AddRequest(const std::string& name, RowsOf<P>& rows) {
  const auto field = [&](const char* f) { return name + "." + f; };
  rows.Sealed(name)
      .Bad(field("sequence"), "sequence.router", [](P* p) { p->clear_sequence(); })
      .Bad(field("attempt"), "attempt", [](P* p) { p->set_attempt(0); })
      .Bad(field("expected_incarnation"), "expected_incarnation",
           [](P* p) { p->set_expected_incarnation(0); })
      .Bad(field("tokens"), "tokens.size", [](P* p) { p->clear_tokens(); })
      .Bad(field("tokens"), "tokens.size",
           [](P* p) { p->mutable_tokens()->Resize(kBeyondLength, 1); })
      .Bad(field("tokens"), "tokens[0]", [](P* p) { p->set_tokens(0, -1); })
      .Bad(field("tokens"), "tokens[2]", [](P* p) { p->set_tokens(2, kBeyondVocab); })
      .Bad(field("prompt_length"), "prompt_length", [](P* p) { p->set_prompt_length(0); })
      .Bad(field("prompt_length"), "prompt_length", [](P* p) { p->set_prompt_length(-1); })
      .Bad(field("prompt_length"), "prompt_length",
           [](P* p) { p->set_prompt_length(p->tokens_size() + 1); })
      .Bad(field("sampling"), "sampling.top_p", [](P* p) { p->clear_sampling(); })
      .Bad(field("tenant"), "tenant.size", [](P* p) { p->set_tenant(std::string(257, 'a')); })
      .Bad(field("tenant"), "tenant", [](P* p) { p->set_tenant("a\nb"); })
      .Bad(field("tenant"), "tenant", [](P* p) { p->set_tenant("a\x7f"); })
      .Bad(field("age_us"), "age_us", [](P* p) { p->set_age_us(-1); })
      .Bad(field("age_us"), "age_us", [](P* p) { p->set_age_us(kMax64); })
      .Bad(field("timeout_us"), "timeout_us", [](P* p) { p->set_timeout_us(0); })
      .Bad(field("timeout_us"), "timeout_us", [](P* p) { p->set_timeout_us(-1); })
      .Bad(field("timeout_us"), "timeout_us", [](P* p) { p->set_timeout_us(kMax64); });
}

template <typename P>
void AddSampling(RowsOf<P>& rows) {
  const auto bad = [&](const char* field, std::function<void(v1::SamplingParams*)> spoil) {
    rows.Bad(std::string("SamplingParams.") + field, std::string("sampling.") + field,
             [spoil](P* p) { spoil(p->mutable_sampling()); });
  };
  for (float value : {-0.1f, kNan, kInf, -kInf}) {
    bad("temperature", [=](auto* p) { p->set_temperature(value); });
    bad("min_p", [=](auto* p) { p->set_min_p(value); });
    bad("repetition_penalty", [=](auto* p) { p->set_repetition_penalty(value); });
    bad("top_p", [=](auto* p) { p->set_top_p(value); });
  }
  for (float value : {kNan, kInf, -kInf}) {
    bad("frequency_penalty", [=](auto* p) { p->set_frequency_penalty(value); });
    bad("presence_penalty", [=](auto* p) { p->set_presence_penalty(value); });
  }
  bad("top_p", [](auto* p) { p->set_top_p(0); });
  bad("top_p", [](auto* p) { p->set_top_p(1.1f); });
  bad("min_p", [](auto* p) { p->set_min_p(1.1f); });
  bad("repetition_penalty", [](auto* p) { p->set_repetition_penalty(0); });
  bad("top_k", [](auto* p) { p->set_top_k(-1); });
  bad("max_tokens", [](auto* p) { p->set_max_tokens(0); });
  bad("max_tokens", [](auto* p) { p->set_max_tokens(-1); });
  bad("max_tokens", [](auto* p) { p->set_max_tokens(kBeyondLength); });
  bad("min_tokens", [](auto* p) { p->set_min_tokens(-1); });
  bad("min_tokens", [](auto* p) { p->set_min_tokens(kMax32); });
  bad("stop_token_ids", [](auto* p) { p->add_stop_token_ids(-1); });
  bad("stop_token_ids", [](auto* p) { p->add_stop_token_ids(kBeyondVocab); });
  bad("stop_token_ids",
      [](auto* p) { p->mutable_stop_token_ids()->Resize(kMaxStopTokenIds + 1, 0); });
  bad("num_logprobs", [](auto* p) { p->set_num_logprobs(-2); });
  bad("num_logprobs", [](auto* p) { p->set_num_logprobs(kMaxLogprobs + 1); });
  bad("num_prompt_logprobs", [](auto* p) { p->set_num_prompt_logprobs(-2); });
  bad("num_prompt_logprobs", [](auto* p) { p->set_num_prompt_logprobs(kMaxLogprobs + 1); });
  const auto bad_bias = [&](const char* field, int32_t token, float bias) {
    rows.Bad(std::string("LogitBias.") + field, std::string("sampling.logit_bias.") + field,
             [=](P* p) {
               v1::LogitBias* one = p->mutable_sampling()->add_logit_bias();
               one->set_token(token);
               one->set_bias(bias);
             });
  };
  bad_bias("token", -1, 1);
  bad_bias("token", kBeyondVocab, 1);
  bad_bias("bias", 999, kNan);
  bad_bias("bias", 999, kInf);
  bad("logit_bias", [](auto* p) {  // The same token twice.
    for (int i = 0; i < 2; ++i) p->add_logit_bias()->set_token(999);
  });
}

template <typename P, typename Get>
void AddHandoff(RowsOf<P>& rows, Get get) {
  using H = v1::HandoffTarget;
  const auto bad = [&](const char* field, const char* named, std::function<void(H*)> spoil) {
    rows.Bad(std::string("HandoffTarget.") + field, named, [=](P* p) { spoil(get(p)); });
  };
  bad("ticket", "ticket", [](H* h) { h->clear_ticket(); });
  AddRanks(rows, "HandoffTarget", "handoff.ranks", [get](P* p) { return get(p)->mutable_ranks(); });
  bad("endpoint", "handoff.endpoint", [](H* h) {  // As before protocol 3, in place of ranks.
    h->clear_ranks();
    h->set_endpoint("127.0.0.1:4000");
  });
  bad("pair_key", "pair_key.size", [](H* h) { h->set_pair_key("short"); });
  bad("decode_incarnation", "decode_incarnation", [](H* h) { h->set_decode_incarnation(0); });
  bad("first_token", "handoff.first_token", [](H* h) { h->set_first_token(-1); });
  bad("first_token", "handoff.first_token",
      [](H* h) { h->set_first_token(kLimits.max_model_len); });
}

PrefillRequest Prefill() {
  PrefillRequest request = WireSamples(7).Prefill();
  request.tokens = {1, 2, 3};
  request.prompt_length = 3;
  request.score_only = false;
  request.sampling.logit_bias.clear();
  request.handoff =
      HandoffTarget{.ticket = {.hi = 1}, .ranks = {{"127.0.0.1:9", {0, 4}}}, .decode = 7};
  return request;
}

}  // namespace

void AddRequests(std::vector<Row>* all) {
  DecodeRequest decode = WireSamples(7).Decode();
  decode.tokens = {1, 2, 3};
  decode.prompt_length = 3;
  decode.sampling.logit_bias.clear();
  using D = v1::DecodeRequest;
  RowsOf<D> decodes(all, decode);
  AddRequest("DecodeRequest", decodes);
  AddSampling(decodes);
  decodes.Bad("SequenceId.router", "sequence.router",
              [](D* p) { p->mutable_sequence()->set_router(0); });
  decodes.Bad("DecodeRequest.compute_prompt", "compute_prompt", [](D* p) {
    p->set_prefill_incarnation(1);
    p->set_compute_prompt(true);
  });
  decodes.Bad("DecodeRequest.score_only", "score_only", [](D* p) {
    p->set_compute_prompt(false);
    p->set_score_only(true);
  });
  decodes.Bad("DecodeRequest.score_only", "score_only", [](D* p) {
    p->set_prefill_incarnation(0);
    p->set_compute_prompt(true);
    p->set_score_only(true);
    p->set_prompt_length(p->tokens_size() - 1);
  });
  using P = v1::PrefillRequest;
  RowsOf<P> prefills(all, Prefill());
  AddRequest("PrefillRequest", prefills);
  AddSampling(prefills);
  AddHandoff(prefills, [](P* p) { return p->mutable_handoff(); });
  prefills.Bad("PrefillRequest.handoff", "handoff.first_token",
               [](P* p) { p->mutable_handoff()->set_first_token(3); });
  prefills.Bad("PrefillRequest.score_only", "score_only", [](P* p) { p->set_score_only(true); });
  using R = v1::RebindRequest;
  RowsOf<R>(all, WireSamples(7).Rebind())
      .Sealed("RebindRequest")
      .Bad("RebindRequest.sequence", "sequence.router", [](R* p) { p->clear_sequence(); })
      .Bad("RebindRequest.attempt", "attempt", [](R* p) { p->set_attempt(0); });
  using S = v1::SendRequest;
  RowsOf<S> sends(all, WireSamples(7).Send());
  sends.Sealed("SendRequest")
      .Bad("SendRequest.sequence", "sequence.router", [](S* p) { p->clear_sequence(); })
      .Bad("SendRequest.attempt", "attempt", [](S* p) { p->set_attempt(0); })
      .Bad("SendRequest.handoff", "ticket", [](S* p) { p->clear_handoff(); });
  AddHandoff(sends, [](S* p) { return p->mutable_handoff(); });
}

}  // namespace baton
