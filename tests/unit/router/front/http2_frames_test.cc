#include "router/front/http2_frames.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/router/front/http2_bytes.h"

namespace baton {
namespace {

using From = Http2Frames::From;

struct Counts {
  int64_t opened = 0;
  int64_t answered = 0;
  int64_t resets = 0;
  bool operator==(const Counts&) const = default;
};

Counts CountsOf(const Http2Frames& frames) {
  return {frames.num_opened(), frames.num_answered(), frames.num_resets()};
}

// What looks like a reset, and is what a frame carries.
const std::string kDecoy = Reset(5) + Reset(7);

std::string OfClient() {
  return ClientsBegin() + Frame(kHeadersFrame, 0, 1, "part") +
         Frame(kContinuationFrame, 4, 1, kDecoy) +
         Frame(kDataFrame, kPaddedFlag, 1, std::string("\x0d") + kDecoy) +
         Frame(kDataFrame, kEndStreamFlag, 1) + Frame(kHeadersFrame, 5, 3, "head") + Reset(3) +
         Reset(1, 0) + Frame(kHeadersFrame, 5, 5, "head");
}

std::string OfServer() {
  return Frame(kSettingsFrame, 0, 0, kDecoy) + Frame(kHeadersFrame, 4, 1, "head") +
         Frame(kDataFrame, 0, 1, kDecoy) + Frame(kHeadersFrame, 5, 1, "trailers") + Reset(1, 0) +
         Reset(3) + Frame(kDataFrame, kEndStreamFlag, 5, "last") + Reset(7, 1);
}

TEST(Http2FramesTest, CountsTheSameHoweverTheBytesAreCut) {
  const struct {
    From from;
    std::string bytes;
    Counts counts;
  } cases[] = {{From::kClient, OfClient(), {.opened = 3, .resets = 2}},
               {From::kServer, OfServer(), {.answered = 2, .resets = 2}}};
  for (const auto& [from, bytes, counts] : cases) {
    Http2Frames by_byte(from);
    for (const char byte : bytes) EXPECT_TRUE(by_byte.Read({&byte, 1}));
    EXPECT_EQ(CountsOf(by_byte), counts);
    EXPECT_EQ(by_byte.bytes_to_border(), 0U);
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
      Http2Frames frames(from);
      EXPECT_TRUE(frames.Read(std::string_view(bytes).substr(0, cut)));
      EXPECT_TRUE(frames.Read(std::string_view(bytes).substr(cut)));
      EXPECT_EQ(CountsOf(frames), counts) << cut;
    }
  }
}

TEST(Http2FramesTest, WhatIsNotHttp2IsRefusedForGood) {
  const std::string begin = ClientsBegin();
  for (size_t wrong = 0; wrong < kHttp2Preface.size(); ++wrong) {
    Http2Frames frames(From::kClient);
    std::string bytes = begin;
    bytes[wrong] ^= 1;
    EXPECT_TRUE(frames.Read(bytes.substr(0, wrong)));
    EXPECT_FALSE(frames.Read(bytes.substr(wrong))) << wrong;
    EXPECT_FALSE(frames.Read(begin)) << wrong;
    EXPECT_FALSE(frames.has_begun());
  }
  Http2Frames frames(From::kClient);
  EXPECT_FALSE(frames.Read(std::string(kHttp2Preface) + Frame(kHeadersFrame, 4, 1, "head")));
  EXPECT_FALSE(frames.Read(Reset(1)));
  EXPECT_FALSE(frames.has_begun());
  EXPECT_EQ(frames.num_resets(), 0);
}

TEST(Http2FramesTest, AClientHasBegunWithTheHeadOfItsSettings) {
  const std::string begin = ClientsBegin();
  Http2Frames frames(From::kClient);
  EXPECT_TRUE(frames.Read(begin.substr(0, begin.size() - 1)));
  EXPECT_FALSE(frames.has_begun());
  EXPECT_TRUE(frames.Read(begin.substr(begin.size() - 1)));
  EXPECT_TRUE(frames.has_begun());
}

TEST(Http2FramesTest, AFrameOf16MiBIsPassedOverAsAnnounced) {
  constexpr size_t kMost = (1 << 24) - 1;
  Http2Frames frames(From::kClient);
  EXPECT_TRUE(frames.Read(ClientsBegin() + FrameHead(kMost, kDataFrame, 0, 1)));
  EXPECT_EQ(frames.bytes_to_border(), kMost);
  const std::string part = OpenedAndReset(1000);
  size_t left = kMost;
  while (left > 0) {
    const size_t size = std::min(left, part.size());
    EXPECT_TRUE(frames.Read(std::string_view(part).substr(0, size)));
    left -= size;
    EXPECT_EQ(frames.bytes_to_border(), left);
  }
  EXPECT_EQ(CountsOf(frames), Counts());
  EXPECT_TRUE(frames.Read(Reset(1)));
  EXPECT_EQ(frames.num_resets(), 1);
}

TEST(Http2FramesTest, WithinAHeadTheBorderIsNoNearerThanItsEnd) {
  Http2Frames frames(From::kServer);
  const std::string frame = Frame(kDataFrame, 0, 1, "12345");
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(frames.bytes_to_border(), i == 0 ? 0 : 9 - i);
    frames.Read(frame.substr(i, 1));
  }
  EXPECT_EQ(frames.bytes_to_border(), 5U);
}

// As the library: the rest it passes over.
TEST(Http2FramesTest, OnlyNewStreamsOfAClientAreOpened) {
  Http2Frames frames(From::kClient);
  frames.Read(ClientsBegin());
  for (const uint32_t stream : {0U, 2U, 9U, 9U, 7U, 8U, 0x80000009U, 0x8000000bU, 13U}) {
    frames.Read(Frame(kHeadersFrame, 4, stream, "head"));
  }
  EXPECT_EQ(frames.num_opened(), 3) << "9, 11 and 13";
}

TEST(Http2FramesTest, AClientsResetsCountWhateverTheirStreamAndReason) {
  Http2Frames frames(From::kClient);
  frames.Read(ClientsBegin());
  for (const uint32_t stream : {0U, 1U, 1U, 77U}) frames.Read(Reset(stream, 0));
  frames.Read(Frame(kRstStreamFrame, 0, 1));  // Of no length.
  EXPECT_EQ(frames.num_resets(), 5);
}

TEST(Http2FramesTest, GoawayIsAFrameWithTheReasonAndText) {
  const std::string expected =
      FrameHead(12, 7, 0, 0) + std::string("\x7f\xff\xff\xff\0\0\0\x0b", 8);
  EXPECT_EQ(Http2Goaway("why?"), expected + "why?");
  Http2Frames frames(From::kServer);
  frames.Read(Http2Goaway(std::string(300, 'x')));
  EXPECT_EQ(frames.bytes_to_border(), 0U);
}

}  // namespace
}  // namespace baton
