#include "common/model/packed_model.h"

#include <gtest/gtest.h>

#include "common/checkpoint/model_files.h"
#include "kernels/make_device.h"

namespace baton {
namespace {

std::string PathOf(const std::string& name) { return std::string(BATON_SOURCE_DIR) + name; }

TEST(PackedModelTest, JoinsKeysValuesAndQueriesAndKeepsTheDtypeOnDisk) {
  const Processors cpu = *MakeDevice({});
  const ModelFiles files = *LoadModelFiles(PathOf("/deploy/models/tiny-kjv"));
  Device* const devices[] = {cpu.device.get()};
  const PackedRanks ranks = *PackModel(files.config, files.weights, DType::kF32, devices);
  const PackedModel& model = ranks[0];
  EXPECT_EQ(model.layers.size(), 6u);
  EXPECT_EQ(model.layers[0].qkv.weights.n(), (2 + 2 + 6) * 32);
  EXPECT_EQ(model.layers[0].qkv.weights.dtype(), DType::kBF16);
  EXPECT_EQ(model.layers[0].gate_up.weights.n(), 2 * 512);
  EXPECT_TRUE(model.layers[0].qkv.bias.data() == nullptr);
  EXPECT_EQ(&model.output(), &model.embedding);
}

TEST(PackedModelTest, PutsBiasesInTheOrderOfTheirRows) {
  const Processors cpu = *MakeDevice({});
  const ModelFiles files = *LoadModelFiles(PathOf("/tests/golden/models/llama-mqa-bias"));
  Device* const devices[] = {cpu.device.get()};
  const PackedRanks ranks = *PackModel(files.config, files.weights, DType::kF32, devices);
  const PackedModel& model = ranks[0];
  const LayerWeights& weights = files.weights.layers[0];
  std::vector<float> expected;
  for (const TensorView* bias : {&weights.k_bias, &weights.v_bias, &weights.q_bias}) {
    std::vector<float> part(bias->NumElements());
    ConvertToF32(*bias, 0, part);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  const Buffer& bias = model.layers[0].qkv.bias;
  const float* const values = bias.floats(DType::kF32).f32();
  EXPECT_EQ(std::vector<float>(values, values + expected.size()), expected);
}

}  // namespace
}  // namespace baton
