#include "router/openai/text_pieces.h"

#include <algorithm>
#include <utility>

#include "router/openai/json.h"

namespace baton {
namespace {

constexpr size_t kEscapeBytes = 4096;
// Fewer are made at once: most arrays of a streamed token have one item.
constexpr size_t kSmallArray = 8;

bool ContinuesCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

void AppendEscaped(std::string_view text, std::string& out) {
  const auto is_plain = [](char c) {
    return c >= ' ' && c <= '~' && c != '"' && c != '\\';
  };
  if (std::all_of(text.begin(), text.end(), is_plain)) {
    out.append(text);
    return;
  }
  const std::string quoted = Dump(Json(std::string(text)));
  out.append(quoted, 1, quoted.size() - 2);
}

}  // namespace

void TextPieces::Add(std::string_view text) {
  if (!parts_.empty()) {
    if (auto* last = std::get_if<std::string>(&parts_.back())) {
      last->append(text);
      return;
    }
  }
  parts_.emplace_back(std::string(text));
}

void TextPieces::AddSteps(Step step) { parts_.emplace_back(std::move(step)); }

void TextPieces::AddArray(size_t count, std::function<void(size_t index, std::string& out)> item) {
  const auto append = [count, item = std::move(item)](size_t i, std::string& out) {
    out.push_back(i == 0 ? '[' : ',');
    item(i, out);
    if (i + 1 == count) out.push_back(']');
  };
  if (count > kSmallArray) {
    return AddSteps([append, count, i = size_t{0}](std::string& out) mutable {
      append(i, out);
      return ++i < count;
    });
  }
  std::string all;
  for (size_t i = 0; i < count; ++i) append(i, all);
  Add(count == 0 ? "[]" : all);
}

void TextPieces::AddEscaped(std::shared_ptr<const void> owner, std::string_view text) {
  if (text.size() <= kEscapeBytes) {
    std::string all;
    AppendEscaped(text, all);
    return Add(all);
  }
  AddSteps([owner = std::move(owner), text](std::string& out) mutable {
    size_t end = std::min(kEscapeBytes, text.size());
    while (end < text.size() && ContinuesCharacter(text[end])) ++end;
    AppendEscaped(text.substr(0, end), out);
    text.remove_prefix(end);
    return !text.empty();
  });
}

void TextPieces::Fill(size_t bytes, std::string& out) {
  while (!parts_.empty() && out.size() < bytes) FillOne(out);
}

void TextPieces::FillOne(std::string& out) {
  if (parts_.empty()) return;
  if (auto* text = std::get_if<std::string>(&parts_.front())) {
    out.append(*text);
    parts_.pop_front();
  } else if (!std::get<Step>(parts_.front())(out)) {
    parts_.pop_front();
  }
}

}  // namespace baton
