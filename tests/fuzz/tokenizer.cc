// Text and ids through the tokenizers of the tests, and tokenizer.json itself: what streams is
// what is decoded at once, ids are in the vocabulary, text is UTF-8.
#include "tests/fuzz/text_codecs.h"

namespace baton {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD.

std::string Streamed(const TextCodec& codec, const std::vector<int32_t>& ids, bool skip) {
  IncrementalDecoder decoder = codec.NewDecoder(skip);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = *decoder.Push(id);
    BATON_CHECK(IsValidUtf8(piece));
    text += piece;
  }
  return text + *decoder.Flush();
}

// Where no space ends what the clean-up of spaces may still change, a stream goes on after 256
// bytes (MAX_UNCLEAN_BYTES in router/text), of which the clean-up leaves a third or more: it makes
// "'" of " ' ".
bool IsHeldTooLong(std::string_view text) {
  constexpr size_t kHeld = 256 / 3;
  size_t since = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_end = text[i] == ' ' && i > 0 && text[i - 1] != '\'' && i + 1 < text.size() &&
                        text[i + 1] != '\'';
    since = is_end ? 0 : since + 1;
    if (since >= kHeld) return true;
  }
  return false;
}

// `exact`: no token of this tokenizer changes the text of those before it.
void CheckIds(const TextCodec& codec, const std::vector<int32_t>& ids, bool skip, bool exact,
              bool cleans_up = false) {
  const auto text = codec.Decode(ids, skip);
  if (!text.ok()) return CheckRefusal(text.status());
  BATON_CHECK(IsValidUtf8(*text));
  const std::string streamed = Streamed(codec, ids, skip);
  if (cleans_up && IsHeldTooLong(*text)) return;
  if (exact || text->find(kReplacement) == std::string::npos) BATON_CHECK(streamed == *text);
}

std::vector<int32_t> CheckText(const TextCodec& codec, std::string_view text, bool special) {
  const auto ids = codec.Encode(text, special);
  if (!ids.ok()) {
    CheckRefusal(ids.status());
    return {};
  }
  BATON_CHECK(IsValidUtf8(text));
  for (const int32_t id : *ids) BATON_CHECK(id >= 0 && id < codec.vocab_size());
  const auto longest = static_cast<size_t>(codec.max_token_bytes());
  if (longest > 0) BATON_CHECK(text.size() <= longest * ids->size());
  return *ids;
}

// The tokenizer of KnownCodecs that cleans spaces up.
constexpr size_t kWordPiece = 2;

void RunText(FuzzInput in) {
  const auto& codecs = KnownCodecs();
  const size_t which = in.Below(codecs.size());
  const TextCodec& codec = *codecs[which];
  const bool skip = in.Byte() % 2 == 0;
  const std::string_view text = in.Rest();
  const std::vector<int32_t> ids = CheckText(codec, text, skip);
  CheckIds(codec, ids, skip, which == 0, which == kWordPiece);
  if (which == 0 && !skip && !ids.empty()) BATON_CHECK(*codec.Decode(ids, false) == text);
}

// Of one input. A stream holds back 32 tokens, or 256 bytes, at most.
constexpr size_t kMaxIds = 192;

void RunIds(FuzzInput in) {
  const auto& codecs = KnownCodecs();
  const size_t which = in.Below(codecs.size());
  const TextCodec& codec = *codecs[which];
  const bool skip = in.Byte() % 2 == 0;
  std::vector<int32_t> ids;
  bool valid = true;
  while (!in.empty() && ids.size() < kMaxIds) {
    // Two of them lie outside.
    const auto range = static_cast<uint64_t>(codec.vocab_size()) + 2;
    ids.push_back(static_cast<int32_t>(in.Number(2) % range) - 1);
    valid = valid && ids.back() >= 0 && ids.back() < codec.vocab_size();
  }
  if (valid) return CheckIds(codec, ids, skip, which == 0, which == kWordPiece);
  CheckRefusal(codec.Decode(ids, skip).status(), {absl::StatusCode::kOutOfRange});
}

void RunFile(FuzzInput in) {
  static const FuzzFolder folder;
  folder.Write("tokenizer.json", in.Rest());
  const auto codec = TextCodec::Load(folder.path());
  if (!codec.ok()) return CheckRefusal(codec.status());
  const std::vector<int32_t> ids = CheckText(**codec, "In the beginning 1:1 \xE2\x82\xAC", true);
  CheckIds(**codec, ids, false, false);
}

}  // namespace
}  // namespace baton

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  baton::FuzzInput in(data, size);
  const uint8_t kind = in.Byte();
  if (kind % 4 == 0) {
    baton::RunFile(in);
  } else if (kind % 4 == 1) {
    baton::RunIds(in);
  } else {
    baton::RunText(in);
  }
  return 0;
}
