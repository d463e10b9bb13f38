// Every field of every message between the processes of a cluster, out of the range that its
// receiver's code assumes, through the conversion that stands at each receiver's edge. Complete: a
// field of these .proto files that has neither a row nor a reason why any value is right fails the
// test. What depends on what was asked for is judged by the nodes: tests/unit/router/
// event_checks_test.cc, tests/unit/decode_worker/first_token_test.cc, tests/unit/prefill_worker/
// send_test.cc; the K/V plane: tests/unit/common/transport/out_of_range_test.cc; what clients send:
// tests/unit/router/generation/validate_test.cc.
#include "tests/unit/common/rpc/out_of_range.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "baton/v1/session.pb.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

// `get` makes an event with one output and gives that.
template <typename P, typename Get>
void AddOutput(RowsOf<P>& rows, Get get) {
  using O = v1::TokenOutput;
  const auto bad = [&](const char* field, const char* named, std::function<void(O*)> spoil) {
    rows.Bad(field, named, [=](P* p) { spoil(get(p)); });
  };
  bad("TokenOutput.position", "output.position", [](O* o) { o->set_position(0); });
  bad("TokenOutput.position", "output.position", [](O* o) { o->set_position(-1); });
  bad("TokenOutput.position", "output.position", [](O* o) { o->set_position(kBeyondLength); });
  bad("TokenOutput.token", "output.token", [](O* o) { o->set_token(-1); });
  bad("TokenOutput.token", "output.token", [](O* o) { o->set_token(kBeyondVocab); });
  bad("TokenOutput.logprob", "output.logprob", [](O* o) { o->set_logprob(kNan); });
  bad("TokenOutput.logprob", "output.logprob", [](O* o) { o->set_logprob(kInf); });
  bad("TokenOutput.finish", "output.finish",
      [](O* o) { o->set_finish(static_cast<v1::FinishReason>(3)); });
  bad("TokenOutput.finish", "output.finish",
      [](O* o) { o->set_finish(static_cast<v1::FinishReason>(-1)); });
  bad("TokenOutput.top", "top.size", [](O* o) {
    for (int i = 0; i <= kMaxLogprobs + 1; ++i) o->add_top();
  });
  bad("TokenLogprob.token", "top.token", [](O* o) { o->add_top()->set_token(-1); });
  bad("TokenLogprob.token", "top.token", [](O* o) { o->add_top()->set_token(kBeyondVocab); });
  bad("TokenLogprob.logprob", "top.logprob", [](O* o) { o->add_top()->set_logprob(kNan); });
}

