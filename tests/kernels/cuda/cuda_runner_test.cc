// A whole model on the device: steps, cache, logits and what is reported of them.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "common/base/random.h"
#if !defined(BATON_CUDA_DEVICE)
#include "kernels/emulation/emulator.h"
#endif
#include "tests/kernels/cuda/random_model.h"
#include "tests/unit/common/model/decode_steps.h"
#include "tests/unit/common/model/follow_up_steps.h"
#include "tests/unit/common/model/results_harness.h"
#include "tests/unit/common/model/runner_harness.h"
#include "tests/unit/common/model/shaped_model.h"

namespace baton {
namespace {

RunnerOptions Options() {
  return {.model_dir = std::string(BATON_SOURCE_DIR) + "/deploy/models/tiny-kjv",
          .compute_dtype = DType::kBF16,
          .num_blocks = 48,
          .device = "cuda",
          .max_step_tokens = 64,
          .max_step_rows = 4};
}

// A Llama of two layers: what has to be equal is equal there if anywhere.
RunnerOptions SmallOptions(const ModelDir& folder) {
  const ModelShape shape{.family = "llama", .hidden = 72};
  folder.Write("config.json", ConfigOf(shape));
  folder.Write("model.safetensors", SafetensorsBytes(ShapedWeights(shape).tensors()));
  RunnerOptions options = Options();
  options.model_dir = folder.path();
  return options;
}

std::shared_ptr<SamplingContext> Prompt(int32_t num_tokens, float temperature = 0) {
  auto context = std::make_shared<SamplingContext>();
  Random random(1);
  for (int32_t i = 0; i < num_tokens; ++i) {
    context->prompt.push_back(static_cast<int32_t>(random.Below(211)));
  }
  context->params.temperature = temperature;
  context->params.logits_digest = true;
  context->params.num_logprobs = 2;
  return context;
}

std::vector<TokenOutput> Outputs(const RunnerOptions& options, const GenerateOptions& generate) {
  RunnerHarness harness(options);
  return Generate(harness, Prompt(37), generate).outputs;
}

TEST(CudaRunnerTest, ChunksAndPlacesOfBlocksDoNotChangeABit) {
  const ModelDir folder;
  RunnerOptions options = SmallOptions(folder);
  const auto expected = Outputs(options, {.num_tokens = 4});
  ASSERT_EQ(expected.size(), 4u);
  EXPECT_EQ(Outputs(options, {.chunk_tokens = 17, .num_tokens = 4}), expected);
  options.block_size = 8;
  EXPECT_EQ(Outputs(options, {.num_tokens = 4, .first_block = 3, .block_stride = 5}), expected);
}

// Captured with no row, replayed at any length, filled up or not.
TEST(CudaRunnerTest, GraphsGiveTheBitsOfNoGraphAndWriteNothingElse) {
  RunnerOptions options = Options();
  DecodeSteps on(options, 3);
  options.graphs = false;
  DecodeSteps off(options, 3);
  constexpr int32_t kLongPast = 3 * 512 + 7;
  for (const std::vector<int32_t>& lengths : std::vector<std::vector<int32_t>>{
           {0}, {kLongPast}, {1}, {512, kLongPast, 511}, {2, 0}}) {
    EXPECT_EQ(on.Run(lengths), off.Run(lengths)) << lengths[0] << " " << lengths.size();
  }
  EXPECT_EQ(on.Pool(), off.Pool());
}

// The device takes the tokens of the step before it; of rows that only the host can sample the step
// begins when they are there.
TEST(CudaRunnerTest, AFollowUpGivesTheBitsOfAStepThatKnowsItsTokens) {
  const ModelDir folder;
  RunnerOptions options = SmallOptions(folder);
  options.num_blocks = 96;
  options.max_step_tokens = 256;
  options.max_step_rows = 8;
  const std::vector<int32_t> num_tokens = {3, 2, 3, 3, 1, 3};
  for (const bool digests : {false, true}) {
    options.graphs = true;
    FollowUpSteps steps(options, FollowUpContexts(digests), num_tokens);
    const FollowUpSteps::Outputs expected = steps.Run(/*two=*/false);
    EXPECT_EQ(steps.Run(/*two=*/true), expected);
    EXPECT_TRUE(steps.status().ok()) << steps.status();
    options.graphs = false;
    if (!digests) {
      FollowUpSteps without(options, FollowUpContexts(digests), num_tokens);
      EXPECT_EQ(without.Run(/*two=*/true), expected);
    }
    const ModelMemory& memory = steps.runner().memory();
    EXPECT_EQ(memory.weights + memory.kv_cache + memory.workspace,
              steps.runner().device().Memory()->taken);
  }
}

// Which experts a step's tokens go to changes no launch of its graph, nor any bit of other rows.
TEST(CudaRunnerTest, GraphsOfExpertsGiveTheBitsOfNoGraphAndOfEachRowAlone) {
  for (const std::string family : {"mixtral", "qwen2_moe", "qwen3_moe"}) {
    SCOPED_TRACE(family);
    const ModelShape shape{.family = family.c_str(), .num_heads = 2, .num_kv_heads = 1,
                           .head_dim = 16, .hidden = 41, .ffn = 64, .vocab = 101,
                           .bias = family == "qwen2_moe"};
    const ModelDir folder;
    folder.Write("config.json", ConfigOf(shape));
    folder.Write("model.safetensors", SafetensorsBytes(ShapedWeights(shape).tensors()));
    RunnerOptions options = Options();
    options.model_dir = folder.path();
    DecodeSteps on(options, 5);
    options.graphs = false;
    DecodeSteps off(options, 5);
    const std::vector<int32_t> all = {9, 1, 33, 2, 64};
    for (const std::vector<int32_t>& lengths : {{3}, {17, 0, 40}, all}) {
      EXPECT_EQ(on.Run(lengths), off.Run(lengths)) << lengths.size();
    }
    EXPECT_EQ(on.Pool(), off.Pool());
    const auto outputs = on.Run(all);
    EXPECT_EQ(on.Run({9})[0], outputs[0]);
    EXPECT_EQ(off.Run({9, 1, 33})[2], outputs[2]);
    const ModelMemory& memory = on.harness().runner().memory();
    EXPECT_EQ(memory.weights + memory.kv_cache + memory.workspace,
              on.harness().runner().device().Memory()->taken);
    const int64_t layers = family == "qwen3_moe" ? 1 : 2;
    EXPECT_GT(memory.weights, layers * shape.experts * 3 * shape.hidden * shape.ffn * 2);
  }
}

#if !defined(BATON_CUDA_DEVICE)
// Each call of CUDA's waits for the device, and what it gives is rounded up.
TEST(CudaRunnerTest, MemoryIsTakenInFewPiecesHoweverManyExpertsThereAre) {
  const auto allocations = [](int experts) {
    ModelShape shape{.family = "qwen3_moe", .num_heads = 2, .num_kv_heads = 1, .head_dim = 16,
                     .hidden = 40, .ffn = 64, .vocab = 101};
    shape.experts = experts;
    const ModelDir folder;
    folder.Write("config.json", ConfigOf(shape));
    folder.Write("model.safetensors", SafetensorsBytes(ShapedWeights(shape).tensors()));
    RunnerOptions options = Options();
    options.model_dir = folder.path();
    options.graphs = false;
    const int64_t before = emulation::GetStatistics().allocations;
    RunnerHarness harness(options);
    return emulation::GetStatistics().allocations - before;
  };
  const int64_t of_few = allocations(8);
  EXPECT_LE(allocations(72), of_few + 4);  // 64 experts more, of 2 matrices.
}
#endif

#if !defined(BATON_CUDA_DEVICE)
// The product of q, k and v, rope with the cache, attention, the product of o, the tree of its
// segments with the norm, that of gate and up with the activation, that of down, its tree and norm.
TEST(CudaRunnerTest, ALayerOfALlamaIsEightLaunches) {
  const auto launches = [](int num_layers, const std::vector<int32_t>& lengths) {
    const ModelShape shape{.family = "llama", .hidden = 72, .ffn = 256, .tied = true};
    nlohmann::json config = nlohmann::json::parse(ConfigOf(shape));
    config["num_hidden_layers"] = num_layers;
    const ModelDir folder;
    folder.Write("config.json", config.dump());
    std::vector<TestTensor> tensors = ShapedWeights(shape).tensors();
    std::erase_if(tensors, [&](const TestTensor& tensor) {
      return num_layers == 1 && tensor.name.find("layers.1.") != std::string::npos;
    });
    folder.Write("model.safetensors", SafetensorsBytes(tensors));
    RunnerOptions options = Options();
    options.model_dir = folder.path();
    options.graphs = false;
    DecodeSteps steps(options, 3);
    const int64_t before = emulation::GetStatistics().kernels;
    steps.Run(lengths);
    return emulation::GetStatistics().kernels - before;
  };
  for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{9}, {40, 1, 17}}) {
    EXPECT_EQ(launches(2, lengths) - launches(1, lengths), 8);
  }
}
#endif

