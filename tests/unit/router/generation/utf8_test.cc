#include "router/generation/utf8.h"

#include <gtest/gtest.h>

#include <string>

#include "common/base/random.h"

namespace baton {
namespace {

TEST(Utf8Test, AcceptsWellFormedTextOnly) {
  for (const char* good :
       {"", "a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xEF\xBF\xBF"}) {
    EXPECT_TRUE(IsValidUtf8(good)) << good;
  }
  for (const char* bad : {"\x80", "\xC3", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80",
                          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x82", "a\xFF"}) {
    EXPECT_FALSE(IsValidUtf8(bad));
  }
}

TEST(Utf8Test, ReplacesEachIllFormedPartOnce) {
  EXPECT_EQ(ToValidUtf8("a\xE2\x82"
                        "b"),
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(ToValidUtf8("\xFF\xFE"), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(ToValidUtf8("\xF0\x9F\x98"), "\xEF\xBF\xBD");
  EXPECT_EQ(ToValidUtf8("\xE2\x82\xAC"), "\xE2\x82\xAC");
}

TEST(Utf8Test, MakesAnyBytesValidAndCountsCodePoints) {
  Random random(3);
  for (int i = 0; i < 3000; ++i) {
    std::string bytes(random.Below(12), '\0');
    for (char& c : bytes) c = static_cast<char>(0x70 + random.Below(0x90));
    const std::string valid = ToValidUtf8(bytes);
    ASSERT_TRUE(IsValidUtf8(valid));
    ASSERT_LE(CodePoints(valid), static_cast<int64_t>(bytes.size()));
    if (IsValidUtf8(bytes)) {
      ASSERT_EQ(valid, bytes);
    }
  }
  EXPECT_EQ(CodePoints("a\xE2\x82\xAC\xF0\x9F\x98\x80"), 3);
}

TEST(Utf8Test, TheFirstAndLastSequencesOfEachLengthAreValidAndTheirNeighboursAreNot) {
  for (const char* good : {"\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF",
                           "\xEE\x80\x80", "\xEF\xBF\xBF", "\xF0\x90\x80\x80",
                           "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(IsValidUtf8(good)) << good;
    EXPECT_EQ(ToValidUtf8(good), good);
  }
  for (const char* bad : {"\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xC2", "\xF0\x90\x80"}) {
    EXPECT_FALSE(IsValidUtf8(bad)) << bad;
    EXPECT_TRUE(IsValidUtf8(ToValidUtf8(bad)));
  }
}

}  // namespace
}  // namespace baton
