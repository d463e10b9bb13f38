#include "common/rpc/message_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "common/rpc/connection.h"
#include "tests/unit/common/rpc/wire_samples.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

// The structs have no operator==, so two values are compared by what is written of them; that
// writing loses nothing is checked field by field in SamplingWireTest and below.
template <typename Proto, typename Value>
std::string Bytes(const Value& value) {
  Proto proto;
  ToProto(value, &proto);
  return proto.SerializeAsString();
}

// Each byte of the written form comes back, and no field is left at its default.
template <typename Proto, typename Value, typename... Limits>
void ExpectRoundTrip(const Value& value, const Limits&... limits) {
  Proto proto;
  ToProto(value, &proto);
  const auto back = FromProto(proto, limits...);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(Bytes<Proto>(*back), proto.SerializeAsString());
}

template <typename Proto, typename Event>
void ExpectEventRoundTrip(const Event& event) {
  Proto proto;
  ToProto(event, &proto);
  const auto back = FromProto(proto, kLimits);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(Bytes<Proto>(std::get<Event>(*back)), proto.SerializeAsString());
}

TEST(MessageWireTest, EveryMessageSurvivesARoundTrip) {
  WireSamples samples(3);
  for (int i = 0; i < 200; ++i) {
    ExpectRoundTrip<v1::DecodeRequest>(samples.Decode(), kLimits);
    ExpectRoundTrip<v1::PrefillRequest>(samples.Prefill(), kLimits);
    ExpectRoundTrip<v1::HelloResponse>(samples.Hello());
    ExpectRoundTrip<v1::WorkerStatus>(samples.Status());
    ExpectEventRoundTrip<v1::DecodeEvent>(samples.Reserved());
    ExpectEventRoundTrip<v1::DecodeEvent>(samples.TokensOf(samples.Int(0, 5)));
    ExpectEventRoundTrip<v1::PrefillEvent>(samples.Prefilled());
    ExpectEventRoundTrip<v1::PrefillEvent>(samples.Scores());
    ExpectEventRoundTrip<v1::DecodeEvent>(samples.Scores());
    ExpectEventRoundTrip<v1::DecodeEvent>(samples.HandoffFailed());
    ExpectEventRoundTrip<v1::PrefillEvent>(samples.HandoffFailed());
    ExpectRoundTrip<v1::RebindRequest>(samples.Rebind());
    ExpectRoundTrip<v1::SendRequest>(samples.Send(), kLimits);
    ExpectRoundTrip<v1::AuditResponse>(samples.Audit());
  }
}

TEST(MessageWireTest, ALongReasonIsCutAndALongerOneOnTheWireRefused) {
  v1::DecodeEvent proto;
  ToProto(HandoffFailedEvent{.attempt = 1, .reason = std::string(5000, 'x')}, &proto);
  EXPECT_EQ(proto.handoff_failed().reason().size(), size_t{kMaxReasonBytes});
  std::string euros = "x";
  for (int i = 0; i < 500; ++i) euros += "\xE2\x82\xAC";
  ToProto(HandoffFailedEvent{.attempt = 1, .reason = euros}, &proto);
  EXPECT_EQ(proto.handoff_failed().reason(), euros.substr(0, 1 + 3 * 341));
  proto.mutable_handoff_failed()->set_reason(std::string(kMaxReasonBytes, 'x'));
  proto.mutable_handoff_failed()->mutable_reason()->push_back('x');
  EXPECT_FALSE(FromProto(proto, kLimits).ok());
}

TEST(MessageWireTest, APieceOfScoresIsRefusedByWhatIsWrongWithIt) {
  WireSamples samples(9);
  ScoresEvent event = samples.Scores();
  event.logprobs = {samples.Prompt(5), samples.Prompt(6)};
  v1::PrefillEvent good;
  ToProto(event, &good);
  const auto back = FromProto(good, kLimits);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(std::get<ScoresEvent>(*back).logprobs, event.logprobs);
  EXPECT_EQ(std::get<ScoresEvent>(*back).attempt, event.attempt);
  const std::vector<std::pair<const char*, std::function<void(v1::Scores*)>>> cases = {
      {"attempt", [](auto* s) { s->set_attempt(0); }},
      {"prompt_logprobs.size", [](auto* s) { s->clear_prompt_logprobs(); }},
      {"prompt_logprobs.position", [](auto* s) { s->mutable_prompt_logprobs(1)->set_position(7); }},
      {"prompt_logprobs.position", [](auto* s) { s->mutable_prompt_logprobs(1)->set_position(5); }},
      {"prompt_logprob.position", [](auto* s) { s->mutable_prompt_logprobs(0)->set_position(0); }},
      {"prompt_logprob.token", [](auto* s) { s->mutable_prompt_logprobs(1)->set_token(-1); }},
      {"prompt_logprobs with top", [](auto* s) {
         for (int i = 0; i < 65; ++i) {
           v1::PromptLogprob* one =
               i < 2 ? s->mutable_prompt_logprobs(i) : s->add_prompt_logprobs();
           one->set_position(5 + i);
           one->set_rank(1);
           while (one->top_size() < kMaxLogprobs) one->add_top();
         }
       }}};
  for (const auto& [field, break_it] : cases) {
    v1::PrefillEvent bad = good;
    break_it(bad.mutable_scores());
    const auto read = FromProto(bad, kLimits);
    ASSERT_FALSE(read.ok()) << field;
    EXPECT_EQ(read.status().message().find(field), 0u) << read.status();
  }
}

