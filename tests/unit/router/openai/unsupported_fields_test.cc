#include "router/openai/unsupported_fields.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "router/generation/error.h"

namespace baton {
namespace {

TEST(UnsupportedFieldsTest, RefusesWhatWouldChangeTheText) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"tools", R"([{"type":"function","function":{"name":"f"}}])"},
      {"tool_choice", R"("required")"},
      {"tool_choice", R"({"type":"function","function":{"name":"f"}})"},
      {"functions", R"([{"name":"f"}])"},
      {"response_format", R"({"type":"json_object"})"},
      {"response_format", R"({"type":"json_schema","json_schema":{}})"},
      {"response_format", R"("json")"},
      {"guided_json", "{}"},
      {"structured_outputs", R"({"regex":"a"})"},
      {"modalities", R"(["text","audio"])"},
      {"chat_template", R"("{{ x }}")"},
      {"continue_final_message", "true"},
      {"echo", "true"},
      {"bad_words", R"(["x"])"},
      {"use_beam_search", "true"},
      {"truncate_prompt_tokens", "5"},
      {"include_stop_str_in_output", "true"},
      {"logits_processors", R"(["x"])"}};
  for (const auto& [name, value] : cases) {
    const Json body = *ParseJson("{\"" + name + "\":" + value + "}");
    const absl::Status status = RefuseUnsupported(body, /*chat=*/true);
    EXPECT_EQ(ErrorParam(status), name) << value;
    EXPECT_EQ(ErrorCode(status), "unsupported_parameter") << value;
  }
}

TEST(UnsupportedFieldsTest, LooksAtTheFieldsOfTheEndpointOnly) {
  EXPECT_TRUE(RefuseUnsupported(*ParseJson(R"({"echo":true})"), /*chat=*/false).ok());
  EXPECT_TRUE(RefuseUnsupported(*ParseJson(R"({"suffix":"x"})"), /*chat=*/true).ok());
  EXPECT_EQ(ErrorParam(RefuseUnsupported(*ParseJson(R"({"suffix":"x"})"), /*chat=*/false)),
            "suffix");
}

}  // namespace
}  // namespace baton