// 32 MiB, or more on a GPU of sm_90, for partial results of 512 keys, of 130 floats for each of 32
// heads, as of Llama 3 8B.
TEST(CudaRunnerTest, GraphsAreForWhatAttentionHasScratchMemoryFor) {
  const Processors gpu = *MakeDevice({.device = "cuda"});
  const ModelNeeds llama{.num_heads = 32, .num_kv_heads = 8, .head_dim = 128};
  const ModelNeeds wide{.num_heads = 512, .head_dim = 256};
#if defined(BATON_CUDA_DEVICE)
  EXPECT_GE(gpu.device->LongestReplay(128, llama), 15 * 512);
  EXPECT_GE(gpu.device->LongestReplay(128, wide), 512);
#else
  EXPECT_EQ(gpu.device->LongestReplay(1, llama), 2016 * 512);
  EXPECT_EQ(gpu.device->LongestReplay(8, llama), 252 * 512);
  EXPECT_EQ(gpu.device->LongestReplay(128, llama), 15 * 512);
  EXPECT_EQ(gpu.device->LongestReplay(128, wide), 512);  // One partial needs none.
#endif
}

#if !defined(BATON_CUDA_DEVICE)
// Graphs are captured for the longest sequences, of which the partial results of attention would
// not fit into its scratch memory: 64 heads of 256 columns, 131,072 tokens. A step of a tenth of
// that still has a block for each partial, and the kernels that fold them.
TEST(CudaRunnerTest, GraphsOfAModelOfLongSequencesLaunchWhatAPassDoes) {
  const ModelDir folder;
  WriteRandomModel({.head_dim = 256, .num_heads = 64, .max_len = 131072}, folder);
  RunnerOptions options = Options();
  options.model_dir = folder.path();
  const auto kernels = [&](bool graphs) {
    options.graphs = graphs;
    DecodeSteps steps(options, 4);
    const int64_t before = emulation::GetStatistics().kernels;
    steps.Run({1100, 3, 40, 600});
    return emulation::GetStatistics().kernels - before;
  };
  const int64_t of_graph = kernels(true);
  EXPECT_EQ(of_graph, kernels(false));
  EXPECT_GT(of_graph, 20);
}
#endif