TEST(MessageWireTest, DecodeRequestKeepsEveryField) {
  WireSamples samples(4);
  const DecodeRequest request = samples.Decode();
  v1::DecodeRequest proto;
  ToProto(request, &proto);
  const auto back = FromProto(proto, kLimits);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->sequence, request.sequence);
  EXPECT_EQ(back->attempt, request.attempt);
  EXPECT_EQ(back->prefill, request.prefill);
  EXPECT_EQ(back->compute_prompt, request.compute_prompt);
  EXPECT_EQ(back->tokens, request.tokens);
  EXPECT_EQ(back->prompt_length, request.prompt_length);
  EXPECT_EQ(back->sampling, request.sampling);
  EXPECT_EQ(back->tenant, request.tenant);
  EXPECT_EQ(back->age, request.age);
  EXPECT_EQ(back->timeout, request.timeout);
}

TEST(MessageWireTest, PrefillRequestKeepsItsHandoff) {
  WireSamples samples(5);
  PrefillRequest request = samples.Prefill();
  request.score_only = false;
  request.handoff = HandoffTarget{.ticket = samples.Ticket(),
                                  .ranks = {{"127.0.0.1:9", {0, 4}}},
                                  .pair_key = samples.Key(),
                                  .decode = 77,
                                  .first_token = 1};
  v1::PrefillRequest proto;
  ToProto(request, &proto);
  const auto back = FromProto(proto, kLimits);
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_TRUE(back->handoff.has_value());
  EXPECT_EQ(back->handoff->ticket, request.handoff->ticket);
  EXPECT_EQ(back->handoff->ranks, request.handoff->ranks);
  EXPECT_EQ(back->handoff->pair_key, request.handoff->pair_key);
  EXPECT_EQ(back->handoff->decode, request.handoff->decode);
  EXPECT_EQ(back->handoff->first_token, request.handoff->first_token);
}

// A clock that stepped, a timeout that ran out while the request waited: no reason for a refusal.
TEST(MessageWireTest, DurationsOfOursAreWrittenWithinWhatIsTaken) {
  constexpr Duration kLong = std::chrono::hours(24 * 365);
  for (const Duration d : {-kLong, Duration(-1), Duration::zero(), kLong}) {
    DecodeRequest request = WireSamples(4).Decode();
    request.age = request.timeout = d;
    v1::DecodeRequest proto;
    ToProto(request, &proto);
    const auto back = FromProto(proto, kLimits);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->age > Duration::zero(), d > Duration::zero());
    EXPECT_EQ(back->timeout > std::chrono::microseconds(1), d > Duration::zero());
    WorkerStatus status = WireSamples(4).Status();
    status.longest_layer = d;
    v1::WorkerStatus status_proto;
    ToProto(status, &status_proto);
    EXPECT_TRUE(FromProto(status_proto).ok());
    WorkerAudit audit{.incarnation = 1, .blocks = {}, .calls = {}};
    audit.calls = {{.sequence = {1, 1}, .attempt = 1, .state = "RUNNING", .age = d}};
    v1::AuditResponse audit_proto;
    ToProto(audit, &audit_proto);
    EXPECT_TRUE(FromProto(audit_proto).ok());
  }
}

TEST(MessageWireTest, StatusKeepsEveryField) {
  WireSamples samples(6);
  const WorkerStatus status = samples.Status();
  v1::WorkerStatus proto;
  ToProto(status, &proto);
  const auto back = FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->incarnation, status.incarnation);
  EXPECT_EQ(back->blocks, status.blocks);
  EXPECT_EQ(back->running, status.running);
  EXPECT_EQ(back->waiting, status.waiting);
  EXPECT_EQ(back->preempted, status.preempted);
  EXPECT_EQ(back->queued_tokens, status.queued_tokens);
  EXPECT_EQ(back->tokens_per_s, status.tokens_per_s);
  EXPECT_EQ(back->draining, status.draining);
  EXPECT_EQ(back->progress, status.progress);
  EXPECT_EQ(back->computing, status.computing);
  EXPECT_EQ(back->longest_layer, status.longest_layer);
}

