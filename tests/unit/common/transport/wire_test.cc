#include "common/transport/wire.h"

#include <algorithm>
#include <cmath>

#include "common/base/random.h"
#include "common/base/crc32c.h"
#include "common/transport/handshake.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

FrameHeader DataHeader() {
  return {.type = FrameType::kData,
          .sequence = 0x0102030405060708,
          .ticket = {0xAAAABBBBCCCCDDDD, 0x1111222233334444},
          .range = {.layer = 7,
                    .plane = KvPlane::kV,
                    .first_token = 1000,
                    .num_tokens = 16,
                    .first_head = 2,
                    .num_heads = 4},
          .payload_bytes = 16 * 4 * 128,
          .value = 99};
}

FinalBody SomeFinal(size_t num_top) {
  FinalBody body{.digests = {1, 2, 3},
                 .num_tokens = 77,
                 .first = {.position = 77,
                           .token = 5,
                           .logprob = -1.5f,
                           .logits_digest = 0xFEDCBA9876543210,
                           .finish = FinishReason::kStop}};
  for (size_t i = 0; i < num_top; ++i) {
    body.first.top.push_back({static_cast<int32_t>(i), -0.25f * static_cast<float>(i)});
  }
  return body;
}

TEST(WireTest, HeaderComesBackAsItWent) {
  auto decoded = DecodeHeader(EncodeHeader(DataHeader()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, DataHeader());
  const FrameHeader abort{
      .type = FrameType::kAbort, .sequence = 3, .ticket = {1, 2}, .code = AbortCode::kChecksum};
  decoded = DecodeHeader(EncodeHeader(abort));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, abort);
}

TEST(WireTest, HeaderBytesStayTheSameAcrossVersionsOfThisProgram) {
  const HeaderBytes bytes = EncodeHeader(DataHeader());
  const uint8_t start[] = {0x42, 0x4E, 0x4B, 0x56, 2,    0,    5,    1,    0x08, 0x07, 0x06, 0x05,
                           0x04, 0x03, 0x02, 0x01, 0xDD, 0xDD, 0xCC, 0xCC, 0xBB, 0xBB, 0xAA, 0xAA};
  EXPECT_TRUE(std::equal(std::begin(start), std::end(start), bytes.begin(),
                         [](uint8_t a, std::byte b) { return static_cast<std::byte>(a) == b; }));
}

TEST(WireTest, NoFlippedBitOfAHeaderIsAccepted) {
  HeaderBytes bytes = EncodeHeader(DataHeader());
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_FALSE(DecodeHeader(bytes).ok()) << "bit " << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
}

void Reseal(HeaderBytes* bytes) {
  const uint32_t crc = Crc32c(std::span<const std::byte>(*bytes).first(kHeaderBytes - 4));
  for (int i = 0; i < 4; ++i) {
    (*bytes)[kHeaderBytes - 4 + i] = static_cast<std::byte>((crc >> (8 * i)) & 0xFF);
  }
}

TEST(WireTest, AMutatedHeaderWithAGoodChecksumGivesACheckedValueOrAStatus) {
  Random random(11);
  int accepted = 0;
  for (int i = 0; i < 200000; ++i) {
    HeaderBytes bytes = EncodeHeader(DataHeader());
    for (uint64_t n = 1 + random.Below(6); n > 0; --n) {
      bytes[random.Below(kHeaderBytes - 4)] = static_cast<std::byte>(random.Next());
    }
    Reseal(&bytes);
    auto header = DecodeHeader(bytes, 1 << 16);
    if (!header.ok()) continue;
    ++accepted;
    ASSERT_LE(header->payload_bytes, 1u << 16);
    ASSERT_LT(static_cast<uint32_t>(header->code), kNumAbortCodes);
    if (header->type == FrameType::kData) {
      ASSERT_GT(header->range.num_tokens, 0);
      ASSERT_GE(header->range.first_token, 0);
      ASSERT_GE(int64_t{INT32_MAX} - header->range.num_tokens, header->range.first_token);
    }
  }
  EXPECT_GT(accepted, 1000);
}

TEST(WireTest, EveryFieldThatCannotBeIsRefusedUnderAGoodChecksum) {
  struct Bad {
    size_t byte = 0;
    uint8_t value = 0;
  };
  // Version, type, plane, code, the two zero words; then each field of the range below its least.
  for (const Bad& bad : {Bad{4, 1}, Bad{4, 3}, Bad{6, 0}, Bad{6, 11}, Bad{7, 2}, Bad{56, 14},
                         Bad{60, 1}, Bad{72, 1}, Bad{35, 0x80}, Bad{39, 0x80}, Bad{43, 0x80},
                         Bad{47, 0x80}, Bad{51, 0x80}}) {
    HeaderBytes bytes = EncodeHeader(DataHeader());
    bytes[bad.byte] = static_cast<std::byte>(bad.value);
    Reseal(&bytes);
    EXPECT_FALSE(DecodeHeader(bytes).ok()) << "byte " << bad.byte << " is " << int{bad.value};
  }
  FrameHeader empty = DataHeader();
  empty.payload_bytes = 0;
  EXPECT_FALSE(DecodeHeader(EncodeHeader(empty)).ok());
  for (int32_t FrameRange::*count : {&FrameRange::num_tokens, &FrameRange::num_heads}) {
    FrameHeader none = DataHeader();
    none.range.*count = 0;
    EXPECT_FALSE(DecodeHeader(EncodeHeader(none)).ok());
  }
}

