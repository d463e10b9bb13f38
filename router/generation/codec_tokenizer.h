#pragma once

#include <memory>

#include "router/generation/tokenizer.h"
#include "router/text/text_codec.h"

namespace baton {

// The text library's codec as the Tokenizer of GenerationService.
std::shared_ptr<const Tokenizer> MakeTokenizer(std::unique_ptr<TextCodec> codec);

}  // namespace baton
