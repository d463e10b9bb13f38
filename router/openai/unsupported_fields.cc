#include "router/openai/unsupported_fields.h"

#include <array>
#include <string_view>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "router/error.h"

namespace baton {
namespace {

bool Never(const Json&) { return false; }
bool IsFalse(const Json& value) { return value.is_boolean() && !value.get<bool>(); }
bool IsOne(const Json& value) { return value.is_number() && value.get<double>() == 1; }
bool IsEmpty(const Json& value) {
  return (value.is_array() || value.is_object()) ? value.empty() : value.is_string() && value == "";
}
bool IsText(const Json& value) {
  return value.is_object() && value.contains("type") && value["type"] == "text";
}
bool IsNoneOrAuto(const Json& value) { return value == "none" || value == "auto"; }
bool IsNone(const Json& value) { return value == "none"; }
bool IsMedium(const Json& value) { return value == "medium"; }
bool IsTextOnly(const Json& value) {
  return value.is_array() && value.size() == 1 && value[0] == "text";
}

struct Field {
  std::string_view name;
  bool (*neutral)(const Json& value);
};

constexpr std::array kEverywhere = {
    Field{"use_beam_search", IsFalse},
    Field{"include_stop_str_in_output", IsFalse},
    Field{"truncate_prompt_tokens", Never},
    Field{"allowed_token_ids", IsEmpty},
    Field{"bad_words", IsEmpty},
    Field{"logits_processors", IsEmpty},
    Field{"typical_p", IsOne},
    Field{"response_format", IsText},
    Field{"structured_outputs", IsEmpty},
    Field{"guided_json", Never},
    Field{"guided_regex", Never},
    Field{"guided_choice", Never},
    Field{"guided_grammar", Never},
    Field{"grammar", IsEmpty},
    Field{"json_schema", Never},
    Field{"prompt_embeds", Never},
};
constexpr std::array kCompletionOnly = {
    Field{"suffix", IsEmpty},
};
constexpr std::array kChatOnly = {
    Field{"tools", IsEmpty},
    Field{"tool_choice", IsNoneOrAuto},
    Field{"functions", IsEmpty},
    Field{"function_call", IsNoneOrAuto},
    Field{"modalities", IsTextOnly},
    Field{"audio", Never},
    Field{"web_search_options", Never},
    Field{"reasoning_effort", IsNone},
    Field{"verbosity", IsMedium},
    Field{"documents", IsEmpty},
    Field{"chat_template", Never},
    Field{"echo", IsFalse},
    Field{"continue_final_message", IsFalse},
};

template <size_t N>
absl::Status Refuse(const Json& body, const std::array<Field, N>& fields) {
  for (const Field& field : fields) {
    const Json* value = FindField(body, field.name);
    if (value != nullptr && !field.neutral(*value)) {
      return WithErrorCode(
          InvalidField(field.name, absl::StrFormat("%s is not supported by this server; leave it "
                                                   "out.",
                                                   field.name)),
          "unsupported_parameter");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RefuseUnsupported(const Json& body, bool chat) {
  RETURN_IF_ERROR(Refuse(body, kEverywhere));
  return chat ? Refuse(body, kChatOnly) : Refuse(body, kCompletionOnly);
}

}  // namespace baton
