#include "deploy/cli/api_server.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "deploy/cli/run_dir.h"
#include "nlohmann/json.hpp"

namespace baton::cli {

absl::StatusOr<ApiServer> FindApiServer(const ApiServerOptions& options) {
  ApiServer server{.url = options.url};
  if (server.url.empty()) {
    ASSIGN_OR_RETURN(server.url, RouterUrl(options.dir));
  }
  ASSIGN_OR_RETURN(server.api_key, ReadApiKey(options.api_key_file));
  if (absl::StartsWith(server.url, "https://")) {
    ASSIGN_OR_RETURN(server.trust, TrustCas(options.ca));
  } else if (!options.ca.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--ca ", options.ca, ": ", server.url, " has no TLS; give --url https://HOST:PORT"));
  }
  return server;
}

absl::StatusOr<std::string> RouterUrl(const std::string& dir) {
  ASSIGN_OR_RETURN(const RunState state, RunDir(dir).LoadRunning());
  const ServerRecord* router = state.Router();
  if (router == nullptr || router->http_url.empty()) {
    return absl::UnavailableError(absl::StrCat(
        "the cluster in ", dir, " is still starting; see `baton status --dir ", dir, "`"));
  }
  return router->http_url;
}

absl::StatusOr<std::string> ReadApiKey(const std::string& path) {
  if (path.empty()) return "";
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  const std::string key(absl::StripAsciiWhitespace(text.str()));
  // It becomes a line of the request's head.
  const bool is_line = std::ranges::all_of(key, [](char c) { return absl::ascii_isgraph(c); });
  if (!key.empty() && is_line) return key;
  return absl::InvalidArgumentError(
      absl::StrCat("--api-key-file ", path, ": cannot be read, or holds no API key"));
}

absl::StatusOr<std::string> FirstModel(const ApiServer& server) {
  ASSIGN_OR_RETURN(const HttpResult result, HttpCall({.url = server.url,
                                                      .target = "/v1/models",
                                                      .api_key = server.api_key,
                                                      .trust = server.trust,
                                                      .idle_timeout = std::chrono::seconds(10)}));
  using nlohmann::json;
  const json models = json::parse(result.body, nullptr, /*allow_exceptions=*/false);
  const json::json_pointer first("/data/0/id");
  if (result.code != 200 || !models.is_object() || !models.contains(first) ||
      !models[first].is_string()) {
    return absl::UnavailableError(absl::StrCat(server.url, "/v1/models: ", ErrorMessageOf(result)));
  }
  return models[first].get<std::string>();
}

}  // namespace baton::cli
