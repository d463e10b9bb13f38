#include "router/openai/logprobs_json.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

// JSON has no infinity; clients know this number from other servers.
double Finite(float logprob) {
  constexpr double kLowest = -9999.0;
  return std::isnan(logprob) ? kLowest : std::max(static_cast<double>(logprob), kLowest);
}

std::string IdName(int32_t id) { return absl::StrCat("token_id:", id); }

std::string Name(const TokenText& token, const LogprobsFormat& format) {
  return format.as_ids || !format.has_text ? IdName(token.id) : token.text;
}

std::vector<TokenText> Shown(const TokenLogprobs& token, const LogprobsFormat& format) {
  const size_t count =
      std::min(token.top.size(), static_cast<size_t>(std::max<int64_t>(format.top, 0)));
  return {token.top.begin(), token.top.begin() + static_cast<std::ptrdiff_t>(count)};
}

Json TopByText(const TokenLogprobs& token, const LogprobsFormat& format) {
  Json result = Json::object();
  const auto add = [&](const TokenText& t) {
    std::string name = Name(t, format);
    while (result.contains(name)) {
      name = name == IdName(t.id) ? name + "'" : IdName(t.id);
    }
    result[name] = Finite(t.logprob);
  };
  add(token.chosen);
  for (const TokenText& t : Shown(token, format)) {
    if (t.id != token.chosen.id) {
      add(t);
    }
  }
  return result;
}

Json ChatToken(const TokenText& token, const LogprobsFormat& format) {
  Json bytes = nullptr;
  if (format.has_text) {
    bytes = Json::array();
    for (const char c : token.bytes) {
      bytes.push_back(static_cast<unsigned char>(c));
    }
  }
  return {{"token", Name(token, format)},
          {"logprob", Finite(token.logprob)},
          {"bytes", std::move(bytes)}};
}

}  // namespace

Json CompletionLogprobs(const std::vector<TokenLogprobs>& tokens, const LogprobsFormat& format) {
  Json names = Json::array();
  Json logprobs = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  for (const TokenLogprobs& token : tokens) {
    names.push_back(Name(token.chosen, format));
    logprobs.push_back(token.has_logprob ? Json(Finite(token.chosen.logprob)) : Json(nullptr));
    tops.push_back(token.has_logprob ? TopByText(token, format) : Json(nullptr));
    offsets.push_back(token.text_offset);
  }
  return {{"text_offset", std::move(offsets)},
          {"token_logprobs", std::move(logprobs)},
          {"tokens", std::move(names)},
          {"top_logprobs", std::move(tops)}};
}

Json ChatLogprobs(const std::vector<TokenLogprobs>& tokens, const LogprobsFormat& format) {
  Json content = Json::array();
  for (const TokenLogprobs& token : tokens) {
    Json item = ChatToken(token.chosen, format);
    item["top_logprobs"] = Json::array();
    for (const TokenText& t : Shown(token, format)) {
      item["top_logprobs"].push_back(ChatToken(t, format));
    }
    content.push_back(std::move(item));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json PromptLogprobsById(const std::vector<TokenLogprobs>& tokens, const LogprobsFormat& format) {
  Json result = Json::array();
  for (const TokenLogprobs& token : tokens) {
    if (!token.has_logprob) {
      result.push_back(nullptr);
      continue;
    }
    Json by_id = Json::object();
    int32_t rank = 0;
    for (const TokenText& t : Shown(token, format)) {
      by_id[absl::StrCat(t.id)] = {
          {"logprob", Finite(t.logprob)}, {"rank", ++rank}, {"decoded_token", Name(t, format)}};
    }
    by_id[absl::StrCat(token.chosen.id)] = {{"logprob", Finite(token.chosen.logprob)},
                                            {"rank", token.rank},
                                            {"decoded_token", Name(token.chosen, format)}};
    result.push_back(std::move(by_id));
  }
  return result;
}

}  // namespace baton
