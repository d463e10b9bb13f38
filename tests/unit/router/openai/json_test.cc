#include "router/openai/json.h"

#include <gtest/gtest.h>

#include <string>

#include "common/base/random.h"
#include "router/error.h"

namespace baton {
namespace {

TEST(JsonTest, KeepsValuesAndTheOrderOfKeys) {
  const std::string text = R"({"z":1,"a":[true,null,-2.5,"\u20ac"],"m":{"k":"v"}})";
  const auto json = ParseJson(text);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(Dump(*json), "{\"z\":1,\"a\":[true,null,-2.5,\"\xE2\x82\xAC\"],\"m\":{\"k\":\"v\"}}");
}

TEST(JsonTest, RefusesWhatIsNotADocument) {
  for (const std::string text :
       {"", " ", "{", "{\"a\":}", "[1,]", "NaN", "{\"a\":NaN}", "{\"a\":Infinity}", "1e999",
        "{\"a\":1}x", "\"\xFF\"", "\"\\ud800\"", "\"\t\"", "{a:1}", "01", "\xEF\xBB\xBF"}) {
    EXPECT_EQ(ParseJson(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_FALSE(ParseJson(std::string("{\"a\":1}\0", 8)).ok());
}

TEST(JsonTest, RefusesDoubleKeysAndNamesThem) {
  const auto json = ParseJson(R"({"a":{"b":1,"c":2,"b":3}})");
  EXPECT_NE(json.status().message().find("\"b\""), absl::string_view::npos) << json.status();
  EXPECT_TRUE(ParseJson(R"({"a":{"b":1},"b":{"b":1}})").ok());
}

TEST(JsonTest, BoundsTheDepth) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(ParseJson(nested(kMaxJsonDepth)).ok());
  EXPECT_FALSE(ParseJson(nested(kMaxJsonDepth + 1)).ok());
  EXPECT_FALSE(ParseJson(std::string(4 << 20, '[')).ok());
}

TEST(JsonTest, ReadsManyKeysInLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += "\"k" + std::to_string(i) + "\":0,";
  text += "\"end\":1}";
  const auto json = ParseJson(text);
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(*FindField(*json, "end"), 1);
}

TEST(JsonTest, TreatsNullAsAbsent) {
  const Json object = *ParseJson(R"({"a":null})");
  EXPECT_EQ(FindField(object, "a"), nullptr);
  double value = 1;
  std::optional<double> read = value;
  EXPECT_TRUE(ReadField(object, "a", &read).ok());
  EXPECT_EQ(read, 1);
}

TEST(JsonTest, NamesFieldAndValueOfAWrongType) {
  const Json object = *ParseJson(R"({"t":"hot","n":1.5,"b":1,"s":["x"],"l":[1,"x"],"big":1e300})");
  std::optional<double> number;
  absl::Status status = ReadField(object, "t", &number);
  EXPECT_EQ(ErrorParam(status), "t");
  EXPECT_NE(status.message().find("\"hot\""), absl::string_view::npos);
  std::optional<int64_t> integer;
  EXPECT_EQ(ErrorParam(ReadField(object, "n", &integer)), "n");
  EXPECT_EQ(ErrorParam(ReadField(object, "big", &integer)), "big");
  bool flag = false;
  EXPECT_EQ(ErrorParam(ReadField(object, "b", &flag)), "b");
  std::string text;
  EXPECT_EQ(ErrorParam(ReadField(object, "s", &text)), "s");
  std::vector<int64_t> list;
  EXPECT_EQ(ErrorParam(ReadField(object, "l", &list)), "l");
}

TEST(JsonTest, ShowsOnlyTheBeginningOfWhatIsWrong) {
  const std::string euros = [] {
    std::string text;
    for (int i = 0; i < 1000; ++i) text += "\xE2\x82\xAC";
    return text;
  }();
  Json list = Json::array();
  for (int i = 0; i < 1000; ++i) list.push_back(i);
  for (const Json& value : {Json(euros), list, Json{{"key", euros}}}) {
    const absl::Status status = WrongType("n", value, "a number");
    EXPECT_LT(status.message().size(), 200u);
    EXPECT_TRUE(ParseJson(Dump(Json(std::string(status.message())))).ok());
    EXPECT_EQ(Dump(Json(std::string(status.message()))).find("\\ufffd"), std::string::npos);
  }
  const std::string twice = "{\"" + euros + "\":1,\"" + euros + "\":2}";
  EXPECT_LT(ParseJson(twice).status().message().size(), 200u);
}

TEST(JsonTest, WritesTextThatIsNotUtf8AsReplacements) {
  EXPECT_EQ(Dump(Json(std::string("a\xFF"))), "\"a\xEF\xBF\xBD\"");
}

TEST(JsonTest, TakesIntegersInAnyFormThatIsExact) {
  EXPECT_EQ(AsInteger(*ParseJson("16.0")), 16);
  EXPECT_EQ(AsInteger(*ParseJson("-9223372036854775808")), INT64_MIN);
  EXPECT_EQ(AsInteger(*ParseJson("9223372036854775807")), INT64_MAX);
  EXPECT_EQ(AsInteger(*ParseJson("9223372036854775808")), std::nullopt);
  EXPECT_EQ(AsInteger(*ParseJson("1e30")), std::nullopt);
  EXPECT_EQ(AsInteger(*ParseJson("9007199254740994.0")), std::nullopt);  // Maybe ...993.0.
  EXPECT_EQ(AsInteger(*ParseJson("true")), std::nullopt);
  EXPECT_EQ(AsInteger(*ParseJson("\"1\"")), std::nullopt);
}

TEST(JsonTest, SurvivesDamagedDocuments) {
  Random random(5);
  const std::string good =
      R"({"model":"tiny","prompt":["a","b"],"logit_bias":{"5":-1.5e2},"stop":"\u20ac","n":2})";
  int refused = 0;
  for (int i = 0; i < 10'000; ++i) {
    std::string text = good.substr(0, 1 + random.Below(good.size()));
    for (uint64_t flips = random.Below(3); flips > 0; --flips) {
      text[random.Below(text.size())] = static_cast<char>(random.Below(256));
    }
    const auto json = ParseJson(text);
    refused += !json.ok();
    if (json.ok()) {
      ASSERT_TRUE(ParseJson(Dump(*json)).ok()) << text;
    }
  }
  EXPECT_GT(refused, 5000);
}

}  // namespace
}  // namespace baton
