#include "router/openai/text_pieces.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "router/openai/json.h"

namespace baton {
namespace {

std::string All(TextPieces pieces, size_t bytes, size_t most) {
  std::string all;
  while (!pieces.done()) {
    std::string piece;
    pieces.Fill(bytes, piece);
    EXPECT_FALSE(piece.empty());
    EXPECT_LE(piece.size(), bytes + most);
    all += piece;
  }
  return all;
}

TEST(TextPiecesTest, WritesArraysOfEverySize) {
  for (const size_t count : {0, 1, 8, 9, 1000}) {
    TextPieces pieces;
    std::string expected = "a[";
    pieces.Add("a");
    pieces.AddArray(count, [](size_t i, std::string& out) { absl::StrAppend(&out, i); });
    pieces.Add("z");
    for (size_t i = 0; i < count; ++i) absl::StrAppend(&expected, i == 0 ? "" : ",", i);
    EXPECT_EQ(All(pieces, 100, 64), expected + "]z");
  }
}

TEST(TextPiecesTest, MakesOnlyWhatIsAskedFor) {
  size_t made = 0;
  TextPieces pieces;
  pieces.AddArray(1000, [&](size_t, std::string& out) {
    ++made;
    out += "0123456789";
  });
  EXPECT_EQ(made, 0u);
  std::string piece;
  pieces.Fill(100, piece);
  EXPECT_LE(made, 11u);
  EXPECT_FALSE(pieces.done());
}

TEST(TextPiecesTest, EscapesALongTextWithoutSplittingACharacter) {
  auto text = std::make_shared<std::string>();
  for (int i = 0; i < 5000; ++i) {
    absl::StrAppend(text.get(), "\"\n", i, "\xE2\x82\xAC\xF0\x9F\x98\x80");
  }
  TextPieces pieces;
  pieces.Add("\"");
  pieces.AddEscaped(text, *text);
  pieces.Add("\"");
  EXPECT_EQ(All(pieces, 1000, 16 << 10), Dump(Json(*text)));
}

TEST(TextPiecesTest, HoldsItsOwnerUntilItIsWritten) {
  auto text = std::make_shared<std::string>(10000, 'x');
  std::weak_ptr<std::string> owner = text;
  TextPieces pieces;
  pieces.AddEscaped(text, *text);
  text.reset();
  EXPECT_FALSE(owner.expired());
  EXPECT_EQ(All(std::move(pieces), 100, 16 << 10), std::string(10000, 'x'));
  EXPECT_TRUE(owner.expired());
}

}  // namespace
}  // namespace baton
