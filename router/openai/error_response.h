#pragma once

#include "absl/status/status.h"
#include "common/http/http_message.h"
#include "router/openai/json.h"

namespace baton {

// {"message","type","param","code"} of a failed request. Never names an address or a path: what
// is our own defect gets a fixed text.
Json ErrorObject(const absl::Status& status);

// 400, 401, 403, 404, 413, 429, 499 (cancelled), 503 or 504, otherwise 500; with Retry-After where
// trying again makes sense.
int HttpStatus(const absl::Status& status);
http::Response ErrorResponse(const absl::Status& status);

// A JSON answer with status 200.
http::Response JsonResponse(const Json& body);

}  // namespace baton
