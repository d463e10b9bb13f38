#include "router/generation/choice_text.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/random.h"
#include "router/generation/utf8.h"
#include "tests/unit/router/generation/fakes.h"

namespace baton {
namespace {

ChoiceText MakeText(const FakeTokenizer& tokenizer, const std::vector<std::string>* stop,
                    int32_t min_tokens = 0) {
  return ChoiceText(tokenizer.NewStreamDecoder(true), stop, min_tokens);
}

TEST(ChoiceTextTest, PiecesAreValidTextAndTogetherTheWhole) {
  const FakeTokenizer tokenizer;
  const std::vector<std::string> stop = {"\xE2\x82\xAC\xE2\x82\xAC", "stop"};
  Random random(11);
  for (int i = 0; i < 2000; ++i) {
    std::vector<int32_t> ids(1 + random.Below(12));
    for (int32_t& id : ids) {
      const std::string_view pool = "\xE2\x82\xAC\xC3\xA9st op";
      id = random.Below(8) == 0
               ? FakeTokenizer::kEuroHead
               : FakeTokenizer::Byte(static_cast<unsigned char>(pool[random.Below(pool.size())]));
    }
    ChoiceText text = MakeText(tokenizer, &stop);
    std::string streamed;
    bool stopped = false;
    for (size_t t = 0; t < ids.size() && !stopped; ++t) {
      auto piece = text.Push(ids[t], false, t + 1 == ids.size());
      ASSERT_TRUE(piece.ok());
      ASSERT_TRUE(IsValidUtf8(piece->text));
      streamed += piece->text;
      stopped = piece->stop.has_value();
    }
    std::string whole = *tokenizer.Decode(ids, true);
    size_t at = std::string::npos;
    for (const std::string& s : stop) at = std::min(at, whole.find(s));
    ASSERT_EQ(stopped, at != std::string::npos);
    ASSERT_EQ(streamed, whole.substr(0, at));
  }
}

TEST(ChoiceTextTest, CountsButHidesTheEndToken) {
  const FakeTokenizer tokenizer;
  const std::vector<std::string> stop;
  ChoiceText text = MakeText(tokenizer, &stop);
  EXPECT_EQ(text.Push(FakeTokenizer::kTheA, false, false)->text, "the");
  EXPECT_EQ(text.Push(FakeTokenizer::Byte('x'), true, true)->text, "");
  EXPECT_EQ(text.length(), 3);
}

TEST(ChoiceTextTest, ReleasesAnIncompleteCharacterAtTheEndOnly) {
  const FakeTokenizer tokenizer;
  const std::vector<std::string> stop;
  ChoiceText text = MakeText(tokenizer, &stop);
  EXPECT_EQ(text.Push(FakeTokenizer::kEuroHead, false, false)->text, "");
  EXPECT_EQ(text.Push(FakeTokenizer::kEnd, true, true)->text, "\xEF\xBF\xBD");
}

TEST(ChoiceTextTest, StopStringsCountAfterMinTokens) {
  const FakeTokenizer tokenizer;
  const std::vector<std::string> stop = {"the"};
  ChoiceText text = MakeText(tokenizer, &stop, /*min_tokens=*/2);
  EXPECT_FALSE(text.Push(FakeTokenizer::kTheA, false, false)->stop.has_value());
  EXPECT_FALSE(text.Push(FakeTokenizer::kTheA, false, false)->stop.has_value());
  EXPECT_EQ(text.Push(FakeTokenizer::kTheA, false, false)->stop, "the");
}

TEST(ChoiceTextTest, HasNoTextWithoutATokenizer) {
  const std::vector<std::string> stop;
  ChoiceText text(nullptr, &stop, 0);
  EXPECT_EQ(text.Push(5, false, true)->text, "");
}

}  // namespace
}  // namespace baton
