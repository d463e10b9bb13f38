#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

// Reads a regular file of at most `max_bytes`. NotFound if there is none; InvalidArgument if it is
// not a regular file or too large.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t max_bytes);

// Parses JSON that nobody vouches for: nested at most `max_depth`, no key twice in one object,
// every number representable. InvalidArgument begins with `where` (a file name).
absl::StatusOr<nlohmann::json> ParseBoundedJson(const std::string& where, std::string_view text,
                                                int max_depth);

// A short form of a value for messages, in printable ASCII; a text (of a file that nobody vouches
// for) in quotes.
std::string ShowJson(const nlohmann::json& value, size_t max_size = 80);

// What a family of models calls a field.
struct FieldAlias {
  std::string_view name;  // Its common name.
  std::string_view own;   // Counts before it.
  bool only = false;      // The common name is then no field of the family.
};

// A checked reader of one JSON object. Each getter takes a field, returns its value, or `fallback`
// if it is absent or null, and keeps the first error: read everything, then look at status().
// Borrows the object. Single-threaded.
class JsonFields {
 public:
  // `where` names the object in messages, e.g. "config.json" or "config.json: rope_scaling".
  JsonFields(std::string where, const nlohmann::json& object);

  // From now on a field is looked for by its own name too, and messages say the one that was found.
  // Both with different values are an error; where only the own one counts, the common one alone
  // stays untaken. What is passed outlives this.
  void SetAliases(std::span<const FieldAlias> aliases) { aliases_ = aliases; }

  // Even if it is null.
  bool Has(const std::string& name) const { return object_.is_object() && object_.contains(name); }

  // Absent and null both read as nullptr.
  const nlohmann::json* Find(const std::string& name);
  // The same by this very name, whatever the aliases; not thereby taken.
  const nlohmann::json* FindExactly(const std::string& name) const;

  int64_t Int(const std::string& name, int64_t fallback, int64_t min, int64_t max);
  double Number(const std::string& name, double fallback, double min, double max);
  bool Bool(const std::string& name, bool fallback);
  std::string String(const std::string& name, const std::string& fallback);

  // Token ids: an integer or a list of integers in [0, 2^31); -1 stands for none.
  // Ascending, each once.
  std::vector<int32_t> TokenIds(const std::string& name, std::vector<int32_t> fallback);

  // Records an error about a field's value; `why` says what is allowed.
  void Refuse(const std::string& name, const nlohmann::json& value, const std::string& why);
  void Fail(absl::Status status);

  // Names that no getter has taken so far, ascending.
  std::vector<std::string> Untaken() const;

  const absl::Status& status() const { return status_; }
  const std::string& where() const { return where_; }

 private:
  // What the object calls the field.
  std::string NameOf(const std::string& name) const;
  void WrongType(const std::string& name, const nlohmann::json& value, const std::string& expected);

  std::string where_;
  const nlohmann::json& object_;
  std::span<const FieldAlias> aliases_;
  std::set<std::string> taken_;
  absl::Status status_;
};

}  // namespace baton
