#include "common/checkpoint/json_fields.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace baton {

using nlohmann::json;

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t max_bytes) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT) return absl::NotFoundError(absl::StrCat(path, ": no such file"));
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot open: ", strerror(errno)));
  }
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  if (info.st_size > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", info.st_size, " bytes; at most ", max_bytes, " are read"));
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t n = read(fd, text.data() + have, text.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read in full"));
    have += static_cast<size_t>(n);
  }
  return text;
}

namespace {

// Brackets opened at once, outside of strings. An upper bound for the parser whatever the text.
int MaxNesting(std::string_view text) {
  int depth = 0;
  int max_depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      max_depth = std::max(max_depth, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return max_depth;
}

// Watches the keys of every open object; a parser callback.
class DuplicateKeys {
 public:
  bool operator()(int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) {
      open_.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      open_.pop_back();
    } else if (event == json::parse_event_t::key && !first_.has_value()) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_.back().insert(key).second) first_ = key;
    }
    return true;
  }
  const std::optional<std::string>& first() const { return first_; }

 private:
  std::vector<std::set<std::string>> open_;
  std::optional<std::string> first_;
};

std::string Shorten(std::string text, size_t max_size) {
  if (text.size() > max_size) text = absl::StrCat(text.substr(0, max_size), "...");
  return text;
}

// Of the parser's message, which quotes bytes of the file: printable whatever they are.
std::string Printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace

absl::StatusOr<json> ParseBoundedJson(const std::string& where, std::string_view text,
                                      int max_depth) {
  if (const int depth = MaxNesting(text); depth > max_depth) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": nested ", depth, " deep; at most ", max_depth, " is allowed"));
  }
  DuplicateKeys keys;
  try {
    json value = json::parse(text.begin(), text.end(), std::ref(keys));
    if (keys.first().has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": key ", ShowJson(*keys.first()), " appears twice"));
    }
    return value;
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": not valid JSON: ", Shorten(Printable(error.what()), 200)));
  }
}

std::string ShowJson(const json& value, size_t max_size) {
  return Shorten(value.dump(-1, ' ', true, json::error_handler_t::replace), max_size);
}

JsonFields::JsonFields(std::string where, const json& object)
    : where_(std::move(where)), object_(object) {
  if (!object_.is_object()) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat(where_, ": is ", ShowJson(object_), "; an object { ... } is needed"));
  }
}

const json* JsonFields::FindExactly(const std::string& name) const {
  if (!object_.is_object()) return nullptr;
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::string JsonFields::NameOf(const std::string& name) const {
  for (const FieldAlias& alias : aliases_) {
    const std::string own(alias.own);
    if (alias.name == name && (alias.only || FindExactly(own) != nullptr)) return own;
  }
  return name;
}

const json* JsonFields::Find(const std::string& name) {
  const std::string own = NameOf(name);
  taken_.insert(own);
  const json* const value = FindExactly(own);
  if (own == name || value == nullptr) return value;
  taken_.insert(name);
  const json* const common = FindExactly(name);
  if (common != nullptr && *common != *value) {
    Refuse(own, *value, absl::StrCat("but \"", name, "\" is ", ShowJson(*common)));
  }
  return value;
}

int64_t JsonFields::Int(const std::string& name, int64_t fallback, int64_t min, int64_t max) {
  const json* value = Find(name);
  if (value == nullptr) return fallback;
  if (!value->is_number_integer()) {
    WrongType(name, *value, "an integer");
    return fallback;
  }
  const bool too_big = value->is_number_unsigned() &&
                       value->get<uint64_t>() > static_cast<uint64_t>(std::max<int64_t>(max, 0));
  if (too_big || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    Refuse(name, *value, absl::StrCat("an integer from ", min, " to ", max, " is allowed"));
    return fallback;
  }
  return value->get<int64_t>();
}

double JsonFields::Number(const std::string& name, double fallback, double min, double max) {
  const json* value = Find(name);
  if (value == nullptr) return fallback;
  if (!value->is_number()) {
    WrongType(name, *value, "a number");
    return fallback;
  }
  const double number = value->get<double>();
  if (!(number >= min && number <= max)) {
    Refuse(name, *value, absl::StrCat("a number from ", min, " to ", max, " is allowed"));
    return fallback;
  }
  return number;
}

bool JsonFields::Bool(const std::string& name, bool fallback) {
  const json* value = Find(name);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    WrongType(name, *value, "true or false");
    return fallback;
  }
  return value->get<bool>();
}

std::string JsonFields::String(const std::string& name, const std::string& fallback) {
  const json* value = Find(name);
  if (value == nullptr) return fallback;
  if (!value->is_string()) {
    WrongType(name, *value, "a string");
    return fallback;
  }
  return value->get<std::string>();
}

std::vector<int32_t> JsonFields::TokenIds(const std::string& name, std::vector<int32_t> fallback) {
  constexpr size_t kMaxIds = 4096;
  const json* value = Find(name);
  if (value == nullptr) return fallback;
  const json list = value->is_array() ? *value : json::array({*value});
  if (list.size() > kMaxIds) {
    Refuse(name, *value, absl::StrCat("at most ", kMaxIds, " ids are allowed"));
    return fallback;
  }
  std::set<int32_t> ids;
  for (const json& id : list) {
    if (id == -1) continue;
    const bool in_range =
        id.is_number_integer() && id >= 0 && id <= std::numeric_limits<int32_t>::max();
    if (!in_range) {
      Refuse(name, *value, "a token id (0 to 2147483647, -1 = none) or a list of them is allowed");
      return fallback;
    }
    ids.insert(id.get<int32_t>());
  }
  return {ids.begin(), ids.end()};
}

void JsonFields::Refuse(const std::string& name, const json& value, const std::string& why) {
  Fail(absl::InvalidArgumentError(
      absl::StrCat(where_, ": field \"", NameOf(name), "\" is ", ShowJson(value), "; ", why)));
}

void JsonFields::WrongType(const std::string& name, const json& value,
                           const std::string& expected) {
  Refuse(name, value, absl::StrCat(expected, " is needed"));
}

void JsonFields::Fail(absl::Status status) { status_.Update(std::move(status)); }

std::vector<std::string> JsonFields::Untaken() const {
  std::vector<std::string> names;
  if (!object_.is_object()) return names;
  for (const auto& [name, value] : object_.items()) {
    if (!taken_.contains(name)) names.push_back(name);
  }
  return names;
}

}  // namespace baton