void AddDecodeEvents(std::vector<Row>* all) {
  using E = v1::DecodeEvent;
  RowsOf<E> reserved(all, WireSamples(9).Reserved());
  const auto bad_reserved = [&](const char* field, const char* named,
                                std::function<void(v1::Reserved*)> spoil) {
    reserved.Bad(std::string("Reserved.") + field, named,
                 [=](E* p) { spoil(p->mutable_reserved()); });
  };
  reserved.Sealed("DecodeEvent");
  for (const char* kind : {"reserved", "tokens", "handoff_failed"}) {
    reserved.Bad(std::string("DecodeEvent.") + kind, "event is not set",
                 [](E* p) { p->clear_event(); });
  }
  bad_reserved("attempt", "attempt", [](auto* p) { p->set_attempt(0); });
  bad_reserved("ticket", "ticket", [](auto* p) { p->clear_ticket(); });
  for (const char* half : {"Ticket.hi", "Ticket.lo"}) {
    reserved.Bad(half, "ticket", [](E* p) {
      p->mutable_reserved()->mutable_ticket()->set_hi(0);
      p->mutable_reserved()->mutable_ticket()->set_lo(0);
    });
  }
  reserved.Bad("Ticket.lo", "ticket.lo", [](E* p) {
    for (uint64_t bit : {1, 2, 4}) p->mutable_reserved()->mutable_ticket()->set_lo(8 + bit);
  });
  AddRanks(reserved, "Reserved", "ranks",
           [](E* p) { return p->mutable_reserved()->mutable_ranks(); });
  bad_reserved("pair_key", "pair_key.size", [](auto* p) { p->clear_pair_key(); });
  bad_reserved("pair_key", "pair_key.size", [](auto* p) { p->set_pair_key(std::string(33, 'k')); });
  bad_reserved("decode_incarnation", "decode_incarnation",
               [](auto* p) { p->set_decode_incarnation(0); });
  bad_reserved("cached_tokens", "cached_tokens", [](auto* p) { p->set_cached_tokens(-1); });
  bad_reserved("cached_tokens", "cached_tokens",
               [](auto* p) { p->set_cached_tokens(kBeyondLength); });

  RowsOf<E> tokens(all, WireSamples(10).TokensOf(1));
  tokens.Bad("Tokens.attempt", "attempt", [](E* p) { p->mutable_tokens()->set_attempt(0); });
  for (int32_t cached : {-1, kBeyondLength}) {
    tokens.Bad("Tokens.cached_tokens", "cached_tokens",
               [cached](E* p) { p->mutable_tokens()->set_cached_tokens(cached); });
  }
  AddOutput(tokens, [](E* p) { return p->mutable_tokens()->mutable_outputs(0); });
  for (int32_t skip : {0, 2, -1}) {
    tokens.Bad("Tokens.outputs", "positions must ascend", [skip](E* p) {
      v1::Tokens* t = p->mutable_tokens();
      *t->add_outputs() = t->outputs(0);
      t->mutable_outputs(1)->set_position(t->outputs(0).position() + skip);
    });
  }
  tokens.Bad("Tokens.outputs", "outputs.size", [](E* p) {
    for (int i = 0; i < kBeyondLength; ++i) p->mutable_tokens()->add_outputs();
  });

  RowsOf<E> scores(all, ScoresEvent{.attempt = 1, .logprobs = {WireSamples(12).Prompt(1)}});
  scores.Bad("DecodeEvent.scores", "prompt_logprobs.size",
             [](E* p) { p->mutable_scores()->clear_prompt_logprobs(); });
  RowsOf<E> failed(all, WireSamples(10).HandoffFailed());
  failed.Bad("HandoffFailed.attempt", "attempt",
             [](E* p) { p->mutable_handoff_failed()->set_attempt(0); });
  failed.Bad("HandoffFailed.reason", "reason.size", [](E* p) {
    p->mutable_handoff_failed()->set_reason(std::string(kMaxReasonBytes + 1, 'x'));
  });
}

void AddPrefillEvents(std::vector<Row>* all) {
  using E = v1::PrefillEvent;
  RowsOf<E> rows(all, PrefilledEvent{.attempt = 1, .first = WireSamples(11).Output(3)});
  rows.Sealed("PrefillEvent");
  for (const char* kind : {"prefilled", "scores", "handoff_failed"}) {
    rows.Bad(std::string("PrefillEvent.") + kind, "event is not set",
             [](E* p) { p->clear_event(); });
  }
  rows.Bad("Prefilled.attempt", "attempt", [](E* p) { p->mutable_prefilled()->set_attempt(0); });
  rows.Bad("Prefilled.cached_tokens", "cached_tokens",
           [](E* p) { p->mutable_prefilled()->set_cached_tokens(-1); });
  rows.Bad("Prefilled.cached_tokens", "cached_tokens",
           [](E* p) { p->mutable_prefilled()->set_cached_tokens(kBeyondLength); });
  AddOutput(rows, [](E* p) { return p->mutable_prefilled()->mutable_first(); });
  rows.Bad("Prefilled.first", "output.position",
           [](E* p) { p->mutable_prefilled()->mutable_first()->Clear(); });
}

