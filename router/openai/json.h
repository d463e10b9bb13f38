#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

// Objects keep the order of their keys: templates may print them.
using Json = nlohmann::ordered_json;

inline constexpr int kMaxJsonDepth = 64;

// Parses a client's document. INVALID_ARGUMENT for what is not JSON (NaN and numbers beyond a
// double included), not UTF-8, nested deeper than kMaxJsonDepth or has a key twice in one object.
// Linear in the text's size.
absl::StatusOr<Json> ParseJson(std::string_view text);

// Compact; never fails (what is not UTF-8 becomes U+FFFD).
std::string Dump(const Json& value);

// A field of an object; null if it is absent or null, which mean the same.
const Json* FindField(const Json& object, std::string_view name);

// Each reads one field of an object: absent leaves `out` alone; a wrong type is INVALID_ARGUMENT
// that names the field and the value. Integers may be written as 16.0.
absl::Status ReadField(const Json& object, std::string_view name, std::optional<double>* out);
absl::Status ReadField(const Json& object, std::string_view name, std::optional<int64_t>* out);
absl::Status ReadField(const Json& object, std::string_view name, std::optional<bool>* out);
absl::Status ReadField(const Json& object, std::string_view name, std::optional<std::string>* out);
absl::Status ReadField(const Json& object, std::string_view name, bool* out);
absl::Status ReadField(const Json& object, std::string_view name, std::string* out);
absl::Status ReadField(const Json& object, std::string_view name, std::vector<int64_t>* out);

// An integer of any JSON number form; absent if it is none or does not fit.
std::optional<int64_t> AsInteger(const Json& value);

// INVALID_ARGUMENT: "`param` is <value>; it must be <expected>."
absl::Status WrongType(std::string_view param, const Json& value, std::string_view expected);

}  // namespace baton
