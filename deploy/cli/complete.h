#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace baton::cli {

struct CompleteOptions {
  std::string dir = ".baton";
  std::string url;  // Of any OpenAI-compatible server; empty = the router of `dir`.
  std::string api_key_file;  // Empty = no key is sent.
  std::string text;
  bool chat = false;  // The text is one user message, not a prompt to continue.
  bool stream = true;
  std::string model;  // Empty = the first that the server offers.
  int max_tokens = 64;
  std::optional<double> temperature;  // Absent = the model's default.
  std::optional<double> top_p;
  std::optional<int> top_k;
  std::optional<int64_t> seed;
};

// `baton complete`: prints the answer as it comes; 0 when it came whole.
int Complete(const CompleteOptions& options);

// The request's body.
nlohmann::json CompletionBody(const CompleteOptions& options, const std::string& model);

// The text that one response object or stream chunk adds for choice 0.
std::string TextOf(const nlohmann::json& response);

// The URL of the router of the cluster in `dir`.
absl::StatusOr<std::string> RouterUrl(const std::string& dir);

// The API key in a file, without the blanks around it; "" without a file. Errors name the option.
absl::StatusOr<std::string> ReadApiKey(const std::string& path);

// The id of the first model that the server offers.
absl::StatusOr<std::string> FirstModel(const std::string& url, const std::string& api_key = "");

}  // namespace baton::cli
