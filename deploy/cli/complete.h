#pragma once

#include <optional>
#include <string>

#include "deploy/cli/api_server.h"
#include "nlohmann/json.hpp"

namespace baton::cli {

struct CompleteOptions {
  ApiServerOptions server;
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

}  // namespace baton::cli
