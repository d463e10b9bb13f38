#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "router/error.h"
#include "router/openai/api_request.h"

namespace baton {
namespace {

// The text of a list of content parts, one line each.
absl::StatusOr<std::string> JoinParts(const Json& parts, const std::string& param) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string part_param = absl::StrFormat("%s[%d]", param, i);
    const Json& part = parts[i];
    text += i == 0 ? "" : "\n";
    if (part.is_string()) {
      text += part.get<std::string>();
      continue;
    }
    const Json* type = part.is_object() ? FindField(part, "type") : nullptr;
    if (type == nullptr || !type->is_string()) {
      return WrongType(part_param, part, "an object with a type");
    }
    if (*type != "text" && *type != "refusal") {
      return WrongType(part_param + ".type", *type, "\"text\": this model reads text only");
    }
    const std::string name = type->get<std::string>();
    const Json* value = FindField(part, name);
    if (value == nullptr || !value->is_string()) {
      return InvalidField(part_param + "." + name,
                          absl::StrFormat("%s.%s must be a string.", part_param, name));
    }
    text += value->get<std::string>();
  }
  return text;
}

// Templates expect the arguments of an earlier call as an object; clients send its text.
void ParseCallArguments(Json& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return;
  for (Json& call : *calls) {
    const auto function = call.is_object() ? call.find("function") : call.end();
    if (function == call.end() || !function->is_object() || !function->contains("arguments")) {
      continue;
    }
    Json& arguments = (*function)["arguments"];
    if (arguments.is_string()) {
      auto parsed = ParseJson(arguments.get_ref<const std::string&>());
      if (parsed.ok() && parsed->is_object()) arguments = *std::move(parsed);
    }
  }
}

absl::StatusOr<Json> NormalizeMessage(const Json& message, const std::string& param) {
  if (!message.is_object()) return WrongType(param, message, "an object with role and content");
  const Json* role = FindField(message, "role");
  if (role == nullptr || !role->is_string() || role->get_ref<const std::string&>().empty()) {
    return InvalidField(param + ".role", absl::StrFormat("%s.role must be a string such as "
                                                         "\"user\".",
                                                         param));
  }
  // Copying below is quadratic in the number of keys.
  constexpr size_t kMaxKeys = 64;
  if (message.size() > kMaxKeys) {
    return InvalidField(param, absl::StrFormat("%s has %d keys; at most %d are allowed.", param,
                                               message.size(), kMaxKeys));
  }
  Json result = Json::object();
  for (const auto& [key, value] : message.items()) {
    if (value.is_null()) continue;
    if (key != "content" || value.is_string()) {
      result[key] = value;
    } else if (value.is_array()) {
      ASSIGN_OR_RETURN(result[key], JoinParts(value, param + ".content"));
    } else {
      return WrongType(param + ".content", value, "a string or a list of text parts");
    }
  }
  if (!result.contains("content") && *role != "assistant") {
    return InvalidField(param + ".content", absl::StrFormat("%s.content is missing.", param));
  }
  ParseCallArguments(result);
  return result;
}

}  // namespace

absl::StatusOr<ChatPrompt> ParseChatPrompt(const Json& body) {
  const Json* messages = FindField(body, "messages");
  if (messages == nullptr) return InvalidField("messages", "messages is missing.");
  if (!messages->is_array()) return WrongType("messages", *messages, "a list of messages");
  if (messages->empty()) return InvalidField("messages", "messages is an empty list.");
  Json normalized = Json::array();
  for (size_t i = 0; i < messages->size(); ++i) {
    ASSIGN_OR_RETURN(Json message,
                     NormalizeMessage((*messages)[i], absl::StrFormat("messages[%d]", i)));
    normalized.push_back(std::move(message));
  }
  ChatPrompt prompt{.messages_json = Dump(normalized)};
  RETURN_IF_ERROR(ReadField(body, "add_generation_prompt", &prompt.add_generation_prompt));
  if (const Json* kwargs = FindField(body, "chat_template_kwargs")) {
    if (!kwargs->is_object()) return WrongType("chat_template_kwargs", *kwargs, "an object");
    for (const char* reserved : {"messages", "tools", "chat_template"}) {
      if (kwargs->contains(reserved)) {
        return InvalidField("chat_template_kwargs",
                            absl::StrFormat("chat_template_kwargs may not have \"%s\".", reserved));
      }
    }
    prompt.template_kwargs_json = Dump(*kwargs);
  }
  return prompt;
}

}  // namespace baton
