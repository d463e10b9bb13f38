#include "common/transport/nccl/words.h"

#include <cstring>

#include "common/base/random.h"
#include "gtest/gtest.h"

namespace baton::nccl {
namespace {

using Kind = Word::Kind;

Word WordOf(Kind kind) {
  Word word{.kind = kind, .epoch = 7, .batch = 1'000'000'000'000, .grant = 3};
  if (kind == Kind::kId) std::memset(word.id.bytes, 0x5A, sizeof(word.id.bytes));
  if (kind == Kind::kUp) word.limits = {.bytes = 2 << 20, .pieces = 65536};
  if (kind == Kind::kAnnounce) {
    word.frames = {{.type = FrameType::kCarried,
                    .ticket = {.hi = 1, .lo = 2},
                    .range = {.layer = 3,
                              .plane = KvPlane::kV,
                              .first_token = 16,
                              .num_tokens = 5,
                              .first_head = 1,
                              .num_heads = 2},
                    .payload_bytes = 640},
                   {.type = FrameType::kCarried,
                    .ticket = {.hi = 9, .lo = 8},
                    .range = {.num_tokens = 1, .num_heads = 1},
                    .payload_bytes = 8}};
  }
  if (kind == Kind::kReady) word.sums = {0, ~uint64_t{0}, 42};
  if (kind == Kind::kAck) {
    word.arrived.set(0);
    word.arrived.set(9);
    word.arrived.set(kMaxBatchFrames - 1);
  }
  return word;
}

TEST(WordsTest, EachKindIsReadAsItWasWritten) {
  for (uint8_t kind = 1; kind <= static_cast<uint8_t>(Kind::kAck); ++kind) {
    const Word word = WordOf(static_cast<Kind>(kind));
    const auto read = DecodeWord(EncodeWord(word));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->kind, word.kind);
    EXPECT_EQ(read->epoch, word.epoch);
    EXPECT_EQ(read->batch, word.batch);
    EXPECT_EQ(read->grant, word.grant);
    EXPECT_EQ(std::memcmp(read->id.bytes, word.id.bytes, sizeof(UniqueId)), 0);
    EXPECT_EQ(read->limits, word.limits);
    EXPECT_EQ(read->frames, word.frames);
    EXPECT_EQ(read->sums, word.sums);
    EXPECT_EQ(read->arrived, word.arrived);
  }
}

TEST(WordsTest, TheLargestWordFitsIntoAFrame) {
  Word word = WordOf(Kind::kAnnounce);
  word.frames.resize(kMaxBatchFrames, word.frames.front());
  EXPECT_LE(EncodeWord(word).size(), size_t{kMaxWordBytes});
  EXPECT_TRUE(DecodeWord(EncodeWord(word)).ok());
  std::vector<std::byte> more = EncodeWord(word);
  const std::vector<std::byte> one = EncodeWord(WordOf(Kind::kAnnounce));
  more.insert(more.end(), one.end() - (one.size() - 17) / 2, one.end());  // A frame of its own.
  EXPECT_FALSE(DecodeWord(more).ok());
}

TEST(WordsTest, AWordOfAnyOtherSizeIsRefused) {
  for (uint8_t kind = 1; kind <= static_cast<uint8_t>(Kind::kAck); ++kind) {
    std::vector<std::byte> bytes = EncodeWord(WordOf(static_cast<Kind>(kind)));
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(DecodeWord(bytes).ok()) << int{kind};
    bytes.pop_back();
    bytes.pop_back();
    EXPECT_FALSE(DecodeWord(bytes).ok()) << int{kind};
  }
  EXPECT_FALSE(DecodeWord({}).ok());
}

// They are the whole body of their word.
TEST(WordsTest, LimitsOutOfRangeAreRefused) {
  const std::vector<std::byte> good = EncodeWord(WordOf(Kind::kUp));
  constexpr size_t kBytesAt = 17;
  constexpr size_t kPiecesAt = kBytesAt + 8;
  ASSERT_EQ(good.size(), kPiecesAt + 8);
  const auto is_taken = [&](size_t at, int64_t value) {
    std::vector<std::byte> bytes = good;
    std::memcpy(bytes.data() + at, &value, sizeof(value));  // Little endian, like the host.
    return DecodeWord(bytes).ok();
  };
  for (const auto& [at, most] : {std::pair(kBytesAt, int64_t{1} << 30),
                                 std::pair(kPiecesAt, int64_t{1} << 24)}) {
    for (const int64_t value : {int64_t{1}, most}) EXPECT_TRUE(is_taken(at, value)) << value;
    for (const int64_t value : {int64_t{0}, int64_t{-1}, INT64_MIN, most + 1, INT64_MAX}) {
      EXPECT_FALSE(is_taken(at, value)) << at << " = " << value;
    }
  }
}

TEST(WordsTest, TheVersionOfACarrierIsThatOfItsWordsAndOfItsLibrary) {
  const uint64_t version = CarrierVersion(22304);
  EXPECT_EQ(LibraryVersionOf(version), 22304);
  EXPECT_EQ(WordsVersionOf(version), kWordsVersion);
  EXPECT_NE(version, CarrierVersion(22305));
  EXPECT_EQ(WordsVersionOf(22304), 0u) << "what builds said that knew no limits";
}

TEST(WordsTest, FramesWithoutARangeOrBytesAreRefused) {
  const auto refused = [](auto change) {
    Word word = WordOf(Kind::kAnnounce);
    change(&word.frames[1]);
    return !DecodeWord(EncodeWord(word)).ok();
  };
  EXPECT_TRUE(refused([](FrameHeader* f) { f->range.num_tokens = 0; }));
  EXPECT_TRUE(refused([](FrameHeader* f) { f->range.first_token = -1; }));
  EXPECT_TRUE(refused([](FrameHeader* f) { f->range.num_heads = -1; }));
  EXPECT_TRUE(refused([](FrameHeader* f) { f->range.layer = -1; }));
  EXPECT_TRUE(refused([](FrameHeader* f) { f->range.plane = static_cast<KvPlane>(2); }));
  EXPECT_TRUE(refused([](FrameHeader* f) { f->payload_bytes = 0; }));
  EXPECT_TRUE(refused([](FrameHeader* f) { f->payload_bytes = kMaxDataPayloadBytes + 1; }));
}

TEST(WordsTest, AnyBytesAreAWordOrAStatus) {
  Random random(5);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> bytes(random.Below(200));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random.Next());
    if (!bytes.empty()) bytes[0] = static_cast<std::byte>(random.Below(14));
    const auto word = DecodeWord(bytes);
    if (word.ok()) {
      EXPECT_EQ(EncodeWord(*word), bytes);
    }
  }
}

}  // namespace
}  // namespace baton::nccl
