#include "common/model/transformer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/checkpoint/model_files.h"
#include "kernels/make_device.h"

namespace baton {
namespace {

std::string Dir(const std::string& name) { return std::string(BATON_SOURCE_DIR) + name; }

class TinyModelTest : public testing::Test {
 protected:
  ModelFiles files_ = *LoadModelFiles(Dir("/deploy/models/tiny-kjv"));
  const Processors cpu_ = *MakeDevice({});
  Device* const device_ = cpu_.device.get();
  std::unique_ptr<Transformer> model_ = *Transformer::Create(
      {.config = files_.config,
       .weights = std::make_shared<PackedRanks>(
           *PackModel(files_.config, files_.weights, DType::kF32, {&device_, 1})),
       .device = device_,
       .max_tokens = 16});
  std::unique_ptr<KvCache> cache_ = *KvCache::Create(
      {.block_size = 4, .groups = {{.num_layers = 6, .num_kv_heads = 2, .k_dim = 32, .v_dim = 32}}},
      3);
  // Five tokens of one sequence in blocks 2 and 0, two of another in block 1.
  StepMetadata batch_ = *StepMetadata::Create(
      *cpu_.device, {.max_tokens = 16, .max_rows = 8, .max_row_blocks = 2});
  std::vector<int32_t> layers_;

  // Each of `wanted` ends a row.
  StepPlan PlanFor(const std::vector<int32_t>& wanted) const {
    StepPlan plan;
    const auto add = [&](int32_t first, std::vector<int32_t> tokens, std::vector<BlockId> table) {
      const auto count = static_cast<int32_t>(tokens.size());
      for (int32_t at = 0, end; at < count; at = end) {
        end = at + 1;
        while (end < count && !std::ranges::count(wanted, first + end - 1)) ++end;
        const bool sample = std::ranges::count(wanted, first + end - 1) > 0;
        plan.rows.push_back({.tokens = {tokens.begin() + at, tokens.begin() + end},
                             .context_len = at,
                             .block_table = table,
                             .sample = sample,
                             .sampling = sample ? std::make_shared<SamplingContext>() : nullptr});
      }
    };
    add(0, {5, 6, 7, 8, 9}, {2, 0});
    add(5, {5, 10}, {1});
    return plan;
  }

  // The logits of these tokens, [count, 4096], after a pass of the batch.
  std::vector<float> LogitsOf(std::vector<int32_t> tokens) {
    const auto count = static_cast<int64_t>(tokens.size());
    EXPECT_TRUE(batch_
                    .Build(PlanFor(tokens), {.vocab_size = 4096,
                                             .max_model_len = 16,
                                             .block_size = 4,
                                             .num_blocks = 3})
                    .ok());
    layers_.clear();
    EXPECT_TRUE(model_
                    ->Forward(batch_, *cache_,
                              [this](int32_t layer) {
                                layers_.push_back(layer);
                                return absl::OkStatus();
                              })
                    .ok());
    const float* const all = model_->Logits(0, count)->f32();
    return {all, all + count * 4096};
  }
};

TEST_F(TinyModelTest, LogitsComeInPiecesOfTheSameBits) {
  const std::vector<float> together = LogitsOf({0, 2, 6});
  EXPECT_THAT(layers_, testing::ElementsAre(0, 1, 2, 3, 4, 5));
  ASSERT_EQ(together.size(), 3u * 4096);
  for (int64_t i = 0; i < 3; ++i) {
    const float* const one = model_->Logits(i, 1)->f32();
    EXPECT_TRUE(std::equal(one, one + 4096, together.begin() + i * 4096)) << i;
  }
}

TEST_F(TinyModelTest, BitsOfLogitsDoNotDependOnWhichOthersAreWanted) {
  const std::vector<float> all = LogitsOf({0, 1, 2, 3, 4, 5, 6});
  const std::vector<std::vector<int32_t>> choices = {{4, 6}, {1, 3, 4}, {4, 5}, {0, 6}, {2}};
  for (const auto& tokens : choices) {
    const std::vector<float> some = LogitsOf(tokens);
    for (size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_TRUE(std::equal(some.begin() + i * 4096, some.begin() + (i + 1) * 4096,
                             all.begin() + int64_t{tokens[i]} * 4096))
          << "token " << tokens[i] << " of " << testing::PrintToString(tokens);
    }
  }
}

TEST_F(TinyModelTest, AnErrorFromALayersReportEndsThePass) {
  ASSERT_TRUE(batch_
                  .Build(PlanFor({6}), {.vocab_size = 4096,
                                        .max_model_len = 16,
                                        .block_size = 4,
                                        .num_blocks = 3})
                  .ok());
  const absl::Status status = model_->Forward(batch_, *cache_, [this](int32_t layer) {
    layers_.push_back(layer);
    return layer == 2 ? absl::UnavailableError("lost") : absl::OkStatus();
  });
  EXPECT_EQ(status.message(), "lost");
  EXPECT_THAT(layers_, testing::ElementsAre(0, 1, 2));
}

TEST_F(TinyModelTest, APassWithoutLogitsWritesTheKeysAndValuesOfEachLayer) {
  const auto planes = [this] {
    std::vector<std::byte> bytes;
    for (int32_t layer = 0; layer < 6; ++layer) {
      for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
        for (const BlockId block : {0, 1, 2}) {
          for (const int32_t head : {0, 1}) {
            const auto part = cache_->HeadBlock(layer, plane, block, head);
            bytes.insert(bytes.end(), part.begin(), part.end());
          }
        }
      }
    }
    return bytes;
  };
  const auto clear = [this](std::byte value) {
    for (int32_t layer = 0; layer < 6; ++layer) {
      for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
        for (const BlockId block : {0, 1, 2}) {
          for (const int32_t head : {0, 1}) {
            std::ranges::fill(cache_->HeadBlock(layer, plane, block, head), value);
          }
        }
      }
    }
  };
  clear(std::byte{0xff});
  LogitsOf({0, 1, 2, 3, 4, 5, 6});
  const std::vector<std::byte> expected = planes();
  clear(std::byte{0xff});
  LogitsOf({});
  EXPECT_THAT(layers_, testing::ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_TRUE(planes() == expected);
}

}  // namespace
}  // namespace baton
