#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "deploy/cli/http_client.h"

namespace baton::cli {

// Which OpenAI-compatible server a command asks, and as whom.
struct ApiServerOptions {
  std::string dir = ".baton";
  std::string url;           // Empty = the router of `dir`.
  std::string api_key_file;  // Empty = no key is sent.
  std::string ca;            // File of the CAs that may know an https server; empty = the system's.
};

struct ApiServer {
  std::string url;
  std::string api_key;  // Empty = none.
  HttpsTrust trust;     // Null where the URL is plaintext.
};

// The error names the option that does not fit.
absl::StatusOr<ApiServer> FindApiServer(const ApiServerOptions& options);

// The URL of the router of the cluster in `dir`.
absl::StatusOr<std::string> RouterUrl(const std::string& dir);

// The API key in a file, without the blanks around it; "" without a file. Errors name the option.
absl::StatusOr<std::string> ReadApiKey(const std::string& path);

// The id of the first model that the server offers.
absl::StatusOr<std::string> FirstModel(const ApiServer& server);

}  // namespace baton::cli
