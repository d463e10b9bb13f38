#include "router/generation/stop_matcher.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/random.h"

namespace baton {
namespace {

struct Outcome {
  std::string text;
  std::string stop;
  bool operator==(const Outcome&) const = default;
};

// What the header promises, by brute force over every end and every stop string.
Outcome Expected(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string* best = nullptr;
    for (const std::string& stop : stops) {
      const bool here =
          stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0;
      if (here && (best == nullptr || stop.size() > best->size())) best = &stop;
    }
    if (best != nullptr) return {text.substr(0, end - best->size()), *best};
  }
  return {text, ""};
}

std::string Word(Random& random, size_t longest) {
  std::string word(1 + random.Below(longest), 'a');
  for (char& c : word) c = static_cast<char>('a' + random.Below(3));
  return word;
}

TEST(StopMatcherTest, FindsTheSameHoweverTheTextIsCut) {
  Random random(7);
  int found = 0;
  for (int i = 0; i < 5000; ++i) {
    std::vector<std::string> stops(1 + random.Below(3));
    for (std::string& stop : stops) stop = Word(random, 4);
    const std::string text = Word(random, 20);
    StopMatcher matcher(&stops);
    Outcome outcome;
    for (size_t at = 0; at < text.size() && outcome.stop.empty();) {
      const size_t length = 1 + random.Below(5);
      const StopMatcher::Result result = matcher.Add(text.substr(at, length), true);
      outcome.text += result.text;
      outcome.stop = result.stop.value_or("");
      at += length;
    }
    if (outcome.stop.empty()) outcome.text += matcher.Finish();
    const Outcome expected = Expected(text, stops);
    found += !expected.stop.empty();
    ASSERT_EQ(outcome.text, expected.text) << text;
    ASSERT_EQ(outcome.stop, expected.stop) << text;
  }
  EXPECT_GT(found, 1000);
}

TEST(StopMatcherTest, HoldsBackOnlyWhatMayBecomeAStopString) {
  const std::vector<std::string> stops = {"END", "\n\n"};
  StopMatcher matcher(&stops);
  EXPECT_EQ(matcher.Add("the E", true).text, "the ");
  EXPECT_EQ(matcher.Add("N", true).text, "");
  EXPECT_EQ(matcher.Add("T\n", true).text, "ENT");
  EXPECT_EQ(matcher.Finish(), "\n");
}

TEST(StopMatcherTest, IgnoresWhatEndsBeforeItMayStop) {
  const std::vector<std::string> stops = {"aa"};
  StopMatcher matcher(&stops);
  EXPECT_FALSE(matcher.Add("baa", false).stop.has_value());
  const StopMatcher::Result result = matcher.Add("a", true);
  EXPECT_EQ(result.stop, "aa");
  EXPECT_EQ(result.text, "");
}

TEST(StopMatcherTest, NothingIsLeftBehindAStopString) {
  const std::vector<std::string> stops{"stop"};
  StopMatcher matcher(&stops);
  EXPECT_EQ(matcher.Add("so stop it", true).text, "so ");
  EXPECT_EQ(matcher.Finish(), "");
}

}  // namespace
}  // namespace baton