template <typename Proto>
struct Case {
  const char* field;
  std::function<void(Proto*)> break_it;
};

template <typename Proto, typename Value, typename Read>
void ExpectEachRefused(const Value& value, const std::vector<Case<Proto>>& cases, Read read) {
  for (const auto& c : cases) {
    Proto proto;
    ToProto(value, &proto);
    ASSERT_TRUE(read(proto).ok()) << read(proto);
    c.break_it(&proto);
    const absl::Status status = read(proto);
    ASSERT_FALSE(status.ok()) << c.field;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.field));
  }
}

TEST(MessageWireTest, RefusesEachBadFieldOfAPrefillRequestByName) {
  PrefillRequest request = WireSamples(7).Prefill();
  request.tokens = {1, 2, 3};
  request.prompt_length = 3;
  request.score_only = false;
  request.handoff =
      HandoffTarget{.ticket = {.hi = 1}, .ranks = {{"127.0.0.1:9", {0, 4}}}, .decode = 7};
  using P = v1::PrefillRequest;
  const std::vector<Case<P>> cases = {
      {"sequence.router", [](P* p) { p->clear_sequence(); }},
      {"attempt", [](P* p) { p->set_attempt(0); }},
      {"tokens.size", [](P* p) { p->clear_tokens(); }},
      {"tokens.size", [](P* p) { p->mutable_tokens()->Resize(513, 1); }},
      {"tokens[1]", [](P* p) { p->set_tokens(1, -1); }},
      {"tokens[2]", [](P* p) { p->set_tokens(2, 1000); }},
      {"prompt_length", [](P* p) { p->set_prompt_length(4); }},
      {"prompt_length", [](P* p) { p->set_prompt_length(0); }},
      {"prompt_length", [](P* p) { p->set_prompt_length(-1); }},
      {"sampling.top_p", [](P* p) { p->clear_sampling(); }},
      {"tenant.size", [](P* p) { p->set_tenant(std::string(257, 'a')); }},
      {"tenant", [](P* p) { p->set_tenant("a\nb"); }},
      {"age_us", [](P* p) { p->set_age_us(-1); }},
      {"timeout_us", [](P* p) { p->set_timeout_us(0); }},
      {"timeout_us", [](P* p) { p->set_timeout_us(INT64_MAX); }},
      {"ticket", [](P* p) { p->mutable_handoff()->clear_ticket(); }},
      {"handoff.ranks", [](P* p) { p->mutable_handoff()->clear_ranks(); }},
      {"pair_key.size", [](P* p) { p->mutable_handoff()->set_pair_key("short"); }},
      {"decode_incarnation", [](P* p) { p->mutable_handoff()->set_decode_incarnation(0); }},
      {"first_token", [](P* p) { p->mutable_handoff()->set_first_token(4); }},
      {"first_token", [](P* p) { p->mutable_handoff()->set_first_token(-1); }},
      {"handoff", [](P* p) { p->set_score_only(true); }},
  };
  ExpectEachRefused(request, cases, [](const P& p) { return FromProto(p, kLimits).status(); });
}

TEST(MessageWireTest, RefusesEachBadFieldOfAHelloByName) {
  using P = v1::HelloResponse;
  const std::vector<Case<P>> cases = {
      {"protocol_version", [](P* p) { p->set_protocol_version(0); }},
      {"kv_wire_version", [](P* p) { p->set_kv_wire_version(0); }},
      {"role", [](P* p) { p->set_role(v1::ROLE_UNSPECIFIED); }},
      {"role", [](P* p) { p->set_role(static_cast<v1::Role>(9)); }},
      {"incarnation", [](P* p) { p->set_incarnation(0); }},
      {"numerics_id", [](P* p) { p->clear_numerics_id(); }},
      {"tp_size", [](P* p) { p->set_tp_size(0); }},
      {"block_size", [](P* p) { p->set_block_size(0); }},
      {"num_blocks", [](P* p) { p->set_num_blocks(-1); }},
      {"layer_groups", [](P* p) { p->set_layer_groups(-1); }},
      {"max_model_len", [](P* p) { p->set_max_model_len(0); }},
      {"vocab_size", [](P* p) { p->set_vocab_size(0); }},
  };
  ExpectEachRefused(WireSamples(8).Hello(), cases,
                    [](const P& p) { return FromProto(p).status(); });
}