void AddScores(std::vector<Row>* all) {
  using E = v1::PrefillEvent;
  using S = v1::Scores;
  PromptLogprob valid = WireSamples(12).Prompt(1);
  valid.top = {{.token = 3, .logprob = -1}};
  RowsOf<E> rows(all, ScoresEvent{.attempt = 1, .logprobs = {valid}});
  const auto bad_piece = [&](const char* field, const char* named, std::function<void(S*)> spoil) {
    rows.Bad(std::string("Scores.") + field, named, [=](E* p) { spoil(p->mutable_scores()); });
  };
  bad_piece("attempt", "attempt", [](S* s) { s->set_attempt(0); });
  bad_piece("prompt_logprobs", "prompt_logprobs.size", [](S* s) { s->clear_prompt_logprobs(); });
  bad_piece("prompt_logprobs", "prompt_logprobs.size", [](S* s) {
    for (int i = 0; i < kBeyondLength; ++i) s->add_prompt_logprobs();
  });
  bad_piece("prompt_logprobs", "prompt_logprobs with top", [](S* s) {
    for (int i = 1; s->prompt_logprobs_size() * kMaxLogprobs <= kMaxPieceScores; ++i) {
      v1::PromptLogprob* one = s->add_prompt_logprobs();
      *one = s->prompt_logprobs(0);
      one->set_position(i + 1);
      while (one->top_size() < kMaxLogprobs) *one->add_top() = one->top(0);
    }
  });
  for (int32_t position : {0, 1, 3}) {
    bad_piece("prompt_logprobs", "prompt_logprob", [position](S* s) {
      *s->add_prompt_logprobs() = s->prompt_logprobs(0);
      s->mutable_prompt_logprobs(1)->set_position(position);
    });
  }
  using L = v1::PromptLogprob;
  const auto bad = [&](const char* field, std::function<void(L*)> spoil) {
    rows.Bad(std::string("PromptLogprob.") + field, std::string("prompt_logprob.") + field,
             [=](E* p) { spoil(p->mutable_scores()->mutable_prompt_logprobs(0)); });
  };
  bad("position", [](L* l) { l->set_position(0); });
  bad("position", [](L* l) { l->set_position(kBeyondLength); });
  bad("token", [](L* l) { l->set_token(-1); });
  bad("token", [](L* l) { l->set_token(kBeyondVocab); });
  bad("logprob", [](L* l) { l->set_logprob(kNan); });
  bad("logprob", [](L* l) { l->set_logprob(kInf); });
  bad("rank", [](L* l) { l->set_rank(0); });
  bad("rank", [](L* l) { l->set_rank(kBeyondVocab + 1); });
  rows.Bad("PromptLogprob.top", "top.token",
           [](E* p) { p->mutable_scores()->mutable_prompt_logprobs(0)->add_top()->set_token(-1); });
}

void AddHello(std::vector<Row>* all) {
  using P = v1::HelloResponse;
  RowsOf<P> rows(all, WireSamples(8).Hello());
  const auto bad = [&](const char* field, std::function<void(P*)> spoil) {
    rows.Bad(std::string("HelloResponse.") + field, field, spoil);
  };
  rows.Sealed("HelloResponse");
  bad("protocol_version", [](P* p) { p->set_protocol_version(0); });
  bad("protocol_version", [](P* p) { p->set_protocol_version(-1); });
  for (int32_t value : {0, -1, 65536}) {
    bad("kv_wire_version", [=](P* p) { p->set_kv_wire_version(value); });
  }
  bad("role", [](P* p) { p->set_role(v1::ROLE_UNSPECIFIED); });
  bad("role", [](P* p) { p->set_role(static_cast<v1::Role>(3)); });
  bad("incarnation", [](P* p) { p->set_incarnation(0); });
  bad("numerics_id", [](P* p) { p->clear_numerics_id(); });
  bad("numerics_id", [](P* p) { p->set_numerics_id("a\nb"); });
  for (int32_t value : {0, -1, kMax32}) {
    bad("tp_size", [=](P* p) { p->set_tp_size(value); });
    bad("block_size", [=](P* p) { p->set_block_size(value); });
    bad("max_model_len", [=](P* p) { p->set_max_model_len(value); });
    bad("vocab_size", [=](P* p) { p->set_vocab_size(value); });
  }
  bad("num_blocks", [](P* p) { p->set_num_blocks(0); });
  bad("num_blocks", [](P* p) { p->set_num_blocks(-1); });
  bad("layer_groups", [](P* p) { p->set_layer_groups(-1); });
  bad("layer_groups", [](P* p) { p->set_layer_groups(1025); });
  for (const std::string& label : {std::string("a\nb"), std::string(kMaxLabelBytes + 1, 'x')}) {
    bad("nccl_version", [=](P* p) { p->set_nccl_version(label); });
    bad("why_no_nccl", [=](P* p) { p->set_why_no_nccl(label); });
  }
}