// Of tiny-kjv's 3.2 million parameters, in bf16; with the 32 MiB that attention may use,
// or a 512th of a GPU's memory.
TEST(CudaRunnerTest, MemoryIsCountedByWhatTakesIt) {
  RunnerOptions options = Options();
  options.graphs = false;
  RunnerHarness harness(options);
  LoadedRunner& runner = harness.runner();
  const ModelMemory& memory = runner.memory();
  const DeviceMemory device = *runner.device().Memory();
  EXPECT_EQ(memory.total, device.total);
  EXPECT_EQ(memory.kv_cache, 48 * BlockBytes(runner.info().layout));
  EXPECT_EQ(memory.weights + memory.kv_cache + memory.workspace, device.taken);
  EXPECT_GT(memory.weights, 4'000'000);
  EXPECT_LT(memory.weights, 8'000'000);
  EXPECT_GT(memory.workspace, 32 << 20);
  EXPECT_LT(memory.workspace, (48 << 20) + memory.total / 512);
}

// A CPU that rounds to bf16 in the same places says nearly the same.
TEST(CudaRunnerTest, LogProbabilitiesAreNearTheCpus) {
  RunnerOptions cpu = Options();
  cpu.device = "cpu";
  const auto expected = Outputs(cpu, {.num_tokens = 4});
  GenerateOptions generate{.num_tokens = 4};
  for (const TokenOutput& output : expected) generate.forced.push_back(output.token);
  const auto outputs = Outputs(Options(), generate);
  for (size_t i = 0; i < expected.size(); ++i) {
    // Of the likeliest token, whichever that is.
    EXPECT_NEAR(outputs[i].top[0].logprob, expected[i].top[0].logprob, 0.1) << i;
  }
}

// Equal logits, every way to choose or score: the CPU's words, whoever has chosen them.
TEST(CudaRunnerTest, EqualLogitsGiveEqualTokensAndScores) {
  const Processors gpu = *MakeDevice({.device = "cuda"});
  const auto results = *StepResults::Create(*gpu.device, *gpu.host, ResultsProblem::info(),
                                            ResultsProblem::kCapacity);
  for (const int32_t rows : {40, 7, 26}) {
    ResultsProblem problem(static_cast<uint64_t>(rows), rows);
    problem.row(1)[17] = NAN;
    EXPECT_EQ(Difference(Read(*results, *gpu.device, problem), ReadOnCpu(problem)), "") << rows;
  }
}

}  // namespace
}  // namespace baton
