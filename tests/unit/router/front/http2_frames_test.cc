#include "router/front/http2_frames.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/unit/router/front/http2_bytes.h"

namespace baton {
namespace {

using From = Http2Frames::From;

using Event = Http2Frames::Event;

struct Happened {
  Event event;
  uint32_t stream;
  size_t at;  // So many bytes had been taken.
  bool operator==(const Happened&) const = default;
};

// Takes them all, and says what of `offset` and them came of it.
std::vector<Happened> Read(Http2Frames& frames, std::string_view bytes, size_t offset = 0) {
  std::vector<Happened> all;
  for (std::string_view rest = bytes; !rest.empty();) {
    const Event event = frames.Read(rest);
    if (event == Event::kInvalid) return {{Event::kInvalid, 0, 0}};
    if (event == Event::kNone) {
      EXPECT_TRUE(rest.empty());
      break;
    }
    all.push_back({event, frames.stream(), offset + bytes.size() - rest.size()});
  }
  return all;
}

bool IsValid(const std::vector<Happened>& all) {
  return all.empty() || all[0].event != Event::kInvalid;
}

// Without where.
std::vector<std::pair<Event, uint32_t>> EventsOf(Http2Frames& frames, std::string_view bytes) {
  std::vector<std::pair<Event, uint32_t>> events;
  for (const Happened& happened : Read(frames, bytes)) {
    events.emplace_back(happened.event, happened.stream);
  }
  return events;
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

TEST(Http2FramesTest, TellsTheSameHoweverTheBytesAreCut) {
  const struct {
    From from;
    std::string bytes;
    std::vector<std::pair<Event, uint32_t>> events;
  } cases[] = {{From::kClient,
                OfClient(),
                {{Event::kOpened, 1},
                 {Event::kOpened, 3},
                 {Event::kReset, 3},
                 {Event::kReset, 1},
                 {Event::kOpened, 5}}},
               {From::kServer,
                OfServer(),
                {{Event::kAnswered, 1},
                 {Event::kAnswered, 1},
                 {Event::kReset, 3},
                 {Event::kAnswered, 5},
                 {Event::kReset, 7}}}};
  for (const auto& [from, bytes, events] : cases) {
    Http2Frames whole(from);
    const std::vector<Happened> all = Read(whole, bytes);
    Http2Frames again(from);
    EXPECT_EQ(EventsOf(again, bytes), events);
    EXPECT_EQ(whole.bytes_to_border(), 0U);
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
      Http2Frames frames(from);
      std::vector<Happened> parts = Read(frames, std::string_view(bytes).substr(0, cut));
      for (const Happened& h : Read(frames, std::string_view(bytes).substr(cut), cut)) {
        parts.push_back(h);
      }
      EXPECT_EQ(parts, all) << cut;
    }
  }
}

// Before its last byte the server knows nothing of the stream.
TEST(Http2FramesTest, AStreamIsOpenedWithTheLastByteOfItsHead) {
  Http2Frames frames(From::kClient);
  const std::string bytes = ClientsBegin() + Frame(kHeadersFrame, 5, 1, "head") + Reset(1);
  const size_t head_end = ClientsBegin().size() + 9;
  const std::vector<Happened> all = Read(frames, bytes);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0], (Happened{Event::kOpened, 1, head_end}));
  EXPECT_EQ(all[1], (Happened{Event::kReset, 1, head_end + 4 + 9}));
}

TEST(Http2FramesTest, WhatIsNotHttp2IsRefusedForGood) {
  const std::string begin = ClientsBegin();
  for (size_t wrong = 0; wrong < kHttp2Preface.size(); ++wrong) {
    Http2Frames frames(From::kClient);
    std::string bytes = begin;
    bytes[wrong] ^= 1;
    EXPECT_TRUE(IsValid(Read(frames, bytes.substr(0, wrong))));
    EXPECT_FALSE(IsValid(Read(frames, bytes.substr(wrong)))) << wrong;
    EXPECT_FALSE(IsValid(Read(frames, begin))) << wrong;
    EXPECT_FALSE(frames.has_begun());
  }
  Http2Frames frames(From::kClient);
  EXPECT_FALSE(
      IsValid(Read(frames, std::string(kHttp2Preface) + Frame(kHeadersFrame, 4, 1, "head"))));
  EXPECT_FALSE(IsValid(Read(frames, Reset(1))));
  EXPECT_FALSE(frames.has_begun());
}