TEST(MessageWireTest, RefusesEachBadFieldOfAnEventByName) {
  using P = v1::DecodeEvent;
  const auto read = [](const P& p) { return FromProto(p, kLimits).status(); };
  ExpectEachRefused<P>(
      WireSamples(9).Reserved(),
      {{"event is not set", [](P* p) { p->clear_event(); }},
       {"attempt", [](P* p) { p->mutable_reserved()->set_attempt(0); }},
       {"ticket", [](P* p) { p->mutable_reserved()->clear_ticket(); }},
       {"pair_key.size", [](P* p) { p->mutable_reserved()->clear_pair_key(); }},
       {"decode_incarnation", [](P* p) { p->mutable_reserved()->set_decode_incarnation(0); }},
       {"cached_tokens", [](P* p) { p->mutable_reserved()->set_cached_tokens(-1); }}},
      read);
  ExpectEachRefused<P>(
      WireSamples(10).TokensOf(3),
      {{"attempt", [](P* p) { p->mutable_tokens()->set_attempt(0); }},
       {"positions must ascend",
        [](P* p) {
          v1::Tokens* tokens = p->mutable_tokens();
          tokens->mutable_outputs(1)->set_position(tokens->outputs(0).position());
        }},
       {"output.token", [](P* p) { p->mutable_tokens()->mutable_outputs(2)->set_token(-1); }}},
      read);
}

TEST(MessageWireTest, RefusesNegativeCountsOfAStatus) {
  using P = v1::WorkerStatus;
  ExpectEachRefused<P>(
      WireSamples(11).Status(),
      {{"incarnation", [](P* p) { p->set_incarnation(0); }},
       {"blocks.free", [](P* p) { p->mutable_blocks()->set_free(-1); }},
       {"blocks.draining", [](P* p) { p->mutable_blocks()->set_draining(INT32_MAX); }},
       {"running", [](P* p) { p->set_running(-1); }},
       {"queued_tokens", [](P* p) { p->set_queued_tokens(-1); }}},
      [](const P& p) { return FromProto(p).status(); });
}

// What is read from mutated bytes is either refused, or valid: then it can be written and read
// again to the same bytes.
template <typename Proto, typename Value>
int FuzzRequest(WireSamples* samples, const Value& value) {
  std::string bytes = Bytes<Proto>(value);
  samples->Mutate(&bytes);
  Proto proto;
  if (!proto.ParseFromString(bytes)) return 0;
  const auto read = FromProto(proto, kLimits);
  if (!read.ok()) {
    EXPECT_FALSE(read.status().message().empty());
    return 0;
  }
  Proto again;
  ToProto(*read, &again);
  const auto reread = FromProto(again, kLimits);
  EXPECT_TRUE(reread.ok()) << reread.status();
  if (!reread.ok()) return 0;
  EXPECT_EQ(Bytes<Proto>(*reread), again.SerializeAsString());
  return 1;
}

template <typename Proto, typename Value>
int FuzzEvent(WireSamples* samples, const Value& value) {
  std::string bytes = Bytes<Proto>(value);
  samples->Mutate(&bytes);
  Proto proto;
  if (!proto.ParseFromString(bytes)) return 0;
  const auto read = FromProto(proto, kLimits);
  EXPECT_EQ(read.ok(), read.status().message().empty());
  return read.ok() ? 1 : 0;
}

TEST(MessageWireTest, MutatedBytesAreRefusedOrValidNeverACrash) {
  SilenceLibraryLogs();
  WireSamples samples(12);
  int taken = 0;
  constexpr int kRounds = 3000;
  for (int i = 0; i < kRounds; ++i) {
    taken += FuzzRequest<v1::DecodeRequest>(&samples, samples.Decode());
    taken += FuzzRequest<v1::PrefillRequest>(&samples, samples.Prefill());
    taken += FuzzEvent<v1::DecodeEvent>(&samples, samples.Reserved());
    taken += FuzzEvent<v1::DecodeEvent>(&samples, samples.TokensOf(3));
    taken += FuzzEvent<v1::PrefillEvent>(&samples, samples.Prefilled());
    taken += FuzzEvent<v1::PrefillEvent>(&samples, samples.Scores());
  }
  // Both outcomes were met, so the mutations are neither harmless nor hopeless.
  EXPECT_GT(taken, kRounds / 100);
  EXPECT_LT(taken, 4 * kRounds);
}

}  // namespace
}  // namespace baton