template <typename P>
void AddBlocks(RowsOf<P>& rows) {
  using B = v1::BlockCounts;
  const std::map<std::string, void (B::*)(int32_t)> setters = {
      {"free", &B::set_free},   {"reserved", &B::set_reserved}, {"filling", &B::set_filling},
      {"ready", &B::set_ready}, {"cached", &B::set_cached},     {"draining", &B::set_draining}};
  for (const auto& [field, set] : setters) {
    // The largest would make the sum overflow.
    for (int32_t value : {-1, kMax32}) {
      rows.Bad("BlockCounts." + field, "blocks." + field,
               [set, value](P* p) { (p->mutable_blocks()->*set)(value); });
    }
  }
}

void AddStatus(std::vector<Row>* all) {
  using P = v1::WorkerStatus;
  WorkerStatus status = WireSamples(11).Status();
  status.kv_peers = {{.incarnation = 5, .links_over_nccl = 1}};
  RowsOf<P> rows(all, status);
  const auto bad = [&](const char* field, std::function<void(P*)> spoil) {
    rows.Bad(std::string("WorkerStatus.") + field, field, spoil);
  };
  rows.Sealed("WorkerStatus");
  AddBlocks(rows);
  bad("incarnation", [](P* p) { p->set_incarnation(0); });
  bad("blocks", [](P* p) { p->mutable_blocks()->set_free(-1); });
  bad("running", [](P* p) { p->set_running(-1); });
  bad("waiting", [](P* p) { p->set_waiting(-1); });
  bad("preempted", [](P* p) { p->set_preempted(-1); });
  for (int64_t value : {int64_t{-1}, kMax64}) {
    bad("queued_tokens", [=](P* p) { p->set_queued_tokens(value); });
    bad("tokens_per_s", [=](P* p) { p->set_tokens_per_s(value); });
    bad("longest_layer_us", [=](P* p) { p->set_longest_layer_us(value); });
  }
  bad("kv_peers", [](P* p) {
    while (p->kv_peers_size() <= kMostKvPeers) *p->add_kv_peers() = p->kv_peers(0);
  });
  using K = v1::KvPeer;
  const auto bad_peer = [&](const std::string& field, std::function<void(K*)> spoil) {
    rows.Bad("KvPeer." + field, "kv_peers." + field, [=](P* p) { spoil(p->mutable_kv_peers(0)); });
  };
  bad_peer("incarnation", [](K* k) { k->set_incarnation(0); });
  for (int32_t value : {-1, 65}) {
    bad_peer("links_over_nccl", [=](K* k) { k->set_links_over_nccl(value); });
    bad_peer("links_over_tcp", [=](K* k) { k->set_links_over_tcp(value); });
  }
  bad_peer("why_tcp", [](K* k) { k->set_why_tcp("\x1b[2J"); });
}

