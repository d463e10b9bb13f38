#include "common/model/transformer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_files.h"
#include "kernels/make_device.h"

namespace baton {
namespace {

std::string Dir(const std::string& name) { return std::string(BATON_SOURCE_DIR) + name; }

TEST(TransformerTest, RefusesFeaturesThatNoOperatorServesByName) {
  auto kernels = *MakeKernels({});
  ModelFiles files = *LoadModelFiles(Dir("/deploy/models/tiny-kjv"));
  const auto refused = [&](auto change, const std::string& message) {
    ModelConfig config = files.config;
    change(config);
    const absl::Status status =
        Transformer::Create(config, files.weights, DType::kF32, kernels.get()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(message));
  };
  refused([](ModelConfig& c) { c.norm = NormKind::kLayer; }, "layer norm");
  refused([](ModelConfig& c) { c.gated_mlp = false; }, "without a gate");
  refused([](ModelConfig& c) { c.activation = Activation::kRelu; }, "hidden_act");
}

TEST(TransformerTest, LogitsComeInPiecesOfTheSameBits) {
  auto kernels = *MakeKernels({});
  ModelFiles files = *LoadModelFiles(Dir("/deploy/models/tiny-kjv"));
  auto model = *Transformer::Create(files.config, files.weights, DType::kF32, kernels.get());
  auto cache =
      *KvCache::Create({.block_size = 16,
                        .groups = {{.num_layers = 6, .num_kv_heads = 2, .k_dim = 32, .v_dim = 32}}},
                       1);
  const ForwardBatch batch{.tokens = {5, 6, 7, 8},
                           .positions = {0, 1, 2, 3},
                           .slot_mapping = {0, 1, 2, 3},
                           .cu_seqlens_q = {0, 4},
                           .seq_lens = {4},
                           .block_table = {0},
                           .max_blocks = 1,
                           .logit_tokens = {0, 2, 3}};
  std::vector<int32_t> layers;
  ASSERT_TRUE(model->Forward(batch, *cache, [&](int32_t layer) { layers.push_back(layer); }).ok());
  EXPECT_THAT(layers, testing::ElementsAre(0, 1, 2, 3, 4, 5));
  const auto all = *model->Logits(0, 3);
  const std::vector<float> together(all.begin(), all.end());
  ASSERT_EQ(together.size(), 3u * 4096);
  for (int64_t i = 0; i < 3; ++i) {
    const auto one = *model->Logits(i, 1);
    EXPECT_TRUE(std::equal(one.begin(), one.end(), together.begin() + i * 4096)) << i;
  }
}

}  // namespace
}  // namespace baton
