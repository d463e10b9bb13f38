#include "deploy/cli/server_events.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::cli {
namespace {

using testing::ElementsAre;

std::vector<std::string> Events(const std::string& stream, size_t piece) {
  std::vector<std::string> events;
  ServerEvents parser([&](absl::string_view data) { events.emplace_back(data); });
  for (size_t i = 0; i < stream.size(); i += piece) parser.Feed(stream.substr(i, piece));
  return events;
}

TEST(ServerEventsTest, PiecesOfAnySizeGiveTheSameEvents) {
  const std::string stream = "data: {\"a\": 1}\n\n: a comment\nevent: x\ndata:two\r\n\r\n";
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    EXPECT_THAT(Events(stream, piece), ElementsAre("{\"a\": 1}", "two")) << piece;
  }
}

TEST(ServerEventsTest, SeveralDataLinesAreOneEvent) {
  EXPECT_THAT(Events("data: a\ndata: b\n\n", 100), ElementsAre("a\nb"));
}

TEST(ServerEventsTest, EventWithoutItsEndIsNotDelivered) {
  EXPECT_THAT(Events("data: a\n\ndata: b\n", 100), ElementsAre("a"));
}

}  // namespace
}  // namespace baton::cli