TEST(Http2FramesTest, AClientHasBegunWithTheHeadOfItsSettings) {
  const std::string begin = ClientsBegin();
  Http2Frames frames(From::kClient);
  EXPECT_TRUE(Read(frames, begin.substr(0, begin.size() - 1)).empty());
  EXPECT_FALSE(frames.has_begun());
  EXPECT_TRUE(Read(frames, begin.substr(begin.size() - 1)).empty());
  EXPECT_TRUE(frames.has_begun());
}

TEST(Http2FramesTest, AFrameOf16MiBIsPassedOverAsAnnounced) {
  constexpr size_t kMost = (1 << 24) - 1;
  Http2Frames frames(From::kClient);
  EXPECT_TRUE(Read(frames, ClientsBegin() + FrameHead(kMost, kDataFrame, 0, 1)).empty());
  EXPECT_EQ(frames.bytes_to_border(), kMost);
  const std::string part = OpenedAndReset(1000);
  size_t left = kMost;
  while (left > 0) {
    const size_t size = std::min(left, part.size());
    EXPECT_TRUE(Read(frames, std::string_view(part).substr(0, size)).empty());
    left -= size;
    EXPECT_EQ(frames.bytes_to_border(), left);
  }
  EXPECT_EQ(Read(frames, Reset(1)).size(), 1U);
}

TEST(Http2FramesTest, WithinAHeadTheBorderIsNoNearerThanItsEnd) {
  Http2Frames frames(From::kServer);
  const std::string frame = Frame(kDataFrame, 0, 1, "12345");
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(frames.bytes_to_border(), i == 0 ? 0 : 9 - i);
    Read(frames, frame.substr(i, 1));
  }
  EXPECT_EQ(frames.bytes_to_border(), 5U);
}

// As the library: the rest it passes over.
TEST(Http2FramesTest, OnlyNewStreamsOfAClientAreOpened) {
  Http2Frames frames(From::kClient);
  Read(frames, ClientsBegin());
  std::vector<uint32_t> opened;
  for (const uint32_t stream : {0U, 2U, 9U, 9U, 7U, 8U, 0x80000009U, 0x8000000bU, 13U}) {
    for (const Happened& h : Read(frames, Frame(kHeadersFrame, 4, stream, "head"))) {
      if (h.event == Event::kOpened) opened.push_back(h.stream);
    }
  }
  EXPECT_EQ(opened, (std::vector<uint32_t>{9, 11, 13}));
}

TEST(Http2FramesTest, AClientsResetIsOneWhateverItsReason) {
  Http2Frames frames(From::kClient);
  Read(frames, ClientsBegin());
  for (const uint32_t stream : {0U, 1U, 1U, 77U}) {
    EXPECT_EQ(EventsOf(frames, Reset(stream, 0)), (std::vector{std::pair(Event::kReset, stream)}));
  }
  EXPECT_EQ(Read(frames, Frame(kRstStreamFrame, 0, 1)).size(), 1U) << "of no length";
}

TEST(Http2FramesTest, GoawayIsAFrameWithTheReasonAndText) {
  const std::string expected =
      FrameHead(12, 7, 0, 0) + std::string("\x7f\xff\xff\xff\0\0\0\x0b", 8);
  EXPECT_EQ(Http2Goaway("why?"), expected + "why?");
  Http2Frames frames(From::kServer);
  Read(frames, Http2Goaway(std::string(300, 'x')));
  EXPECT_EQ(frames.bytes_to_border(), 0U);
}

}  // namespace
}  // namespace baton
