#include "router/openai/unsupported_fields.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "router/error.h"

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
      {"logits_processors", R"(["x"])"},
      {"allowed_token_ids", "[5]"},
      {"typical_p", "0.9"},
      {"guided_regex", R"("a")"},
      {"guided_choice", R"(["a"])"},
      {"guided_grammar", R"("a")"},
      {"grammar", R"("a")"},
      {"json_schema", "{}"},
      {"prompt_embeds", R"("a")"},
      {"function_call", R"({"name":"f"})"},
      {"audio", "{}"},
      {"web_search_options", "{}"},
      {"reasoning_effort", R"("high")"},
      {"verbosity", R"("low")"},
      {"documents", R"([{"text":"a"}])"}};
  for (const auto& [name, value] : cases) {
    const Json body = *ParseJson("{\"" + name + "\":" + value + "}");
    const absl::Status status = RefuseUnsupported(body, /*chat=*/true);
    EXPECT_EQ(ErrorParam(status), name) << value;
    EXPECT_EQ(ErrorCode(status), "unsupported_parameter") << value;
  }
}

TEST(UnsupportedFieldsTest, TakesTheValuesThatChangeNothing) {
  for (const char* field :
       {R"("allowed_token_ids":[])", R"("typical_p":1.0)", R"("grammar":"")",
        R"("structured_outputs":{})", R"("logits_processors":[])", R"("tool_choice":"auto")",
        R"("function_call":"none")", R"("reasoning_effort":"none")", R"("verbosity":"medium")",
        R"("documents":[])", R"("echo":false)", R"("continue_final_message":false)",
        R"("include_stop_str_in_output":false)", R"("truncate_prompt_tokens":null)"}) {
    const Json body = *ParseJson(std::string("{") + field + "}");
    EXPECT_TRUE(RefuseUnsupported(body, /*chat=*/true).ok()) << field;
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
