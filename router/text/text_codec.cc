#include "router/text/text_codec.h"

#include <cstring>

#include "common/base/status.h"
#include "router/text/text_abi.h"

namespace baton {
namespace {

// A buffer of the Rust library.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (buffer_.data != nullptr) baton_text_free_buffer(&buffer_);
  }

  BatonTextBuffer* out() { return &buffer_; }

  std::string_view view() const {
    return {reinterpret_cast<const char*>(buffer_.data), buffer_.size};
  }

  std::vector<int32_t> ids() const {
    std::vector<int32_t> ids(buffer_.size / sizeof(int32_t));
    if (!ids.empty()) std::memcpy(ids.data(), buffer_.data, ids.size() * sizeof(int32_t));
    return ids;
  }

  // The status of the call that filled this buffer.
  absl::Status Check(int32_t code) const {
    if (code == 0) return absl::OkStatus();
    return absl::Status(static_cast<absl::StatusCode>(code), {view().data(), view().size()});
  }

 private:
  BatonTextBuffer buffer_ = {};
};

BatonText ToText(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::optional<int32_t> IdOrNone(int32_t id) {
  return id < 0 ? std::nullopt : std::optional<int32_t>(id);
}

absl::StatusOr<std::string> Result(const Buffer& out, int32_t code) {
  RETURN_IF_ERROR(out.Check(code));
  return std::string(out.view());
}

}  // namespace

void IncrementalDecoder::Free::operator()(void* decoder) const { baton_text_decoder_free(decoder); }

absl::StatusOr<std::string> IncrementalDecoder::Push(int32_t token_id) {
  Buffer out;
  return Result(out, baton_text_decoder_push(decoder_.get(), token_id, out.out()));
}

absl::StatusOr<std::string> IncrementalDecoder::Flush() {
  Buffer out;
  return Result(out, baton_text_decoder_flush(decoder_.get(), out.out()));
}

absl::StatusOr<std::unique_ptr<TextCodec>> TextCodec::Load(const std::string& model_dir) {
  const void* handle = nullptr;
  Buffer loaded;
  RETURN_IF_ERROR(loaded.Check(baton_text_load(ToText(model_dir), &handle, loaded.out())));
  std::unique_ptr<TextCodec> codec(new TextCodec(handle));
  BatonTextInfo info = {};
  baton_text_info(handle, &info);
  codec->has_chat_template_ = info.has_chat_template;
  codec->has_parts_ = info.has_parts;
  codec->vocab_size_ = info.vocab_size;
  codec->bos_id_ = IdOrNone(info.bos_id);
  codec->eos_id_ = IdOrNone(info.eos_id);
  codec->max_token_bytes_ = info.max_token_bytes;
  return codec;
}

TextCodec::~TextCodec() { baton_text_free(codec_); }

absl::StatusOr<std::vector<int32_t>> TextCodec::Encode(std::string_view text,
                                                       bool add_special_tokens) const {
  Buffer out;
  RETURN_IF_ERROR(
      out.Check(baton_text_encode(codec_, ToText(text), add_special_tokens, out.out())));
  return out.ids();
}

TextCacheInfo TextCodec::cache_info() const {
  BatonTextCacheInfo info = {};
  baton_text_cache_info(codec_, &info);
  return {.hits = static_cast<int64_t>(info.hits),
          .misses = static_cast<int64_t>(info.misses),
          .bytes = static_cast<int64_t>(info.bytes)};
}

absl::StatusOr<std::string> TextCodec::Decode(std::span<const int32_t> ids,
                                              bool skip_special_tokens) const {
  Buffer out;
  return Result(out,
                baton_text_decode(codec_, ids.data(), ids.size(), skip_special_tokens, out.out()));
}

absl::StatusOr<TokenPiece> TextCodec::TokenToBytesOrText(int32_t id) const {
  TokenPiece piece;
  Buffer bytes;
  Buffer text;
  RETURN_IF_ERROR(
      text.Check(baton_text_token(codec_, id, &piece.special, bytes.out(), text.out())));
  piece.bytes = std::string(bytes.view());
  piece.text = std::string(text.view());
  return piece;
}

absl::StatusOr<std::string> TextCodec::ApplyChatTemplate(std::string_view messages_json,
                                                         const RenderOptions& options) const {
  const BatonTextRenderRequest request = {
      .messages_json = ToText(messages_json),
      .kwargs_json = ToText(options.kwargs_json),
      .chat_template = ToText(options.chat_template),
      .add_generation_prompt = options.add_generation_prompt,
      .now_s = options.now_s.value_or(-1),
  };
  Buffer out;
  return Result(out, baton_text_render(codec_, &request, out.out()));
}

IncrementalDecoder TextCodec::NewDecoder(bool skip_special_tokens) const {
  return IncrementalDecoder(baton_text_decoder_new(codec_, skip_special_tokens));
}

}  // namespace baton
