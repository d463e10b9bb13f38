#include "common/transport/wire.h"

#include <cmath>
#include <iterator>
#include <limits>
#include <string>

#include "absl/strings/str_format.h"
#include "common/base/crc32c.h"
#include "common/base/protocol_version.h"
#include "common/transport/handshake.h"
#include "common/transport/little_endian.h"

namespace baton {
namespace {

constexpr uint32_t kMagic = 0x564B4E42;  // "BNKV".
constexpr size_t kFinalFixedBytes = 24 + 4 + 4 + 4 + 4 + 8 + 1 + 4;
constexpr size_t kMaxFinalBytes = kFinalFixedBytes + 8 * size_t{kMaxTopLogprobs};

struct SizeLimits {
  uint32_t min = 0;
  uint32_t max = 0;
};

SizeLimits PayloadLimits(FrameType type, uint32_t max_data_payload) {
  switch (type) {
    case FrameType::kHello:
      return {kHelloBytes, kHelloBytes};
    case FrameType::kChallenge:
      return {kChallengeBytes, kChallengeBytes};
    case FrameType::kProof:
      return {kProofBytes, kProofBytes};
    case FrameType::kData:
      return {1, max_data_payload};
    case FrameType::kFinal:
      return {kFinalFixedBytes, kMaxFinalBytes};
    case FrameType::kAccepted:
    case FrameType::kAck:
    case FrameType::kVerified:
    case FrameType::kAbort:
      return {0, 0};
    case FrameType::kCarried:
      return {1, kMaxWordBytes};
  }
  return {0, 0};
}

// As in the control plane's messages.
bool IsLogprob(float value) {
  return !std::isnan(value) && value != std::numeric_limits<float>::infinity();
}

struct Meaning {
  std::string_view text;
  absl::StatusCode status = absl::StatusCode::kFailedPrecondition;
};

// In the order of AbortCode.
constexpr Meaning kMeanings[] = {
    {"none"},
    {"cancelled by the peer", absl::StatusCode::kAborted},
    {"unknown ticket", absl::StatusCode::kNotFound},
    {"ticket of another sender", absl::StatusCode::kPermissionDenied},
    {"stale block epoch"},
    {"range outside the ticket", absl::StatusCode::kOutOfRange},
    {"range overlaps received tokens"},
    {"payload checksum mismatch", absl::StatusCode::kDataLoss},
    {"layout, model or token digest mismatch"},
    {"final frame before all bytes"},
    {"wrong pair key", absl::StatusCode::kUnauthenticated},
    {"receiver is another incarnation or rank", absl::StatusCode::kUnavailable},
    {"protocol error", absl::StatusCode::kUnavailable},
    {"no progress within the deadline", absl::StatusCode::kDeadlineExceeded},
};
static_assert(std::size(kMeanings) == kNumAbortCodes);

Meaning MeaningOf(AbortCode code) {
  const auto index = static_cast<uint32_t>(code);
  return index < kNumAbortCodes ? kMeanings[index] : Meaning{"?"};
}

}  // namespace

bool IsRange(const FrameRange& r) {
  return r.layer >= 0 && r.first_token >= 0 && r.num_tokens > 0 && r.first_head >= 0 &&
         r.num_heads > 0 && int64_t{r.first_token} + r.num_tokens <= INT32_MAX &&
         int64_t{r.first_head} + r.num_heads <= INT32_MAX;
}

std::string_view ToString(AbortCode code) { return MeaningOf(code).text; }

absl::Status StatusOfAbort(AbortCode code) {
  const Meaning meaning = MeaningOf(code);
  return absl::Status(meaning.status, "KV transfer: " + std::string(meaning.text));
}

HeaderBytes EncodeHeader(const FrameHeader& header) {
  HeaderBytes bytes{};
  LittleEndianWriter out(bytes);
  out.Put(kMagic);
  out.Put(static_cast<uint16_t>(kKvWireVersion));
  out.Put(static_cast<uint8_t>(header.type));
  out.Put(static_cast<uint8_t>(header.range.plane));
  out.Put(header.sequence);
  out.Put(header.ticket.hi);
  out.Put(header.ticket.lo);
  out.PutI32(header.range.layer);
  out.PutI32(header.range.first_token);
  out.PutI32(header.range.num_tokens);
  out.PutI32(header.range.first_head);
  out.PutI32(header.range.num_heads);
  out.Put(header.payload_bytes);
  out.Put(static_cast<uint32_t>(header.code));
  out.Put(uint32_t{0});
  out.Put(header.value);
  out.Put(uint32_t{0});
  out.Put(Crc32c(std::span(bytes).first(kHeaderBytes - 4)));
  return bytes;
}

absl::StatusOr<FrameHeader> DecodeHeader(std::span<const std::byte, kHeaderBytes> bytes,
                                         uint32_t max_data_payload) {
  LittleEndianReader in(bytes);
  if (in.Get<uint32_t>() != kMagic) return absl::InvalidArgumentError("frame magic is not Baton's");
  if (const uint16_t version = in.Get<uint16_t>(); version != kKvWireVersion) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frame version is %d, this program speaks %d", version, kKvWireVersion));
  }
  const uint8_t type = in.Get<uint8_t>();
  const uint8_t plane = in.Get<uint8_t>();
  FrameHeader header;
  header.sequence = in.Get<uint64_t>();
  header.ticket.hi = in.Get<uint64_t>();
  header.ticket.lo = in.Get<uint64_t>();
  header.range.layer = in.GetI32();
  header.range.first_token = in.GetI32();
  header.range.num_tokens = in.GetI32();
  header.range.first_head = in.GetI32();
  header.range.num_heads = in.GetI32();
  header.payload_bytes = in.Get<uint32_t>();
  const uint32_t code = in.Get<uint32_t>();
  const uint32_t zero = in.Get<uint32_t>();
  header.value = in.Get<uint64_t>();
  const uint32_t more_zero = in.Get<uint32_t>();
  if (in.Get<uint32_t>() != Crc32c(bytes.first(kHeaderBytes - 4))) {
    return absl::DataLossError("frame header checksum mismatch");
  }
  if (type < static_cast<uint8_t>(FrameType::kHello) ||
      type > static_cast<uint8_t>(FrameType::kCarried) || plane > 1 || code >= kNumAbortCodes ||
      zero != 0 || more_zero != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frame type %d, plane %d or code %d is unknown", type, plane, code));
  }
  header.type = static_cast<FrameType>(type);
  header.range.plane = static_cast<KvPlane>(plane);
  header.code = static_cast<AbortCode>(code);
  const SizeLimits limits = PayloadLimits(header.type, max_data_payload);
  if (header.payload_bytes < limits.min || header.payload_bytes > limits.max) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frame of type %d has %d payload bytes, allowed are %d to %d", type,
                        header.payload_bytes, limits.min, limits.max));
  }
  if (header.type == FrameType::kData && !IsRange(header.range)) {
    return absl::InvalidArgumentError("data frame without a range");
  }
  return header;
}

