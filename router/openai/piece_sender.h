#pragma once

#include <memory>

#include "common/http/http_server.h"
#include "router/openai/text_pieces.h"

namespace baton {

// Answers with a body that may be long: a short one at once and with its length, else piece by
// piece while the client has room. `owner` lives until the last piece was made or the client is
// gone.
void SendPieces(std::shared_ptr<http::ResponseWriter> writer, http::Response head, TextPieces body,
                std::shared_ptr<const void> owner);

}  // namespace baton
