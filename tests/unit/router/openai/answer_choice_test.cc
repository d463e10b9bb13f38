#include "router/openai/answer_choice.h"

#include <gtest/gtest.h>

#include "tests/unit/router/generation/fakes.h"

namespace baton {
namespace {

std::string Written(const AnswerChoice& choice) {
  TextPieces pieces;
  AddChoice(choice, pieces);
  std::string all;
  pieces.Fill(std::numeric_limits<size_t>::max(), all);
  return all;
}

class AnswerChoiceTest : public testing::Test {
 protected:
  AnswerChoiceTest() {
    const std::vector<TokenLogprob> top = {{FakeTokenizer::kTheB, -0.25f}};
    delta_ = {.choice = 3, .text = "the", .tokens = {FakeTokenizer::kTheA}};
    delta_.logprobs.Add({.chosen = {FakeTokenizer::kTheA, -0.5f}, .text_offset = 1, .top = top});
    delta_.logits_digests = {0xABC};
    delta_.finish = FinishReason::kLength;
    auto scores = std::make_shared<TokenScores>();
    scores->Add({.chosen = {FakeTokenizer::kBegin, 0}, .has_logprob = false});
    scores->Add({.chosen = {FakeTokenizer::Byte('a'), -2}, .rank = 4});
    scores_ = scores;
    context_.tokenizer = std::make_shared<FakeTokenizer>();
    context_.prompt_texts = {"a"};
    context_.prompt_ids = {{0, 99}};
  }
  std::string Write(bool chunk = false, bool first = true) {
    return Written({.context = std::make_shared<const AnswerContext>(context_),
                    .delta = std::make_shared<const ChoiceDelta>(delta_),
                    .prompt_scores = scores_,
                    .chunk = chunk,
                    .first = first});
  }

  AnswerContext context_;
  ChoiceDelta delta_;
  std::shared_ptr<const TokenScores> scores_;
};

TEST_F(AnswerChoiceTest, LeavesOutWhatWasNotAskedFor) {
  const char* expected =
      R"({"index":3,"text":"the","logprobs":null,"finish_reason":"length","stop_reason":null})";
  EXPECT_EQ(Write(), expected);
  EXPECT_EQ(Write(/*chunk=*/true), expected);
}

TEST_F(AnswerChoiceTest, TheFirstPieceOfAnEchoHasThePromptAndItsScores) {
  context_.request.generation.echo = true;
  context_.request.top_logprobs = 1;
  EXPECT_EQ(Write(),
            R"({"index":3,"text":"athe","logprobs":{"text_offset":[0,0,1],)"
            R"("token_logprobs":[null,-2.0,-0.5],"tokens":["<s>","a","the"],)"
            R"("top_logprobs":[null,{"a":-2.0},{"the":-0.5,"token_id:259":-0.25}]},)"
            R"("finish_reason":"length","stop_reason":null})");
  EXPECT_EQ(Write(/*chunk=*/true), Write());
  EXPECT_EQ(Write(/*chunk=*/true, /*first=*/false),
            R"({"index":3,"text":"the","logprobs":{"text_offset":[1],"token_logprobs":[-0.5],)"
            R"("tokens":["the"],"top_logprobs":[{"the":-0.5,"token_id:259":-0.25}]},)"
            R"("finish_reason":"length","stop_reason":null})");
}

TEST_F(AnswerChoiceTest, AChatHasAMessageOrADelta) {
  context_.request.chat = true;
  context_.request.top_logprobs = 0;
  const std::string rest =
      R"("logprobs":{"content":[{"token":"the","logprob":-0.5,"bytes":[116,104,101],)"
      R"("top_logprobs":[]}],"refusal":null},"finish_reason":"length","stop_reason":null})";
  EXPECT_EQ(Write(),
            R"({"index":3,"message":{"role":"assistant","content":"the","refusal":null},)" + rest);
  EXPECT_EQ(Write(/*chunk=*/true), R"({"index":3,"delta":{"content":"the"},)" + rest);
}

TEST_F(AnswerChoiceTest, IdsDigestsAndPromptScoresAreThereIfAskedFor) {
  context_.request.return_token_ids = true;
  context_.request.generation.logits_digests = true;
  context_.request.top_prompt_logprobs = 0;
  delta_.stop_string = "\"";
  const std::string head =
      R"({"index":3,"text":"the","logprobs":null,"finish_reason":"length","stop_reason":"\"",)"
      R"("token_ids":[258],)";
  const std::string digests = R"("logits_digests":["0000000000000abc"])";
  EXPECT_EQ(Write(), head + R"("prompt_token_ids":[0,99],)" + digests +
                         R"(,"prompt_logprobs":[null,)"
                         R"({"99":{"logprob":-2.0,"rank":4,"decoded_token":"a"}}]})");
  EXPECT_EQ(Write(/*chunk=*/true, /*first=*/false), head + digests + "}");
}

}  // namespace
}  // namespace baton
