// Mutated model folders: whatever the files hold, loading ends in a model or a clear Status. Under
// ASan and UBSan this also shows that no byte outside of them is read.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/checkpoint/model_files.h"
#include "common/checkpoint/rope.h"
#include "tests/golden/golden_file.h"
#include "tests/unit/common/checkpoint/model_dir.h"

namespace baton {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// What hostile files like to say.
const std::vector<std::string>& Poison() {
  static const auto& texts =
      *new std::vector<std::string>{"0",
                                    "-1",
                                    "1e308",
                                    "-0.0",
                                    "1e999",
                                    "NaN",
                                    "9223372036854775807",
                                    "9223372036854775808",
                                    "18446744073709551615",
                                    "18446744073709551616",
                                    "4294967296",
                                    "2147483648",
                                    "null",
                                    "true",
                                    "\"\"",
                                    "\"x\"",
                                    "[]",
                                    "{}",
                                    "[[[[[[[[[[]]]]]]]]]]",
                                    "\"../../etc/passwd\"",
                                    "\"/dev/zero\"",
                                    "\"\\u0000\"",
                                    "\"\xff\xfe\"",
                                    "{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{}}}}}}}",
                                    ",",
                                    ":"};
  return texts;
}

bool IsValueChar(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '.' || c == '-' || c == '_';
}

// Replaces one run of value characters at or after a random place.
std::string ReplaceValue(const std::string& text, Random& random) {
  size_t begin = random.Below(text.size());
  while (begin < text.size() && !IsValueChar(text[begin])) ++begin;
  size_t end = begin;
  while (end < text.size() && IsValueChar(text[end])) ++end;
  const std::string& poison = Poison()[random.Below(Poison().size())];
  return text.substr(0, begin) + poison + text.substr(end);
}

std::string Mutate(std::string text, size_t text_begin, size_t text_end, Random& random) {
  const std::string head = text.substr(0, text_begin);
  const std::string tail = text.substr(text_end);
  std::string body = text.substr(text_begin, text_end - text_begin);
  switch (random.Below(6)) {
    case 0:
      return text.substr(0, random.Below(text.size() + 1));
    case 1:
      text[random.Below(text_end)] = static_cast<char>(random.Next());
      return text;
    case 2: {  // Repeat a slice.
      const size_t at = random.Below(body.size());
      return head + body.substr(0, at) + body.substr(random.Below(body.size())) + tail;
    }
    case 3: {  // Cut a slice.
      const size_t at = random.Below(body.size());
      return head + body.substr(0, at) + body.substr(at + random.Below(body.size() - at)) + tail;
    }
    default: {
      std::string changed = ReplaceValue(body, random);
      // Half of them keep the length, so that the safetensors header still ends where it says.
      if (random.Below(2) == 0) changed.resize(body.size(), ' ');
      return head + changed + tail;
    }
  }
}

// Loads, and uses what was loaded: every byte of every weight and every frequency.
void ExpectModelOrClearStatus(const std::string& dir) {
  const auto model = LoadModelFiles(dir);
  if (!model.ok()) {
    ASSERT_FALSE(model.status().message().empty());
    EXPECT_THAT(std::string(model.status().message()),
                AnyOf(HasSubstr(".json"), HasSubstr("safetensors"), HasSubstr("weights: tensor")));
    EXPECT_LT(model.status().message().size(), 2000u);
    return;
  }
  const RopeFrequencies rope = ComputeRopeFrequencies(model->config.rope, model->config.rotary_dim);
  const int32_t rotated = RotatedElements(model->config.rotary_dim);
  EXPECT_EQ(rope.inv_freq.size(), static_cast<size_t>(rotated / 2));
  EXPECT_EQ(model->weights.layers.size(), static_cast<size_t>(model->config.num_layers));
  std::vector<float> row(model->config.hidden_size);
  const TensorView& head = model->weights.lm_head;
  ConvertToF32(head, head.NumElements() - static_cast<int64_t>(row.size()), row);
}

struct Target {
  const char* model;
  const char* file;
};

class HostileModelFilesTest : public ::testing::TestWithParam<Target> {};

TEST_P(HostileModelFilesTest, EndsInAModelOrAClearStatus) {
  const ModelDir dir;
  dir.CopyFrom(GoldenModelDir(GetParam().model));
  const std::string name = GetParam().file;
  const std::string original = dir.Read(name);
  ASSERT_GT(original.size(), 16u);
  const bool tensors = name.ends_with(".safetensors");
  // The header's own JSON is where lies are told; the weights' bytes mean nothing to the reader.
  size_t header_size = 0;
  for (int i = 0; i < 4; ++i) {
    header_size |= static_cast<size_t>(static_cast<unsigned char>(original[i])) << (8 * i);
  }
  const size_t begin = tensors ? 8 : 0;
  const size_t end = tensors ? 8 + header_size : original.size();
  ASSERT_LE(end, original.size());
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    dir.Write(name, Mutate(original, begin, end, random));
    ExpectModelOrClearStatus(dir.path());
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Files, HostileModelFilesTest,
    ::testing::Values(Target{"qwen2-yarn", "config.json"},
                      Target{"qwen3-bias-shards", "config.json"},
                      Target{"llama-llama3-rope", "config.json"},
                      Target{"llama-llama3-rope", "model.safetensors"},
                      Target{"mistral-linear-shards", "config.json"},
                      Target{"mistral-linear-shards", "model.safetensors.index.json"},
                      Target{"mistral-linear-shards", "model-00002-of-00006.safetensors"}),
    [](const auto& info) { return "File" + std::to_string(info.index); });

TEST(HostileSafetensorsTest, EveryHeaderLengthIsSafe) {
  const ModelDir dir;
  dir.CopyFrom(GoldenModelDir("llama-llama3-rope"));
  const std::string original = dir.Read("model.safetensors");
  for (int bit = 0; bit < 64; ++bit) {
    std::string bytes = original;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    dir.Write("model.safetensors", bytes);
    const auto model = LoadModelFiles(dir.path());
    EXPECT_THAT(std::string(model.status().message()), HasSubstr("model.safetensors")) << bit;
  }
}

TEST(HostileSafetensorsTest, EveryTruncationNamesTheFile) {
  const ModelDir dir;
  dir.CopyFrom(GoldenModelDir("llama-llama3-rope"));
  const std::string original = dir.Read("model.safetensors");
  for (size_t size = 0; size < original.size(); size += 1 + size / 20) {
    dir.Write("model.safetensors", original.substr(0, size));
    const auto model = LoadModelFiles(dir.path());
    ASSERT_FALSE(model.ok()) << size;
    EXPECT_THAT(std::string(model.status().message()), HasSubstr("model.safetensors")) << size;
  }
}

}  // namespace
}  // namespace baton
