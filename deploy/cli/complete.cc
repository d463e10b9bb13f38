#include "deploy/cli/complete.h"

#include <cstdio>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "deploy/cli/http_client.h"
#include "deploy/cli/server_events.h"

namespace baton::cli {
namespace {

using nlohmann::json;

void Print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// Follows one stream: prints the text, keeps the error or the end that the server sent.
class StreamPrinter {
 public:
  void OnData(absl::string_view data) {
    if (data == "[DONE]") {
      is_done_ = true;
      return;
    }
    const json chunk = json::parse(data, nullptr, /*allow_exceptions=*/false);
    if (chunk.is_object() && chunk.contains("error")) {
      status_ = absl::UnavailableError(ErrorMessageOf({.code = 200, .body = std::string(data)}));
      return;
    }
    Print(TextOf(chunk));
  }
  absl::Status Result() const {
    if (!status_.ok() || is_done_) return status_;
    return absl::UnavailableError("the stream broke off before its end");
  }

 private:
  absl::Status status_;
  bool is_done_ = false;
};

absl::Status Run(const CompleteOptions& options) {
  ASSIGN_OR_RETURN(const ApiServer server, FindApiServer(options.server));
  std::string model = options.model;
  if (model.empty()) {
    ASSIGN_OR_RETURN(model, FirstModel(server));
  }
  const HttpRequest request{
      .url = server.url,
      .target = options.chat ? "/v1/chat/completions" : "/v1/completions",
      .body = CompletionBody(options, model).dump(-1, ' ', false, json::error_handler_t::replace),
      .api_key = server.api_key,
      .trust = server.trust};
  StreamPrinter printer;
  ServerEvents events([&](absl::string_view data) { printer.OnData(data); });
  std::function<void(absl::string_view)> on_body;
  if (options.stream) on_body = [&](absl::string_view bytes) { events.Feed(bytes); };
  if (!options.chat) Print(options.text);
  ASSIGN_OR_RETURN(const HttpResult result, HttpCall(request, on_body));
  if (result.code != 200) return absl::UnavailableError(ErrorMessageOf(result));
  if (!options.stream) Print(TextOf(json::parse(result.body, nullptr, false)));
  Print("\n");
  return options.stream ? printer.Result() : absl::OkStatus();
}

}  // namespace

json CompletionBody(const CompleteOptions& options, const std::string& model) {
  json body = {{"model", model}, {"max_tokens", options.max_tokens}, {"stream", options.stream}};
  if (options.chat) {
    body["messages"] = json::array({{{"role", "user"}, {"content", options.text}}});
  } else {
    body["prompt"] = options.text;
  }
  if (options.temperature) body["temperature"] = *options.temperature;
  if (options.top_p) body["top_p"] = *options.top_p;
  if (options.top_k) body["top_k"] = *options.top_k;
  if (options.seed) body["seed"] = *options.seed;
  return body;
}

std::string TextOf(const json& response) {
  if (!response.is_object() || !response.contains("choices") || !response["choices"].is_array() ||
      response["choices"].empty()) {
    return "";
  }
  const json& choice = response["choices"][0];
  for (const char* pointer : {"/text", "/delta/content", "/message/content"}) {
    const json::json_pointer at(pointer);
    if (choice.is_object() && choice.contains(at) && choice[at].is_string()) {
      return choice[at].get<std::string>();
    }
  }
  return "";
}

int Complete(const CompleteOptions& options) {
  const absl::Status status = Run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "\nbaton complete: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace baton::cli
