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

std::vector<TokenText> Shown(const TokenLogprobs& token, const LogprobsFormat& format) {
  const size_t count =
      std::min(token.top.size(), static_cast<size_t>(std::max<int64_t>(format.top, 0)));
  return {token.top.begin(), token.top.begin() + static_cast<std::ptrdiff_t>(count)};
}

Json ChatToken(const TokenText& token, const LogprobsFormat& format) {
  Json bytes = nullptr;
  if (format.has_text) {
    bytes = Json::array();
    for (const char c : token.bytes) bytes.push_back(static_cast<unsigned char>(c));
  }
  return {{"token", TokenName(token, format)},
          {"logprob", Finite(token.logprob)},
          {"bytes", std::move(bytes)}};
}

}  // namespace

std::string LogprobText(float logprob) { return Dump(Finite(logprob)); }

std::string TokenName(const TokenText& token, const LogprobsFormat& format) {
  return format.as_ids || !format.has_text ? IdName(token.id) : token.text;
}

Json CompletionTop(const TokenLogprobs& token, const LogprobsFormat& format) {
  if (!token.has_logprob) return nullptr;
  Json result = Json::object();
  const auto add = [&](const TokenText& t) {
    std::string name = TokenName(t, format);
    while (result.contains(name)) name = name == IdName(t.id) ? name + "'" : IdName(t.id);
    result[name] = Finite(t.logprob);
  };
  add(token.chosen);
  for (const TokenText& t : Shown(token, format)) {
    if (t.id != token.chosen.id) add(t);
  }
  return result;
}

Json ChatItem(const TokenLogprobs& token, const LogprobsFormat& format) {
  Json item = ChatToken(token.chosen, format);
  item["top_logprobs"] = Json::array();
  for (const TokenText& t : Shown(token, format)) {
    item["top_logprobs"].push_back(ChatToken(t, format));
  }
  return item;
}

Json PromptItem(const TokenLogprobs& token, const LogprobsFormat& format) {
  if (!token.has_logprob) return nullptr;
  Json by_id = Json::object();
  int32_t rank = 0;
  for (const TokenText& t : Shown(token, format)) {
    by_id[absl::StrCat(t.id)] = {
        {"logprob", Finite(t.logprob)}, {"rank", ++rank}, {"decoded_token", TokenName(t, format)}};
  }
  by_id[absl::StrCat(token.chosen.id)] = {{"logprob", Finite(token.chosen.logprob)},
                                          {"rank", token.rank},
                                          {"decoded_token", TokenName(token.chosen, format)}};
  return by_id;
}

}  // namespace baton
