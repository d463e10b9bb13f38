#include "common/transport/nccl/words.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/transport/little_endian.h"

namespace baton::nccl {
namespace {

using WordKind = Word::Kind;

constexpr size_t kFixedBytes = 1 + 4 + 8 + 4;
constexpr size_t kFrameBytes = 8 + 8 + 1 + 5 * 4 + 4;
constexpr size_t kSetBytes = kMaxBatchFrames / 8;
constexpr size_t kLimitsBytes = 8 + 8;
constexpr int64_t kMaxSlotBytes = int64_t{1} << 30;
constexpr int64_t kMaxPieces = int64_t{1} << 24;
static_assert(kFixedBytes + kMaxBatchFrames * kFrameBytes <= kMaxWordBytes);

size_t BodyBytes(WordKind kind, size_t frames, size_t sums) {
  switch (kind) {
    case WordKind::kId:
      return sizeof(UniqueId);
    case WordKind::kUp:
      return kLimitsBytes;
    case WordKind::kAnnounce:
      return frames * kFrameBytes;
    case WordKind::kReady:
      return sums * sizeof(uint64_t);
    case WordKind::kAck:
      return kSetBytes;
    default:
      return 0;
  }
}

void PutFrame(const FrameHeader& frame, LittleEndianWriter* out) {
  out->Put(frame.ticket.hi);
  out->Put(frame.ticket.lo);
  out->Put(static_cast<uint8_t>(frame.range.plane));
  out->PutI32(frame.range.layer);
  out->PutI32(frame.range.first_token);
  out->PutI32(frame.range.num_tokens);
  out->PutI32(frame.range.first_head);
  out->PutI32(frame.range.num_heads);
  out->Put(frame.payload_bytes);
}

absl::StatusOr<FrameHeader> GetFrame(LittleEndianReader* in) {
  FrameHeader frame{.type = FrameType::kCarried};
  frame.ticket.hi = in->Get<uint64_t>();
  frame.ticket.lo = in->Get<uint64_t>();
  const uint8_t plane = in->Get<uint8_t>();
  frame.range.layer = in->GetI32();
  frame.range.first_token = in->GetI32();
  frame.range.num_tokens = in->GetI32();
  frame.range.first_head = in->GetI32();
  frame.range.num_heads = in->GetI32();
  frame.payload_bytes = in->Get<uint32_t>();
  frame.range.plane = static_cast<KvPlane>(plane);
  if (plane > 1 || !IsRange(frame.range) || frame.payload_bytes == 0 ||
      frame.payload_bytes > kMaxDataPayloadBytes) {
    return absl::InvalidArgumentError("a frame was announced that is none");
  }
  return frame;
}

absl::Status ReadLimits(LittleEndianReader* in, BatchLimits* limits) {
  limits->bytes = static_cast<int64_t>(in->Get<uint64_t>());
  limits->pieces = static_cast<int64_t>(in->Get<uint64_t>());
  if (IsLimits(*limits)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "batches of ", limits->bytes, " bytes and ", limits->pieces, " pieces at most are none"));
}

}  // namespace

uint64_t CarrierVersion(int library_version) {
  return uint64_t{kWordsVersion} << 32 | static_cast<uint32_t>(library_version);
}

int LibraryVersionOf(uint64_t carrier_version) {
  return static_cast<int>(static_cast<uint32_t>(carrier_version));
}

uint32_t WordsVersionOf(uint64_t carrier_version) {
  return static_cast<uint32_t>(carrier_version >> 32);
}

bool IsLimits(const BatchLimits& limits) {
  return limits.bytes > 0 && limits.bytes <= kMaxSlotBytes && limits.pieces > 0 &&
         limits.pieces <= kMaxPieces;
}

BatchLimits SmallerOf(const BatchLimits& a, const BatchLimits& b) {
  return {.bytes = std::min(a.bytes, b.bytes), .pieces = std::min(a.pieces, b.pieces)};
}

std::vector<std::byte> EncodeWord(const Word& word) {
  BATON_CHECK(word.frames.size() <= size_t{kMaxBatchFrames} &&
              word.sums.size() <= size_t{kMaxBatchFrames});
  std::vector<std::byte> bytes(kFixedBytes +
                               BodyBytes(word.kind, word.frames.size(), word.sums.size()));
  LittleEndianWriter out(bytes);
  out.Put(static_cast<uint8_t>(word.kind));
  out.Put(word.epoch);
  out.Put(word.batch);
  out.Put(word.grant);
  if (word.kind == WordKind::kUp) {
    out.Put(static_cast<uint64_t>(word.limits.bytes));
    out.Put(static_cast<uint64_t>(word.limits.pieces));
  } else if (word.kind == WordKind::kId) {
    std::memcpy(bytes.data() + kFixedBytes, word.id.bytes, sizeof(UniqueId));
  } else if (word.kind == WordKind::kAnnounce) {
    for (const FrameHeader& frame : word.frames) PutFrame(frame, &out);
  } else if (word.kind == WordKind::kReady) {
    for (const uint64_t sum : word.sums) out.Put(sum);
  } else if (word.kind == WordKind::kAck) {
    for (int i = 0; i < kMaxBatchFrames; ++i) {
      if (word.arrived[i]) bytes[kFixedBytes + i / 8] |= std::byte{1} << (i % 8);
    }
  }
  return bytes;
}

absl::StatusOr<Word> DecodeWord(std::span<const std::byte> bytes) {
  LittleEndianReader in(bytes);
  const uint8_t kind = in.Get<uint8_t>();
  Word word{.kind = static_cast<WordKind>(kind)};
  word.epoch = in.Get<uint32_t>();
  word.batch = in.Get<uint64_t>();
  word.grant = in.Get<uint32_t>();
  const size_t left = in.remaining();
  const size_t frames = left / kFrameBytes;
  const size_t sums = left / sizeof(uint64_t);
  if (!in.ok() || kind < static_cast<uint8_t>(WordKind::kId) ||
      kind > static_cast<uint8_t>(WordKind::kAck) || left != BodyBytes(word.kind, frames, sums) ||
      (word.kind == WordKind::kAnnounce && (frames < 1 || frames > size_t{kMaxBatchFrames})) ||
      (word.kind == WordKind::kReady && sums > size_t{kMaxBatchFrames})) {
    return absl::InvalidArgumentError(
        absl::StrCat("a word of ", bytes.size(), " bytes and kind ", kind));
  }
  const std::span<const std::byte> body = bytes.subspan(kFixedBytes);
  if (word.kind == WordKind::kUp) {
    RETURN_IF_ERROR(ReadLimits(&in, &word.limits));
  } else if (word.kind == WordKind::kId) {
    std::memcpy(word.id.bytes, body.data(), sizeof(UniqueId));
  } else if (word.kind == WordKind::kAnnounce) {
    for (size_t i = 0; i < frames; ++i) {
      auto frame = GetFrame(&in);
      if (!frame.ok()) return frame.status();
      word.frames.push_back(*frame);
    }
  } else if (word.kind == WordKind::kReady) {
    for (size_t i = 0; i < sums; ++i) word.sums.push_back(in.Get<uint64_t>());
  } else if (word.kind == WordKind::kAck) {
    for (int i = 0; i < kMaxBatchFrames; ++i) {
      word.arrived[i] = (body[i / 8] >> (i % 8) & std::byte{1}) != std::byte{0};
    }
  }
  return word;
}

}  // namespace baton::nccl
