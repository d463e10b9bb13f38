#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/router/http_answer_reader.h"
#include "tests/bench/router/mock_nodes.h"

namespace baton::bench {
namespace {

constexpr char kStream[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    "f\r\ndata: {\"a\":1}\n\n\r\n1e\r\ndata: {\"b\":2}\n\ndata: {\"c\":3}\n\n\r\n"
    "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
constexpr char kRefusal[] =
    "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 5\r\nConnection: close\r\n\r\ndata:";

TEST(HttpAnswerReaderTest, AStreamHasItsEventsAndItsEndHoweverItIsCut) {
  const std::string stream = kStream;
  for (size_t cut = 1; cut < stream.size(); ++cut) {
    HttpAnswerReader reader;
    ASSERT_TRUE(reader.Take(stream.substr(0, cut)));
    EXPECT_FALSE(reader.done()) << cut;
    ASSERT_TRUE(reader.Take(stream.substr(cut)));
    EXPECT_TRUE(reader.done()) << cut;
    EXPECT_EQ(reader.num_events(), 3) << cut;
    EXPECT_EQ(reader.status(), 200);
    EXPECT_FALSE(reader.closes());
  }
}

TEST(HttpAnswerReaderTest, ARefusalEndsWithItsLength) {
  HttpAnswerReader reader;
  for (const char c : std::string(kRefusal)) {
    EXPECT_FALSE(reader.done());
    ASSERT_TRUE(reader.Take({&c, 1}));
  }
  EXPECT_TRUE(reader.done());
  EXPECT_EQ(reader.status(), 429);
  EXPECT_TRUE(reader.closes());
  EXPECT_EQ(reader.num_events(), 0);
}

TEST(HttpAnswerReaderTest, WhatIsNoAnswerIsRefused) {
  EXPECT_FALSE(HttpAnswerReader().Take("nonsense\r\n\r\n"));
  EXPECT_FALSE(HttpAnswerReader().Take(std::string(kRefusal) + "more"));
  EXPECT_FALSE(HttpAnswerReader().Take(
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"));
}

// What a worker said on each call.
struct SaidOutbox : WorkerOutbox {
  void Emit(CallId call, WorkerEvent event) override { said[call].push_back(std::move(event)); }
  void Close(CallId call, absl::Status status) override { ends[call] = std::move(status); }

  // The outputs of a call so far.
  std::vector<TokenOutput> Outputs(CallId call) {
    std::vector<TokenOutput> outputs;
    for (const WorkerEvent& event : said[call]) {
      const auto* tokens = std::get_if<TokensEvent>(&event);
      if (tokens != nullptr) outputs.push_back(tokens->outputs.at(0));
    }
    return outputs;
  }

  std::map<CallId, std::vector<WorkerEvent>> said;
  std::map<CallId, absl::Status> ends;
};

constexpr Duration kPace = std::chrono::milliseconds(20);
const MockOptions kOptions = {.incarnation = 7, .pace = kPace, .max_running = 1};

DecodeOpened OpenedDecode(CallId call) {
  DecodeOpened opened{.call = call, .request = {.attempt = 2, .prefill = 9, .tokens = {1, 2, 3}}};
  opened.request.prompt_length = 3;
  opened.request.sampling.max_tokens = 3;
  return opened;
}

TEST(MockNodesTest, BothWorkersTellTheSameFirstTokenAndEachStepOneMore) {
  SaidOutbox decode_said;
  SaidOutbox prefill_said;
  MockDecodeNode decode(kOptions, decode_said);
  const Time start{};
  MockPrefillNode prefill(kOptions, prefill_said, [&](TransferEvent event) {
    decode.Handle(std::move(event), start);
  });
  decode.Handle(OpenedDecode(1), start);
  const auto reserved = std::get<ReservedEvent>(decode_said.said[1].at(0));
  EXPECT_EQ(reserved.decode, 7u);
  EXPECT_EQ(decode.NextDeadline(), kNever) << "nothing has arrived yet";

  PrefillOpened opened{.call = 5, .request = {.tokens = {1, 2, 3}, .prompt_length = 3}};
  opened.request.sampling.max_tokens = 3;
  opened.request.handoff = HandoffTarget{.ticket = reserved.ticket};
  prefill.Handle(std::move(opened), start);
  prefill.Step(start);
  const auto first = std::get<PrefilledEvent>(prefill_said.said[5].at(0)).first;
  ASSERT_TRUE(first.has_value());
  EXPECT_TRUE(prefill_said.ends.at(5).ok());
  ASSERT_EQ(decode_said.Outputs(1), std::vector{*first});
  EXPECT_EQ(first->position, 3);

  decode.Step(start + kPace - Duration(1));
  EXPECT_EQ(decode_said.Outputs(1).size(), 1u) << "before its time";
  decode.Step(start + kPace);
  EXPECT_EQ(decode_said.Outputs(1).size(), 2u);
  EXPECT_FALSE(decode_said.ends.contains(1));
  decode.Step(start + 5 * kPace);
  EXPECT_EQ(decode_said.Outputs(1).size(), 3u) << "a late step is one step";
  EXPECT_EQ(decode_said.Outputs(1).back().finish, FinishReason::kLength);
  EXPECT_TRUE(decode_said.ends.at(1).ok());
  EXPECT_EQ(decode.num_sequences(), 0);
}

TEST(MockNodesTest, WhatDoesNotFitIsRefusedUntilACallEnds) {
  SaidOutbox said;
  MockDecodeNode decode(kOptions, said);
  decode.Handle(OpenedDecode(1), Time{});
  decode.Handle(OpenedDecode(2), Time{});
  EXPECT_TRUE(absl::IsResourceExhausted(said.ends.at(2)));
  decode.Handle(CallBroken{.call = 1}, Time{});
  decode.Handle(OpenedDecode(3), Time{});
  EXPECT_EQ(said.said[3].size(), 1u);
}

TEST(MockNodesTest, ASequenceThatReturnsGoesOnWithItsNextToken) {
  SaidOutbox said;
  MockDecodeNode decode(kOptions, said);
  DecodeOpened returning = OpenedDecode(1);
  returning.request.prefill = 0;
  returning.request.tokens.push_back(4);  // Emitted before.
  const Time start{};
  decode.Handle(std::move(returning), start);
  ASSERT_EQ(said.said[1].size(), 1u);
  EXPECT_TRUE(std::get<TokensEvent>(said.said[1][0]).outputs.empty()) << "it has all of it";
  decode.Step(start + kPace);
  const auto& tokens = std::get<TokensEvent>(said.said[1].at(1));
  EXPECT_EQ(tokens.outputs.at(0).position, 4);
  decode.Step(start + 2 * kPace);
  EXPECT_TRUE(said.ends.at(1).ok());
}

TEST(MockNodesTest, PromptsTakeTheirTimeOneAfterAnother) {
  SaidOutbox said;
  MockOptions options = kOptions;
  options.prompt_time = std::chrono::milliseconds(5);
  MockPrefillNode prefill(options, said, [](TransferEvent) {});
  const Time start{};
  for (const CallId call : {1, 2, 3}) {
    PrefillOpened opened{.call = call, .request = {.tokens = {1}, .prompt_length = 1}};
    prefill.Handle(std::move(opened), start);
  }
  prefill.Handle(CallBroken{.call = 2}, start);
  prefill.Step(start + options.prompt_time);
  EXPECT_TRUE(said.ends.contains(1));
  EXPECT_FALSE(said.ends.contains(3));
  prefill.Step(start + 2 * options.prompt_time);
  EXPECT_TRUE(said.ends.contains(3));
  EXPECT_FALSE(said.ends.contains(2));
}

}  // namespace
}  // namespace baton::bench
