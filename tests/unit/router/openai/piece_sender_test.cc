#include "router/openai/piece_sender.h"

#include <gtest/gtest.h>

#include "tests/unit/router/openai/bounded_writer.h"

namespace baton {
namespace {

TextPieces Long(size_t bytes) {
  TextPieces pieces;
  pieces.AddSteps([left = bytes](std::string& out) mutable {
    out.push_back('x');
    return --left > 0;
  });
  return pieces;
}

TEST(PieceSenderTest, AShortBodyIsSentWhole) {
  auto writer = std::make_shared<BoundedWriter>();
  SendPieces(writer, {.status = 200}, Long(1000), nullptr);
  EXPECT_EQ(writer->sent, 1);
  EXPECT_EQ(writer->streams, 0);
  EXPECT_EQ(writer->body, std::string(1000, 'x'));
}

TEST(PieceSenderTest, ALongBodyIsMadeAsItIsTaken) {
  for (const size_t bytes : {size_t{128} << 10, (size_t{128} << 10) + 1, size_t{3} << 20}) {
    auto writer = std::make_shared<BoundedWriter>();
    auto owner = std::make_shared<int>(1);
    const std::weak_ptr<int> alive = owner;
    SendPieces(writer, {}, Long(bytes), std::move(owner));
    while (!writer->finished && !writer->sent) {
      EXPECT_FALSE(alive.expired());
      EXPECT_LE(writer->queued, BoundedWriter::kRoom + (16 << 10));
      ASSERT_TRUE(writer->Drain());
      EXPECT_LE(writer->queued, size_t{128} << 10);  // Then it is others' turn.
    }
    EXPECT_EQ(writer->sent + writer->streams, 1);
    EXPECT_EQ(writer->body.size(), bytes);
    writer->Drain();
    EXPECT_TRUE(alive.expired());
  }
}

TEST(PieceSenderTest, AllIsLetGoWhenTheClientGoes) {
  auto writer = std::make_shared<BoundedWriter>();
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> alive = owner;
  SendPieces(writer, {}, Long(3 << 20), std::move(owner));
  EXPECT_EQ(writer.use_count(), 2);
  writer->on_room = nullptr;
  EXPECT_TRUE(alive.expired());
  EXPECT_EQ(writer.use_count(), 1);
}

}  // namespace
}  // namespace baton