void AddAudit(std::vector<Row>* all) {
  using P = v1::AuditResponse;
  WorkerAudit audit = WireSamples(12).Audit();
  audit.calls = {{.sequence = {1, 1}, .attempt = 1, .state = "RUNNING", .num_blocks = 1}};
  RowsOf<P> rows(all, audit);
  AddBlocks(rows);
  rows.Bad("AuditResponse.incarnation", "incarnation", [](P* p) { p->set_incarnation(0); })
      .Bad("AuditResponse.blocks", "blocks.free", [](P* p) { p->mutable_blocks()->set_free(-1); })
      .Bad("AuditResponse.num_unowned", "num_unowned", [](P* p) { p->set_num_unowned(-1); })
      .Bad("AuditResponse.unowned_leg_ranks", "unowned_leg_ranks",
           [](P* p) { p->add_unowned_leg_ranks(-1); })
      .Bad("AuditResponse.calls", "sequence.router", [](P* p) { p->add_calls(); });
  using C = v1::HeldCall;
  const auto bad = [&](const char* field, const char* named, std::function<void(C*)> spoil) {
    rows.Bad(std::string("HeldCall.") + field, named, [=](P* p) { spoil(p->mutable_calls(0)); });
  };
  bad("sequence", "sequence.router", [](C* c) { c->clear_sequence(); });
  bad("state", "calls.state", [](C* c) { c->set_state("\x1b[2J"); });
  bad("num_blocks", "calls.num_blocks", [](C* c) { c->set_num_blocks(-1); });
  bad("leg_ranks", "calls.leg_ranks", [](C* c) { c->add_leg_ranks(8); });
  bad("age_us", "calls.age_us", [](C* c) { c->set_age_us(-1); });
  bad("age_us", "calls.age_us", [](C* c) { c->set_age_us(kMax64); });
}

std::vector<Row> AllRows() {
  std::vector<Row> rows;
  AddRequests(&rows);
  AddDecodeEvents(&rows);
  AddPrefillEvents(&rows);
  AddScores(&rows);
  AddHello(&rows);
  AddStatus(&rows);
  AddAudit(&rows);
  return rows;
}

