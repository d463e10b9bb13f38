// Whole models on the device: what loads on the CPU loads here, and answers as transformers does.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/checkpoint/model_config.h"
#if !defined(BATON_CUDA_DEVICE)
#include "kernels/emulation/emulator.h"
#endif
#include "tests/golden/golden_file.h"
#include "tests/golden/model_under_test.h"
#include "tests/kernels/cuda/random_model.h"
#include "tests/unit/common/model/shaped_model.h"

namespace baton {
namespace {

constexpr size_t kSteps = 4;

// The difference of logarithms of probabilities, of the prompts' tokens and of the likeliest next.
class Distance {
 public:
  void Add(const std::vector<float>& a, const std::vector<float>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) sum_ += std::pow(double{a[i]} - double{b[i]}, 2);
    count_ += a.size();
  }
  double rms() const { return std::sqrt(sum_ / static_cast<double>(count_)); }

 private:
  double sum_ = 0;
  size_t count_ = 0;
};

std::vector<float> Logprobs(const Answer& answer) {
  std::vector<float> out = answer.prompt_logprobs;
  for (const TokenOutput& output : answer.outputs) out.push_back(output.logprob);
  return out;
}

std::vector<float> Logprobs(const GoldenCase& golden) {
  std::vector<float> out = golden.prompt_logprobs;
  out.insert(out.end(), golden.greedy_logprobs.begin(), golden.greedy_logprobs.begin() + kSteps);
  return out;
}

// How far a model is from what transformers says of it in f32.
double DistanceFromGolden(const GoldenFile& file, RunnerOptions options) {
  ModelUnderTest model(std::move(options));
  Distance distance;
  // Of the larger model, which has more, the emulation takes seconds for each.
  for (const GoldenCase& golden : std::span(file.cases).first(4)) {
    if (!model.ok()) continue;
    distance.Add(Logprobs(model.Run(golden, kSteps)), Logprobs(golden));
  }
  return distance.rms();
}

class CudaGoldenTest : public testing::TestWithParam<std::string> {
 protected:
  RunnerOptions Options(DType compute = DType::kBF16) const {
    return {.model_dir = shipped() ? BATON_SOURCE_DIR "/deploy/models/tiny-kjv"
                                   : GoldenModelDir(GetParam()),
            .compute_dtype = compute,
            .device = "cuda",
            .max_step_tokens = 128};
  }
  bool shipped() const { return GetParam() == "tiny-kjv"; }
  const GoldenFile golden_ =
      ReadGoldenFile(shipped() ? "tiny-kjv.json" : "models/" + GetParam() + "/golden.json");
};

TEST_P(CudaGoldenTest, Bf16IsAtMostTwiceAsFarOffAsTransformersOwn) {
  const double rms = DistanceFromGolden(golden_, Options());
  EXPECT_LE(rms, 2 * golden_.bf16_rms);
  EXPECT_GT(rms, 0) << "nothing was rounded";
}

class CudaSmallGoldenTest : public CudaGoldenTest {};

// It has three bits more.
TEST_P(CudaSmallGoldenTest, F16IsCloserThanBf16) {
  const double rms = DistanceFromGolden(golden_, Options(DType::kF16));
  EXPECT_LE(rms, golden_.bf16_rms / 4);
  EXPECT_GT(rms, 0) << "nothing was rounded";
}

// The CPU rounds K and V to the same numbers.
TEST_P(CudaSmallGoldenTest, Fp8KeysAndValuesCostNoMoreThanOnTheCpu) {
  for (const DType kv : {DType::kFp8E4M3, DType::kFp8E5M2}) {
    SCOPED_TRACE(ToString(kv));
    RunnerOptions options = Options();
    options.kv_dtype = kv;
    const double rms = DistanceFromGolden(golden_, options);
    options.device = "cpu";
    const double cpu = DistanceFromGolden(golden_, options);
    EXPECT_LE(rms, 1.3 * cpu);
    EXPECT_GT(rms, 0.7 * cpu);
  }
}

// Heads of multiples of 8 only.
bool IsServed(const std::string& name) {
  const auto config = LoadModelConfig(GoldenModelDir(name));
  return config.ok() && config->head_dim % 8 == 0;
}

std::vector<std::string> SmallModels() {
  std::vector<std::string> names = GoldenModels();
  std::erase_if(names, [](const std::string& name) { return !IsServed(name); });
  return names;
}

TEST(CudaModelsTest, WhatGpusDoNotServeIsRefusedByNameAtLoad) {
  WaitingSink sink;
  int refused = 0;
  for (const std::string& name : GoldenModels()) {
    if (IsServed(name)) continue;
    const auto runner = LoadedRunner::Create({.model_dir = GoldenModelDir(name),
                                              .compute_dtype = DType::kBF16,
                                              .num_blocks = 8,
                                              .device = "cuda"},
                                             &sink);
    EXPECT_THAT(std::string(runner.status().message()),
                testing::AllOf(testing::HasSubstr("head_dim = "),
                               testing::HasSubstr("use --device cpu")))
        << name;
    ++refused;
  }
  EXPECT_GE(refused, 6);
}

std::vector<std::string> AllModels() {
  std::vector<std::string> names = SmallModels();
  names.push_back("tiny-kjv");
  return names;
}

std::string NameOfModel(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, CudaGoldenTest, testing::ValuesIn(AllModels()), NameOfModel);
INSTANTIATE_TEST_SUITE_P(Models, CudaSmallGoldenTest, testing::ValuesIn(SmallModels()),
                         NameOfModel);

// Sizes that no model of the golden files has: the heads' of the kernels and between them, and
// matrices no size of which is even.
class CudaSizesTest : public testing::TestWithParam<RandomModel> {};

void ExpectAsFarFromF32AsTheCpusBf16(const ModelDir& folder, int64_t vocab) {
  GoldenCase text;
  Random random(9);
  for (int i = 0; i < 70; ++i) text.prompt_ids.push_back(static_cast<int32_t>(random.Below(vocab)));
  text.greedy_ids.assign(kSteps, 5);
  const auto run = [&](const std::string& device, DType compute) {
    ModelUnderTest model({.model_dir = folder.path(),
                          .compute_dtype = compute,
                          .device = device,
                          .max_step_tokens = 128});
    return model.ok() ? Logprobs(model.Run(text, kSteps)) : std::vector<float>();
  };
  const std::vector<float> exact = run("cpu", DType::kF32);
  Distance cpu, gpu;
  cpu.Add(run("cpu", DType::kBF16), exact);
  gpu.Add(run("cuda", DType::kBF16), exact);
  EXPECT_LE(gpu.rms(), 2 * cpu.rms());
  EXPECT_GT(gpu.rms(), 0) << "nothing was rounded";
}

TEST_P(CudaSizesTest, IsAsFarFromF32AsTheCpusBf16) {
  const ModelDir folder;
  WriteRandomModel(GetParam(), folder);
  ExpectAsFarFromF32AsTheCpusBf16(folder, GetParam().vocab);
}

// No size of which is even, and one that is cut into segments.
TEST(CudaModelsTest, ExpertsAreAsFarFromF32AsTheCpusBf16) {
  const ModelShape shapes[] = {
      {.name = "mixtral", .family = "mixtral", .num_heads = 4, .num_kv_heads = 2, .head_dim = 16,
       .hidden = 41, .ffn = 53, .vocab = 89},
      {.name = "qwen2_moe", .family = "qwen2_moe", .num_heads = 2, .num_kv_heads = 1,
       .head_dim = 24, .hidden = 33, .ffn = 64, .vocab = 96, .bias = true},
      {.name = "qwen3_moe", .family = "qwen3_moe", .num_heads = 3, .num_kv_heads = 1,
       .head_dim = 40, .hidden = 51, .ffn = 25, .vocab = 101}};
  for (const ModelShape& shape : shapes) {
    SCOPED_TRACE(shape.name);
    const ModelDir folder;
    folder.Write("config.json", ConfigOf(shape));
    folder.Write("model.safetensors", SafetensorsBytes(ShapedWeights(shape).tensors()));
    ExpectAsFarFromF32AsTheCpusBf16(folder, shape.vocab);
  }
}

std::vector<RandomModel> Sizes() {
  std::vector<RandomModel> sizes;
  for (const int64_t head_dim : {8, 40, 48, 56, 64, 72, 96, 104, 112, 120, 128, 136, 192, 200, 248,
                                 256}) {
    sizes.push_back({.head_dim = head_dim, .tied = head_dim % 16 == 0});
  }
  sizes.push_back({.head_dim = 16, .hidden = 41, .ffn = 53, .vocab = 89});
  sizes.push_back({.head_dim = 16, .hidden = 129, .ffn = 131, .vocab = 257, .bias = false});
  sizes.push_back({.head_dim = 16, .num_heads = 9, .num_kv_heads = 3, .hidden = 7, .ffn = 1});
  sizes.push_back({.head_dim = 8, .num_heads = 24, .num_kv_heads = 1, .tied = true});
  return sizes;
}

INSTANTIATE_TEST_SUITE_P(Sizes, CudaSizesTest, testing::ValuesIn(Sizes()), [](const auto& info) {
  return "head_" + std::to_string(info.param.head_dim) + "_hidden_" +
         std::to_string(info.param.hidden) + "_heads_" + std::to_string(info.param.num_heads);
});

#if !defined(BATON_CUDA_DEVICE)
// GPUs that give a block less shared memory than data centres' do.
TEST(CudaModelsTest, EveryHeadSizeIsServedOnEveryKindOfGpu) {
  for (const int64_t head_dim : {192, 256}) {
    const ModelDir folder;
    WriteRandomModel({.head_dim = head_dim}, folder);
    GoldenCase text;
    for (int i = 0; i < 20; ++i) text.prompt_ids.push_back(i);
    text.greedy_ids.assign(kSteps, 5);
    const auto run = [&](const char* gpu) {
      emulation::SetGpu(gpu);
      ModelUnderTest model({.model_dir = folder.path(),
                            .compute_dtype = DType::kBF16,
                            .device = "cuda",
                            .max_step_tokens = 128});
      return model.ok() ? Logprobs(model.Run(text, kSteps)) : std::vector<float>();
    };
    const std::vector<float> expected = run("sm80");
    EXPECT_EQ(run("sm86"), expected) << head_dim;
    EXPECT_FALSE(expected.empty());
  }
  emulation::SetGpu("sm90");
}
#endif

// Before any tensor is read: there are none here.
TEST(CudaModelsTest, WhatAKernelLacksIsRefusedByName) {
  const auto refused = [](const RandomModel& model, RunnerOptions options) {
    const ModelDir folder;
    folder.Write("config.json", ConfigOf(model));
    options.model_dir = folder.path();
    options.num_blocks = 4;
    options.device = "cuda";
    WaitingSink sink;
    return std::string(LoadedRunner::Create(options, &sink).status().message());
  };
  for (const int64_t head_dim : {2, 4, 12, 100, 250, 264, 4096}) {
    EXPECT_THAT(refused({.head_dim = head_dim}, {.compute_dtype = DType::kBF16}),
                testing::AllOf(testing::HasSubstr("head_dim = " + std::to_string(head_dim)),
                               testing::HasSubstr("multiples of 8 up to 256; use --device cpu")));
  }
  EXPECT_THAT(refused({}, {.compute_dtype = DType::kF32}),
              testing::HasSubstr("compute_dtype = f32: GPUs compute in bf16 or f16"));
  EXPECT_THAT(refused({}, {.compute_dtype = DType::kBF16, .kv_dtype = DType::kF16}),
              testing::HasSubstr("kv_dtype = f16: a GPU keeps K/V in fp8 or in"));
  EXPECT_THAT(refused({}, {.compute_dtype = DType::kF16, .kv_dtype = DType::kBF16}),
              testing::HasSubstr("kv_dtype = bf16: a GPU keeps K/V in fp8 or in"));
}

}  // namespace
}  // namespace baton