TEST(WireTest, EveryFieldOfAFinalFrameThatCannotBeIsRefused) {
  const auto refused = [](auto change) {
    FinalBody body = SomeFinal(1);
    change(body);
    EXPECT_FALSE(DecodeFinal(*EncodeFinal(body)).ok());
  };
  refused([](FinalBody& b) { b.num_tokens = -1; });
  refused([](FinalBody& b) { b.first.position = -1; });
  refused([](FinalBody& b) { b.first.token = -1; });
  refused([](FinalBody& b) {
    b.first.finish = static_cast<FinishReason>(static_cast<int>(FinishReason::kLength) + 1);
  });
  FinalBody least = SomeFinal(0);
  least.num_tokens = least.first.position = least.first.token = 0;
  least.first.finish = FinishReason::kLength;
  EXPECT_TRUE(DecodeFinal(*EncodeFinal(least)).ok());
}

TEST(WireTest, RandomBytesAreNeverAHeader) {
  Random random(12);
  for (int i = 0; i < 20000; ++i) {
    HeaderBytes bytes;
    for (std::byte& b : bytes) b = static_cast<std::byte>(random.Next());
    ASSERT_FALSE(DecodeHeader(bytes).ok());
  }
}

TEST(WireTest, APayloadOverTheCapIsRefused) {
  FrameHeader header = DataHeader();
  header.payload_bytes = kMaxDataPayloadBytes + 1;
  EXPECT_FALSE(DecodeHeader(EncodeHeader(header)).ok());
  header.payload_bytes = 1 << 12;
  EXPECT_FALSE(DecodeHeader(EncodeHeader(header), (1 << 12) - 1).ok());
  EXPECT_TRUE(DecodeHeader(EncodeHeader(header), 1 << 12).ok());
  header.type = FrameType::kAck;
  EXPECT_FALSE(DecodeHeader(EncodeHeader(header)).ok());
}

TEST(WireTest, FinalComesBackAsItWent) {
  for (size_t num_top : {size_t{0}, size_t{1}, size_t{20}, size_t{kMaxTopLogprobs}}) {
    auto bytes = EncodeFinal(SomeFinal(num_top));
    ASSERT_TRUE(bytes.ok());
    auto body = DecodeFinal(*bytes);
    ASSERT_TRUE(body.ok()) << body.status();
    EXPECT_EQ(*body, SomeFinal(num_top));
    const FrameHeader header{.type = FrameType::kFinal,
                             .sequence = 1,
                             .payload_bytes = static_cast<uint32_t>(bytes->size())};
    EXPECT_TRUE(DecodeHeader(EncodeHeader(header)).ok());
  }
  EXPECT_FALSE(EncodeFinal(SomeFinal(kMaxTopLogprobs + 1)).ok());
}

TEST(WireTest, AMutatedFinalGivesAValueOrAStatus) {
  Random random(13);
  int accepted = 0;
  const std::vector<std::byte> good = *EncodeFinal(SomeFinal(9));
  for (int i = 0; i < 100000; ++i) {
    std::vector<std::byte> bytes = good;
    for (uint64_t n = random.Below(4); n > 0; --n) {
      bytes[random.Below(bytes.size())] = static_cast<std::byte>(random.Next());
    }
    if (random.Below(3) == 0) bytes.resize(random.Below(bytes.size() + 40));
    auto body = DecodeFinal(bytes);
    if (!body.ok()) continue;
    ++accepted;
    ASSERT_GE(body->num_tokens, 0);
    ASSERT_LE(body->first.top.size(), size_t{kMaxTopLogprobs});
    ASSERT_EQ(body->first.top.size() * 8 + 53, bytes.size());
  }
  EXPECT_GT(accepted, 1000);
}

TEST(WireTest, TrailerComesBackAsItWent) {
  const FrameTrailer trailer = DecodeTrailer(EncodeTrailer({0x12345678, kTrailerAbandoned}));
  EXPECT_EQ(trailer.crc32c, 0x12345678u);
  EXPECT_EQ(trailer.flags, kTrailerAbandoned);
}

TEST(WireTest, EveryAbortCodeHasANameAndAnErrorStatus) {
  for (uint32_t code = 1; code < kNumAbortCodes; ++code) {
    EXPECT_NE(ToString(static_cast<AbortCode>(code)), "?");
    EXPECT_FALSE(StatusOfAbort(static_cast<AbortCode>(code)).ok());
  }
  EXPECT_EQ(ToString(AbortCode::kNone), "none");
  EXPECT_EQ(ToString(static_cast<AbortCode>(kNumAbortCodes)), "?");
  const auto is = [](AbortCode code, absl::StatusCode status, const std::string& text) {
    EXPECT_EQ(StatusOfAbort(code), absl::Status(status, "KV transfer: " + text));
  };
  is(AbortCode::kCancelled, absl::StatusCode::kAborted, "cancelled by the peer");
  is(AbortCode::kStaleEpoch, absl::StatusCode::kFailedPrecondition, "stale block epoch");
  is(AbortCode::kChecksum, absl::StatusCode::kDataLoss, "payload checksum mismatch");
  is(AbortCode::kUnauthenticated, absl::StatusCode::kUnauthenticated, "wrong pair key");
  is(AbortCode::kDeadline, absl::StatusCode::kDeadlineExceeded, "no progress within the deadline");
}

}  // namespace
}  // namespace baton