// Fields of which no value is out of range for this conversion, and why.
const std::map<std::string, std::string>& WithoutRange() {
  static const std::map<std::string, std::string> kReasons = {
      {"SequenceId.counter", "a name, only compared"},
      {"SamplingParams.seed", "any 64 bits"},
      {"SamplingParams.choice", "any 32 bits, part of a hash"},
      {"SamplingParams.ignore_eos", "both are right"},
      {"SamplingParams.logits_digest", "both are right"},
      {"TokenOutput.logits_digest", "any 64 bits, shown as they are"},
      {"Reserved.data_endpoint", "for routers before protocol 3: EventSealerTest"},
      {"Prefilled.prompt_logprobs", "for routers of protocol 1: EventSealerTest"},
      {"Alive.num_events", "compared with the count of events: LivenessTest, DamagedLinkTest"},
      {"DecodeEvent.alive", "ends in CallEvents"},
      {"PrefillEvent.alive", "ends in CallEvents"},
      {"RebindRequest.expected_incarnation", "compared by WorkerServer: WorkerServerTest"},
      {"DecodeRequest.prefill_incarnation", "a name, only compared; 0: nobody writes"},
      {"RebindRequest.prefill_incarnation", "a name, only compared; 0: compute it yourself"},
      {"SendRequest.expected_incarnation", "compared by WorkerServer: WorkerServerTest"},
      {"HelloRequest.protocol_version", "judged by WorkerServer: WorkerServerTest"},
      {"HelloResponse.computes_prompts", "both are right"},
      {"HelloResponse.serves_sessions", "both are right"},
      {"HelloResponse.scores_prompts", "both are right"},
      {"HelloResponse.kv_tls", "both are right"},
      {"SessionFrame.message", "covered by its checksum: SessionTest"},
      {"SessionFrame.crc32c", "SessionTest"},
      {"ToWorker.number", "compared with the last one: SessionTest"},
      {"ToWorker.open", "SessionServerTest"},
      {"ToWorker.calls", "each of them: SessionServerTest"},
      {"SessionOpen.expected_incarnation", "compared by SessionServer: SessionServerTest"},
      {"SessionOpen.key", "any 32 bits"},
      {"SessionOpen.ended",
       "any 32 bits; how many is looked at by SessionServer: SessionServerTest"},
      {"CallAsked.call", "compared with those that are open: SessionServerTest"},
      {"CallAsked.decode", "a DecodeRequest"},
      {"CallAsked.prefill", "a PrefillRequest"},
      {"CallAsked.rebind", "a RebindRequest"},
      {"CallAsked.send", "a SendRequest"},
      {"CallAsked.cancel", "says all"},
      {"ToRouter.number", "compared with the last one: SessionTest"},
      {"ToRouter.calls", "each of them: SessionClientTest"},
      {"CallTold.call", "compared with those that are open: SessionClientTest"},
      {"CallTold.decode", "a DecodeEvent"},
      {"CallTold.prefill", "a PrefillEvent"},
      {"CallTold.end", "a CallEnd"},
      {"CallEnd.code", "SessionClientTest"},
      {"CallEnd.message", "any text, cut: SessionClientTest"},
      {"HelloResponse.layout_digest", "only compared"},
      {"HelloResponse.model_digest", "only compared"},
      {"WatchRequest.expected_incarnation", "compared by WorkerServer: WorkerServerTest"},
      {"DrainRequest.expected_incarnation", "compared by WorkerServer: WorkerServerTest"},
      {"AuditRequest.expected_incarnation", "compared by WorkerServer: WorkerServerTest"},
      {"WorkerStatus.draining", "both are right"},
      {"WorkerStatus.computing", "both are right"},
      {"WorkerStatus.progress", "only compared with the one before"},
      {"HeldCall.attempt", "shown as it is"},
      {"HeldCall.transfer_open", "both are right"},
  };
  return kReasons;
}

TEST(OutOfRangeTest, EachIsRefusedByNameAndNeverACrash) {
  for (const Row& row : AllRows()) {
    const absl::Status status = row.send();
    const bool is_seal = row.named == "crc32c";
    EXPECT_EQ(status.code(), is_seal ? Code::kDataLoss : Code::kInvalidArgument) << row.field;
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.named)) << row.field;
  }
}

TEST(OutOfRangeTest, EveryFieldHasARowOrAReason) {
  std::set<std::string> with_row;
  for (const Row& row : AllRows()) with_row.insert(row.field);
  std::set<std::string> fields;
  for (const google::protobuf::FileDescriptor* file :
       {v1::HelloRequest::descriptor()->file(), v1::DecodeRequest::descriptor()->file(),
        v1::PrefillRequest::descriptor()->file(), v1::SessionFrame::descriptor()->file(),
        v1::SequenceId::descriptor()->file()}) {
    for (int m = 0; m < file->message_type_count(); ++m) {
      const google::protobuf::Descriptor* message = file->message_type(m);
      EXPECT_EQ(message->nested_type_count(), 0) << message->name();
      for (int f = 0; f < message->field_count(); ++f) {
        fields.insert(message->name() + "." + message->field(f)->name());
      }
    }
  }
  for (const std::string& field : fields) {
    EXPECT_EQ(with_row.contains(field) + WithoutRange().contains(field), 1)
        << field << ": add a row with each kind of bad value, or the reason why none is bad";
  }
  for (const std::string& field : with_row) EXPECT_TRUE(fields.contains(field)) << field;
  for (const auto& [field, reason] : WithoutRange()) EXPECT_TRUE(fields.contains(field)) << field;
}

}  // namespace
}  // namespace baton
