#include "router/text/text_codec.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

constexpr char kModelDir[] = BATON_SOURCE_DIR "/deploy/models/tiny-kjv";

TEST(TextCodecTest, RendersTheModelsTemplate) {
  auto codec = TextCodec::Load(kModelDir);
  ASSERT_TRUE(codec.ok()) << codec.status();
  auto text = (*codec)->ApplyChatTemplate(R"([{"role":"user","content":" Hi "}])", {});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "<|begin_of_text|><|user|>\nHi<|end|>\n<|assistant|>\n");
  auto ids = (*codec)->Encode(*text, false);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(*(*codec)->Decode(*ids, false), *text);
}

}  // namespace
}  // namespace baton
