#include "router/openai/json.h"

#include <cmath>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "router/error.h"
#include "router/generation/utf8.h"

namespace baton {
namespace {

// Builds the document; nlohmann's own builder has no bound on depth and lets the last of several
// equal keys win.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(Json* root) : root_(root) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    if (!stack_.back().keys.insert(name).second) {
      error_ = absl::StrFormat("the key \"%s\" occurs twice in one object", name.substr(0, 64));
      return false;
    }
    key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    error_ = absl::StrFormat("it is not valid JSON near byte %d", position);
    return false;
  }

  const std::string& error() const { return error_; }

 private:
  struct Level {
    Json* container;
    absl::flat_hash_set<std::string> keys;
  };

  Json* Place(Json value) {
    if (stack_.empty()) {
      *root_ = std::move(value);
      return root_;
    }
    Json& parent = *stack_.back().container;
    if (parent.is_array()) return &parent.emplace_back(std::move(value));
    // Not operator[]: it would look at all keys so far.
    auto& fields = parent.get_ref<Json::object_t&>();
    using Fields = std::vector<Json::object_t::value_type>;
    return &static_cast<Fields&>(fields).emplace_back(std::move(key_), std::move(value)).second;
  }

  bool Add(Json value) {
    Place(std::move(value));
    return true;
  }

  bool Open(Json container) {
    if (stack_.size() >= kMaxJsonDepth) {
      error_ = absl::StrFormat("it is nested deeper than %d levels", kMaxJsonDepth);
      return false;
    }
    Json* placed = Place(std::move(container));
    stack_.push_back({placed, {}});
    return true;
  }

  bool Close() {
    stack_.pop_back();
    return true;
  }

  Json* root_;
  std::vector<Level> stack_;
  std::string key_;
  std::string error_;
};

std::string Shown(const Json& value) {
  constexpr size_t kMaxShown = 80;
  if (value.is_object() || (value.is_array() && value.size() > 8)) {
    return value.is_object() ? "an object" : absl::StrFormat("a list of %d", value.size());
  }
  std::string text = Dump(value);
  if (text.size() > kMaxShown) text = ToValidUtf8(text.substr(0, kMaxShown)) + "...";
  return text;
}

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text) {
  Json root;
  Builder builder(&root);
  if (!IsValidUtf8(text)) {
    return absl::InvalidArgumentError("The body cannot be read: it is not valid UTF-8.");
  }
  if (text.find('\0') != std::string_view::npos) {  // The parser takes it for the end.
    return absl::InvalidArgumentError("The body cannot be read: it has a NUL byte.");
  }
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("The body cannot be read: %s.", builder.error()));
  }
  return root;
}

std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const Json* FindField(const Json& object, std::string_view name) {
  const auto it = object.find(std::string(name));
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

absl::Status WrongType(std::string_view param, const Json& value, std::string_view expected) {
  return InvalidField(param,
                      absl::StrFormat("%s is %s; it must be %s.", param, Shown(value), expected));
}

std::optional<int64_t> AsInteger(const Json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    return number <= static_cast<uint64_t>(INT64_MAX) ? std::optional(static_cast<int64_t>(number))
                                                      : std::nullopt;
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    constexpr double kExact = 9007199254740992;  // 2^53
    if (std::abs(number) <= kExact && number == std::floor(number)) {
      return static_cast<int64_t>(number);
    }
  }
  return std::nullopt;
}

absl::Status ReadField(const Json& object, std::string_view name, std::optional<double>* out) {
  if (const Json* value = FindField(object, name)) {
    if (!value->is_number()) return WrongType(name, *value, "a number");
    *out = value->get<double>();
  }
  return absl::OkStatus();
}

absl::Status ReadField(const Json& object, std::string_view name, std::optional<int64_t>* out) {
  if (const Json* value = FindField(object, name)) {
    const std::optional<int64_t> number = AsInteger(*value);
    if (!number.has_value()) return WrongType(name, *value, "an integer of at most 64 bits");
    *out = number;
  }
  return absl::OkStatus();
}

absl::Status ReadField(const Json& object, std::string_view name, std::optional<bool>* out) {
  if (const Json* value = FindField(object, name)) {
    if (!value->is_boolean()) return WrongType(name, *value, "true or false");
    *out = value->get<bool>();
  }
  return absl::OkStatus();
}

absl::Status ReadField(const Json& object, std::string_view name, std::optional<std::string>* out) {
  if (const Json* value = FindField(object, name)) {
    if (!value->is_string()) return WrongType(name, *value, "a string");
    *out = value->get<std::string>();
  }
  return absl::OkStatus();
}

absl::Status ReadField(const Json& object, std::string_view name, bool* out) {
  std::optional<bool> value;
  RETURN_IF_ERROR(ReadField(object, name, &value));
  *out = value.value_or(*out);
  return absl::OkStatus();
}

absl::Status ReadField(const Json& object, std::string_view name, std::string* out) {
  std::optional<std::string> value;
  RETURN_IF_ERROR(ReadField(object, name, &value));
  *out = value.value_or(*out);
  return absl::OkStatus();
}

absl::Status ReadField(const Json& object, std::string_view name, std::vector<int64_t>* out) {
  const Json* list = FindField(object, name);
  if (list == nullptr) return absl::OkStatus();
  if (!list->is_array()) return WrongType(name, *list, "a list of integers");
  for (const Json& value : *list) {
    const std::optional<int64_t> number = AsInteger(value);
    if (!number.has_value()) return WrongType(name, value, "a list of integers");
    out->push_back(*number);
  }
  return absl::OkStatus();
}

}  // namespace baton
