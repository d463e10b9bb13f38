#include "common/checkpoint/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <algorithm>
#include <string>

#include "tests/unit/common/checkpoint/model_dir.h"

namespace baton {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ParseError(const std::string& text, int max_depth = 8) {
  return std::string(ParseBoundedJson("file", text, max_depth).status().message());
}

TEST(ParseBoundedJsonTest, RefusesDeepNestingWithoutRecursing) {
  EXPECT_TRUE(ParseBoundedJson("file", "[[[[]]]]", 4).ok());
  EXPECT_THAT(ParseError("[[[[[]]]]]", 4), HasSubstr("nested 5 deep; at most 4"));
  EXPECT_THAT(ParseError(std::string(1 << 20, '[')), HasSubstr("nested 1048576 deep"));
}

TEST(ParseBoundedJsonTest, CountsNoBracketsInsideStrings) {
  EXPECT_TRUE(ParseBoundedJson("file", R"(["[[[[\"[[[["])", 1).ok());
}

TEST(ParseBoundedJsonTest, RefusesAKeyTwiceInOneObjectOnly) {
  EXPECT_THAT(ParseError(R"({"a": 1, "b": {"a": 2}, "a": 3})"), HasSubstr("\"a\" appears twice"));
  EXPECT_TRUE(ParseBoundedJson("file", R"({"a": [{"a": 1}, {"a": 2}], "b": {"a": 3}})", 8).ok());
}

TEST(ParseBoundedJsonTest, RefusesWhatIsNotJson) {
  for (const char* text : {"", "{", "{\"a\": NaN}", "{\"a\": Infinity}", "{\"a\": 1e999}", "{} x",
                           "{\"a\": \"\xff\"}", "{\"a\": 01}", "{'a': 1}"}) {
    EXPECT_THAT(ParseError(text), HasSubstr("file: not valid JSON")) << text;
  }
}

TEST(ParseBoundedJsonTest, ErrorsArePrintableWhateverTheFileHolds) {
  for (const std::string text : {"\xff", "{\"a\": \"b\xe2\x82\"}", "\x1b[2J",
                                 "{\"\x7f\xc3\xa9\": 1, \"\x7f\xc3\xa9\": 2}"}) {
    const std::string error = ParseError(text);
    EXPECT_FALSE(error.empty());
    EXPECT_TRUE(std::all_of(error.begin(), error.end(), [](char c) {
      return c >= ' ' && c <= '~';
    })) << error;
  }
}

TEST(JsonFieldsTest, AbsentAndNullReadAsTheFallback) {
  const json object = {{"null", nullptr}};
  JsonFields fields("file", object);
  EXPECT_EQ(fields.Int("null", 7, 0, 9), 7);
  EXPECT_EQ(fields.Number("absent", 1.5, 0, 9), 1.5);
  EXPECT_TRUE(fields.Bool("absent", true));
  EXPECT_EQ(fields.String("null", "x"), "x");
  EXPECT_TRUE(fields.status().ok());
}

TEST(JsonFieldsTest, NamesTheFieldTheValueAndWhatIsAllowed) {
  const json object = {{"text", "12"}, {"huge", UINT64_MAX}, {"real", 4.5}, {"flag", 1}};
  const auto error_of = [&](auto read) {
    JsonFields fields("file", object);
    read(fields);
    return std::string(fields.status().message());
  };
  EXPECT_THAT(error_of([](auto& f) { f.Int("text", 0, 0, 9); }),
              HasSubstr("file: field \"text\" is \"12\"; an integer is needed"));
  EXPECT_THAT(error_of([](auto& f) { f.Int("huge", 0, 0, 9); }),
              HasSubstr("18446744073709551615; an integer from 0 to 9 is allowed"));
  EXPECT_THAT(error_of([](auto& f) { f.Int("real", 0, 0, 9); }), HasSubstr("an integer"));
  EXPECT_THAT(error_of([](auto& f) { f.Number("real", 0, 0, 4); }), HasSubstr("from 0 to 4"));
  EXPECT_THAT(error_of([](auto& f) { f.Number("text", 0, 0, 4); }), HasSubstr("a number"));
  EXPECT_THAT(error_of([](auto& f) { f.Bool("flag", false); }), HasSubstr("true or false"));
  EXPECT_THAT(error_of([](auto& f) { f.String("flag", ""); }), HasSubstr("a string"));
}

TEST(JsonFieldsTest, KeepsTheFirstErrorAndListsWhatNobodyRead) {
  const json object = {{"a", "x"}, {"b", "y"}, {"c", 1}};
  JsonFields fields("file", object);
  fields.Int("b", 0, 0, 1);
  fields.Int("a", 0, 0, 1);
  EXPECT_THAT(std::string(fields.status().message()), HasSubstr("\"b\""));
  EXPECT_THAT(fields.Untaken(), ElementsAre("c"));
}

TEST(JsonFieldsTest, TokenIdsAreOneOrAListSortedAndWithoutNone) {
  const json object = {{"one", 5}, {"list", {9, 5, 9, -1}}, {"bad", {1, -2}}, {"text", "5"}};
  JsonFields fields("file", object);
  EXPECT_THAT(fields.TokenIds("one", {}), ElementsAre(5));
  EXPECT_THAT(fields.TokenIds("list", {}), ElementsAre(5, 9));
  EXPECT_THAT(fields.TokenIds("absent", {3}), ElementsAre(3));
  EXPECT_TRUE(fields.status().ok());
  fields.TokenIds("bad", {});
  EXPECT_THAT(std::string(fields.status().message()), HasSubstr("\"bad\" is [1,-2]"));
}

TEST(JsonFieldsTest, ShowsLongValuesShort) {
  EXPECT_LT(ShowJson(std::string(100000, 'x')).size(), 200u);
}

TEST(ReadSmallFileTest, RefusesWhatIsMissingTooLargeOrNotAFile) {
  const ModelDir dir;
  dir.Write("file", "12345");
  EXPECT_EQ(*ReadSmallFile(dir.path() + "/file", 5), "12345");
  EXPECT_THAT(std::string(ReadSmallFile(dir.path() + "/file", 4).status().message()),
              AllOf(HasSubstr("5 bytes"), HasSubstr("at most 4")));
  EXPECT_TRUE(absl::IsNotFound(ReadSmallFile(dir.path() + "/none", 4).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadSmallFile(dir.path(), 1 << 20).status()));
  ASSERT_EQ(mkfifo((dir.path() + "/fifo").c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(ReadSmallFile(dir.path() + "/fifo", 4).status()));
}

TEST(JsonFieldsTest, AFieldMayHaveANameOfItsOwn) {
  constexpr FieldAlias kAliases[] = {{"layers", "n_layer"}, {"heads", "n_head"}, {"size", "n"}};
  const json object = {{"n_layer", 3}, {"heads", 4}, {"n", 5}, {"size", 6}, {"n_head", nullptr}};
  JsonFields fields("file", object);
  fields.SetAliases(kAliases);
  EXPECT_EQ(fields.Int("layers", 0, 1, 9), 3);
  EXPECT_EQ(fields.Int("heads", 0, 1, 9), 4);
  EXPECT_TRUE(fields.status().ok());
  fields.Int("layers", 0, 7, 9);
  EXPECT_THAT(std::string(fields.status().message()), HasSubstr("\"n_layer\" is 3"));
  JsonFields both("file", object);
  both.SetAliases(kAliases);
  both.Int("size", 0, 1, 9);
  EXPECT_THAT(std::string(both.status().message()), HasSubstr("\"n\" is 5; but \"size\" is 6"));
}

TEST(JsonFieldsTest, WhereOnlyTheOwnNameCountsTheCommonOneStaysUntaken) {
  constexpr FieldAlias kAliases[] = {{"theta", "base", true}, {"share", "pct", true}};
  const json object = {{"theta", 3}, {"share", 4}, {"pct", 4}};
  JsonFields fields("file", object);
  fields.SetAliases(kAliases);
  EXPECT_EQ(fields.Int("theta", 7, 1, 9), 7);
  EXPECT_EQ(fields.Int("share", 7, 1, 9), 4);
  EXPECT_TRUE(fields.status().ok());
  EXPECT_THAT(fields.Untaken(), ::testing::ElementsAre("theta"));
}

}  // namespace
}  // namespace baton
