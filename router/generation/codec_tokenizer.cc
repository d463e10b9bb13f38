#include "router/generation/codec_tokenizer.h"

#include <utility>

namespace baton {
namespace {

// An id that no vocabulary has is the client's mistake here.
absl::Status AsInvalid(absl::Status status) {
  return absl::IsOutOfRange(status) ? absl::InvalidArgumentError(status.message()) : status;
}

class CodecDecoder : public StreamDecoder {
 public:
  explicit CodecDecoder(IncrementalDecoder decoder) : decoder_(std::move(decoder)) {}
  absl::StatusOr<std::string> Push(int32_t token) override { return decoder_.Push(token); }
  absl::StatusOr<std::string> Flush() override { return decoder_.Flush(); }

 private:
  IncrementalDecoder decoder_;
};

class CodecTokenizer : public Tokenizer {
 public:
  explicit CodecTokenizer(std::unique_ptr<TextCodec> codec) : codec_(std::move(codec)) {}

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              bool add_special_tokens) const override {
    return codec_->Encode(text, add_special_tokens);
  }

  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids,
                                     bool skip_special_tokens) const override {
    auto text = codec_->Decode(ids, skip_special_tokens);
    return text.ok() ? text : AsInvalid(text.status());
  }

  std::string TokenBytes(int32_t id) const override {
    auto piece = codec_->TokenToBytesOrText(id);
    return piece.ok() ? std::move(piece->bytes) : std::string();
  }

  absl::StatusOr<std::string> ApplyChatTemplate(std::string_view messages_json,
                                                const ChatTemplateOptions& options) const override {
    return codec_->ApplyChatTemplate(messages_json,
                                     {.add_generation_prompt = options.add_generation_prompt,
                                      .kwargs_json = options.kwargs_json});
  }

  std::unique_ptr<StreamDecoder> NewStreamDecoder(bool skip_special_tokens) const override {
    return std::make_unique<CodecDecoder>(codec_->NewDecoder(skip_special_tokens));
  }

  TokenCacheInfo cache_info() const override {
    const TextCacheInfo info = codec_->cache_info();
    return {.hits = info.hits, .misses = info.misses, .bytes = info.bytes};
  }

  int32_t max_token_bytes() const override { return codec_->max_token_bytes(); }

 private:
  const std::unique_ptr<TextCodec> codec_;
};

}  // namespace

std::shared_ptr<const Tokenizer> MakeTokenizer(std::unique_ptr<TextCodec> codec) {
  return std::make_shared<CodecTokenizer>(std::move(codec));
}

}  // namespace baton
