#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace baton::cli {

// The string under `key`, or "" if there is none.
inline std::string StringOr(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

}  // namespace baton::cli
