#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ssl/context.hpp"
#include "common/base/time.h"

namespace baton::cli {

// The CAs that may know a server by its host name. Null: none.
using HttpsTrust = std::shared_ptr<boost::asio::ssl::context>;

// Those in a file, PEM; empty: the system's. INVALID_ARGUMENT names --ca and the cure.
absl::StatusOr<HttpsTrust> TrustCas(const std::string& file);

struct HttpRequest {
  std::string url;     // "http://127.0.0.1:8000": scheme, host and port, nothing after it.
  std::string target;  // "/v1/models".
  std::string body;    // JSON; empty = GET, otherwise POST.
  std::string api_key = {};  // Empty = none is sent.
  HttpsTrust trust = nullptr;  // Not null: over TLS 1.2 or later, to whom it knows.
  Duration idle_timeout = std::chrono::seconds(300);  // Without a byte, at any stage.
};

struct HttpResult {
  int code = 0;
  std::string body;  // Empty when the bytes went to on_body.
};

// What a call tells while it runs, on the thread that runs the io_context.
struct HttpHandlers {
  // Pieces of a 2xx body, as they arrive. Unset = collect the body in the result.
  std::function<void(absl::string_view)> on_body;
  // The end, exactly once: the response, or UNAVAILABLE (no connection), DEADLINE_EXCEEDED.
  std::function<void(absl::StatusOr<HttpResult>)> on_done;
};

// Starts one HTTP/1.1 call on a connection of its own. It keeps itself alive until on_done.
void StartHttpCall(boost::asio::io_context& io, const HttpRequest& request, HttpHandlers handlers);

// The same, waiting for the end. `on_body` may be empty.
absl::StatusOr<HttpResult> HttpCall(const HttpRequest& request,
                                    std::function<void(absl::string_view)> on_body = nullptr);

// The message of an OpenAI-style error body, or the start of the body itself.
std::string ErrorMessageOf(const HttpResult& result);

}  // namespace baton::cli