TrailerBytes EncodeTrailer(const FrameTrailer& trailer) {
  TrailerBytes bytes{};
  LittleEndianWriter out(bytes);
  out.Put(trailer.crc32c);
  out.Put(trailer.flags);
  return bytes;
}

FrameTrailer DecodeTrailer(std::span<const std::byte, kTrailerBytes> bytes) {
  LittleEndianReader in(bytes);
  FrameTrailer trailer;
  trailer.crc32c = in.Get<uint32_t>();
  trailer.flags = in.Get<uint32_t>();
  return trailer;
}

absl::StatusOr<std::vector<std::byte>> EncodeFinal(const FinalBody& body) {
  if (body.first.top.size() > size_t{kMaxTopLogprobs}) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the first token has %d alternatives, a final frame carries at most %d; "
                        "lower top_logprobs",
                        body.first.top.size(), kMaxTopLogprobs));
  }
  std::vector<std::byte> bytes(kFinalFixedBytes + 8 * body.first.top.size());
  LittleEndianWriter out(bytes);
  out.Put(body.digests.layout);
  out.Put(body.digests.model);
  out.Put(body.digests.tokens);
  out.PutI32(body.num_tokens);
  out.PutI32(body.first.position);
  out.PutI32(body.first.token);
  out.PutFloat(body.first.logprob);
  out.Put(body.first.logits_digest);
  out.Put(static_cast<uint8_t>(body.first.finish));
  out.Put(static_cast<uint32_t>(body.first.top.size()));
  for (const TokenLogprob& t : body.first.top) {
    out.PutI32(t.token);
    out.PutFloat(t.logprob);
  }
  return bytes;
}

absl::StatusOr<FinalBody> DecodeFinal(std::span<const std::byte> bytes) {
  LittleEndianReader in(bytes);
  FinalBody body;
  body.digests.layout = in.Get<uint64_t>();
  body.digests.model = in.Get<uint64_t>();
  body.digests.tokens = in.Get<uint64_t>();
  body.num_tokens = in.GetI32();
  body.first.position = in.GetI32();
  body.first.token = in.GetI32();
  body.first.logprob = in.GetFloat();
  body.first.logits_digest = in.Get<uint64_t>();
  const uint8_t finish = in.Get<uint8_t>();
  const uint32_t num_top = in.Get<uint32_t>();
  if (!in.ok() || num_top > static_cast<uint32_t>(kMaxTopLogprobs) ||
      in.remaining() != size_t{8} * num_top) {
    return absl::InvalidArgumentError(
        absl::StrFormat("final frame of %d bytes with %d alternatives", bytes.size(), num_top));
  }
  if (finish > static_cast<uint8_t>(FinishReason::kLength) || body.num_tokens < 0 ||
      body.first.position < 0 || body.first.token < 0) {
    return absl::InvalidArgumentError("final frame with a negative or unknown field");
  }
  body.first.finish = static_cast<FinishReason>(finish);
  body.first.top.resize(num_top);
  bool is_valid = IsLogprob(body.first.logprob);
  for (TokenLogprob& t : body.first.top) {
    t.token = in.GetI32();
    t.logprob = in.GetFloat();
    is_valid &= t.token >= 0 && IsLogprob(t.logprob);
  }
  if (!is_valid) {
    return absl::InvalidArgumentError("final frame with a negative token or no log probability");
  }
  return body;
}

}  // namespace baton
