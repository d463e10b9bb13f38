#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace baton::cli {

// The string under `key`, or "" if there is none.
inline std::string StringOr(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

// The strings of the list under `key`.
inline std::vector<std::string> StringsOf(const nlohmann::json& object, const char* key) {
  std::vector<std::string> strings;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) return strings;
  for (const nlohmann::json& one : *it) {
    if (one.is_string()) strings.push_back(one.get<std::string>());
  }
  return strings;
}

}  // namespace baton::cli
