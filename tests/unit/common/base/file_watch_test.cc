#include "common/base/file_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"

namespace baton {
namespace {

using ::testing::ElementsAre;

// A file in memory; what begins with "bad" is refused.
struct Harness {
  absl::StatusOr<std::string> file = "first";
  std::vector<std::string> taken;
  std::vector<std::string> refused;

  FileWatchOptions Options() {
    return {.read = [this] { return file; },
            .take =
                [this](const std::string& bytes) {
                  if (bytes.starts_with("bad")) return absl::InvalidArgumentError(bytes);
                  taken.push_back(bytes);
                  return absl::OkStatus();
                },
            .on_refused =
                [this](const absl::Status& why) { refused.emplace_back(why.message()); }};
  }
};

TEST(FileWatchTest, TakesAChangeOnceItHasReadTheSameTwice) {
  Harness h;
  FileWatch watch(h.Options(), "first");
  watch.Poll();
  watch.Poll();
  EXPECT_THAT(h.taken, ElementsAre());
  for (const char* growing : {"sec", "second", "second", "second"}) {
    h.file = growing;
    watch.Poll();
  }
  EXPECT_THAT(h.taken, ElementsAre("second"));
  EXPECT_THAT(h.refused, ElementsAre());
}

TEST(FileWatchTest, WhatIsRefusedIsToldOnceAndTheOldStays) {
  Harness h;
  FileWatch watch(h.Options(), "first");
  h.file = "bad";
  EXPECT_FALSE(watch.is_behind());
  for (int i = 0; i < 5; ++i) watch.Poll();
  EXPECT_THAT(h.refused, ElementsAre("bad"));
  EXPECT_TRUE(watch.is_behind());
  h.file = absl::NotFoundError("gone");
  for (int i = 0; i < 5; ++i) watch.Poll();
  EXPECT_THAT(h.refused, ElementsAre("bad", "gone"));
  h.file = "first";  // As before: there is nothing to take, and the next refusal is news.
  for (int i = 0; i < 2; ++i) watch.Poll();
  EXPECT_FALSE(watch.is_behind());
  h.file = absl::NotFoundError("gone");
  watch.Poll();
  EXPECT_TRUE(watch.is_behind());
  EXPECT_THAT(h.refused, ElementsAre("bad", "gone", "gone"));
  EXPECT_THAT(h.taken, ElementsAre());
}

TEST(FileWatchTest, ARefusedEditionIsTriedAgain) {
  bool is_time = false;
  int taken = 0;
  FileWatch watch({.read = [] { return std::string("next"); },
                   .take =
                       [&](const std::string&) {
                         if (!is_time) return absl::UnavailableError("not yet");
                         ++taken;
                         return absl::OkStatus();
                       },
                   .on_refused = [](const absl::Status&) {}},
                  "first");
  for (int i = 0; i < 3; ++i) watch.Poll();
  EXPECT_EQ(taken, 0);
  is_time = true;
  for (int i = 0; i < 3; ++i) watch.Poll();
  EXPECT_EQ(taken, 1);
}

TEST(FileWatchTest, LooksByItself) {
  absl::Notification taken;
  FileWatch watch({.read = [] { return std::string("next"); },
                   .take =
                       [&](const std::string&) {
                         taken.Notify();
                         return absl::OkStatus();
                       },
                   .on_refused = [](const absl::Status&) {}},
                  "first");
  watch.Start();
  EXPECT_TRUE(taken.WaitForNotificationWithTimeout(absl::Seconds(60)));
}

}  // namespace
}  // namespace baton
