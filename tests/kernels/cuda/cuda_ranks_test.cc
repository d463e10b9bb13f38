// Tensor-parallel ranks on GPUs of their own, and a single one on a GPU that is not the first.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <future>
#include <mutex>

#include "kernels/emulation/cuda_api.h"
#include "kernels/emulation/emulator.h"
#include "kernels/emulation/graph.h"
#include "tests/kernels/cuda/random_model.h"
#include "tests/unit/common/model/runner_harness.h"
#include "tests/unit/common/model/shaped_model.h"

namespace baton {
namespace {

// Sums of o and down in four segments: three sizes of a group cut them.
const RandomModel kModels[] = {
    {.head_dim = 32, .num_heads = 4, .num_kv_heads = 2, .hidden = 44, .ffn = 128, .vocab = 101},
    {.head_dim = 32, .num_heads = 4, .num_kv_heads = 1, .hidden = 40, .ffn = 384, .vocab = 99,
     .bias = false, .tied = true},
};

class CudaRanksTest : public testing::Test {
 protected:
  CudaRanksTest() {
    emulation::ResetDevice();
    emulation::SetDevices(4);
  }
  ~CudaRanksTest() override {
    emulation::ResetDevice();
    emulation::SetGpu("sm90");
    emulation::SetDevices(1);
    cudaSetDevice(0);
  }

  RunnerOptions Options(int tp, const std::string& device = "cuda") const {
    return {.model_dir = folder_.path(),
            .compute_dtype = DType::kBF16,
            .block_size = 8,
            .num_blocks = 24,
            .swap_blocks = 8,
            .device = device,
            .tp = tp,
            .max_step_tokens = 160,
            .max_step_rows = 1};
  }

  static std::shared_ptr<SamplingContext> Prompt(int32_t length) {
    auto context = std::make_shared<SamplingContext>();
    // Tokens of all ranks' parts.
    for (int32_t i = 0; i < length; ++i) context->prompt.push_back(i * 29 % 97);
    context->params.logits_digest = true;
    return context;
  }

  static void Add(const Generated& generated, std::vector<uint64_t>& bits) {
    for (const TokenOutput& output : generated.outputs) bits.push_back(output.logits_digest);
    for (const PromptLogprob& score : generated.prompt_logprobs) {
      bits.push_back(std::bit_cast<uint32_t>(score.logprob));
    }
  }

  static std::vector<uint64_t> FewBitsOf(RunnerHarness& harness) {
    std::vector<uint64_t> bits;
    Add(Generate(harness, Prompt(9), {.chunk_tokens = 6, .num_tokens = 3}), bits);
    return bits;
  }

  // At each of the shape's sizes.
  void ExpectBitsOfOne(const ModelShape& shape) {
    SCOPED_TRACE(shape.name);
    folder_.Write("config.json", ConfigOf(shape));
    folder_.Write("model.safetensors", SafetensorsBytes(ShapedWeights(shape).tensors()));
    const auto bits_of = [&](int size) {
      RunnerHarness harness(Options(size));
      return FewBitsOf(harness);
    };
    const std::vector<uint64_t> one = bits_of(1);
    for (const int size : shape.sizes) EXPECT_EQ(bits_of(size), one) << size;
  }

  // Of steps that decode, of one by way of the host, and of scores in two slices.
  static std::vector<uint64_t> BitsOf(const RunnerOptions& options) {
    RunnerHarness harness(options);
    std::vector<uint64_t> bits = FewBitsOf(harness);
    EXPECT_TRUE(harness.Move({{.source = 0, .destination = 3}}, {}).status.ok());
    EXPECT_TRUE(harness.Move({}, {{.source = 3, .destination = 7}}).status.ok());
    const auto prompt = Prompt(9);
    const StepDone done = harness.Step({{.tokens = {prompt->prompt[8]},
                                         .context_len = 8,
                                         .block_table = {7, 8},
                                         .sample = true,
                                         .sampling = prompt}});
    EXPECT_TRUE(done.status.ok()) << done.status;
    bits.push_back(done.rows[0].output.logits_digest);
    auto scored = Prompt(135);
    scored->params.num_prompt_logprobs = 1;
    Add(Generate(harness, scored, {.num_tokens = 1}), bits);
    return bits;
  }

  static int64_t MemoryTaken(int device) {
    size_t free_bytes = 0, total = 0;
    EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
    EXPECT_EQ(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
    return static_cast<int64_t>(total - free_bytes);
  }

  ModelDir folder_;
};

TEST_F(CudaRanksTest, EveryNumberOfRanksGivesTheBitsOfOne) {
  for (const RandomModel& model : kModels) {
    WriteRandomModel(model, folder_);
    const std::vector<uint64_t> one = BitsOf(Options(1));
    ASSERT_EQ(one.size(), 3u + 1 + 1 + 134);
    EXPECT_EQ(one[3], one[0]);
    for (const int size : {2, 4}) EXPECT_EQ(BitsOf(Options(size)), one) << size;
  }
}

// Slopes and biases by head, positions whole on each rank, norms behind the blocks, blocks side by
// side.
TEST_F(CudaRanksTest, FeaturesOfOtherFamiliesGiveTheBitsOfOneRank) {
  const ModelShape shapes[] = {
      {.name = "bloom", .family = "bloom", .num_heads = 4, .num_kv_heads = 4, .head_dim = 16,
       .hidden = 64, .ffn = 256, .vocab = 101, .bias = true, .tied = true},
      {.name = "opt", .family = "opt", .num_heads = 4, .num_kv_heads = 4, .head_dim = 16,
       .hidden = 64, .ffn = 64, .vocab = 99, .bias = true, .other = true},
      {.name = "neox", .family = "gpt_neox", .num_heads = 2, .num_kv_heads = 2, .head_dim = 32,
       .hidden = 64, .ffn = 64, .vocab = 103, .bias = true},
  };
  for (const ModelShape& shape : shapes) {
    SCOPED_TRACE(shape.name);
    folder_.Write("config.json", ConfigOf(shape));
    folder_.Write("model.safetensors", SafetensorsBytes(ShapedWeights(shape).tensors()));
    EXPECT_EQ(BitsOf(Options(2)), BitsOf(Options(1)));
  }
}

// Every size that divides their heads and MLPs: one rank with a KV head that others have too, norms
// of q and k, windows, fused matrices of which each rank has rows of each part.
TEST_F(CudaRanksTest, FamiliesGiveTheBitsOfOneRankAtEverySize) {
  emulation::SetDevices(8);
  const ModelShape shapes[] = {
      {.name = "bloom",
       .family = "bloom",
       .num_kv_heads = 8,
       .hidden = 256,
       .ffn = 1024,
       .vocab = 101,
       .bias = true,
       .tied = true},
      {.name = "opt",
       .family = "opt",
       .num_kv_heads = 8,
       .hidden = 256,
       .vocab = 99,
       .bias = true,
       .tied = true},
      {.name = "neox",
       .family = "gpt_neox",
       .num_kv_heads = 8,
       .hidden = 256,
       .vocab = 103,
       .bias = true},
      {.name = "qwen3", .family = "qwen3", .hidden = 44, .vocab = 97, .bias = true},
      {.name = "gemma2",
       .family = "gemma2",
       .num_kv_heads = 4,
       .hidden = 40,
       .vocab = 107,
       .tied = true,
       .window = 6},
      {.name = "gemma3",
       .family = "gemma3_text",
       .num_kv_heads = 1,
       .hidden = 48,
       .vocab = 109,
       .window = 7},
      {.name = "phi3",
       .family = "phi3",
       .num_kv_heads = 4,
       .hidden = 256,
       .vocab = 113,
       .window = 9},
  };
  for (ModelShape shape : shapes) {
    if (std::getenv("BATON_NIGHTLY") == nullptr) shape.sizes = {4};  // Of what the others do too.
    ExpectBitsOfOne(shape);
  }
}

// Of every expert each rank has a part; the sums of a token's experts are one tree.
TEST_F(CudaRanksTest, ExpertsGiveTheBitsOfOneRank) {
  emulation::SetDevices(8);
  const ModelShape shapes[] = {
      {.name = "mixtral", .family = "mixtral", .hidden = 44, .vocab = 101},
      {.name = "qwen2_moe",
       .family = "qwen2_moe",
       .num_heads = 4,
       .hidden = 40,
       .ffn = 128,
       .vocab = 99,
       .bias = true,
       .sizes = {2, 4}},
      {.name = "qwen3_moe",
       .family = "qwen3_moe",
       .num_heads = 4,
       .hidden = 41,
       .ffn = 128,
       .vocab = 103,
       .sizes = {2, 4}},
  };
  for (const ModelShape& shape : shapes) ExpectBitsOfOne(shape);
}

// One graph over all of them, of which each has its memory.
TEST_F(CudaRanksTest, DecodeStepsOfRanksAreGraphsWithTheSameBits) {
  WriteRandomModel(kModels[0], folder_);
  RunnerOptions options = Options(1);
  options.max_step_rows = 2;
  options.graphs = false;
  const auto decode = [&](int size, bool graphs, std::vector<int64_t>& taken) {
    options.tp = size;
    options.graphs = graphs;
    RunnerHarness harness(options);
    for (int device = 0; device < size; ++device) taken.push_back(MemoryTaken(device));
    return FewBitsOf(harness);
  };
  std::vector<int64_t> unused;
  const std::vector<uint64_t> one = decode(1, false, unused);
  for (const int size : {2, 4}) {
    std::vector<int64_t> off, on;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      emulation::SetSeed(seed);
      EXPECT_EQ(decode(size, true, on), one) << size << " " << seed;
    }
    EXPECT_EQ(decode(size, false, off), one) << size;
    for (int device = 0; device < size; ++device) {
      EXPECT_EQ(on[device] - off[device], static_cast<int64_t>(2 * emulation::Graph::kBytes));
    }
  }
}

TEST_F(CudaRanksTest, AGpuThatIsNotTheFirstHoldsAndComputesAll) {
  WriteRandomModel(kModels[0], folder_);
  std::vector<uint64_t> first;
  int64_t taken = 0;
  {
    RunnerHarness harness(Options(1));
    first = FewBitsOf(harness);
    taken = MemoryTaken(0);
    EXPECT_GT(taken, 32 << 20);
  }
  EXPECT_EQ(MemoryTaken(0), 0);
  {
    RunnerHarness harness(Options(1, "cuda:2"));
    EXPECT_EQ(FewBitsOf(harness), first);
    EXPECT_EQ(MemoryTaken(2), taken);
    for (const int other : {0, 1, 3}) EXPECT_EQ(MemoryTaken(other), 0) << other;
  }
  EXPECT_EQ(MemoryTaken(2), 0);
}

TEST_F(CudaRanksTest, RanksHaveTheGpusFromTheChosenOneOn) {
  WriteRandomModel(kModels[0], folder_);
  RunnerHarness one(Options(1, "cuda:3"));
  RunnerHarness harness(Options(2, "cuda:1"));
  EXPECT_EQ(FewBitsOf(harness), FewBitsOf(one));
  for (const int device : {1, 2, 3}) EXPECT_GT(MemoryTaken(device), 32 << 20);
  EXPECT_EQ(MemoryTaken(0), 0);
}

TEST_F(CudaRanksTest, GpusThatCannotBeAGroupAreRefusedByName) {
  WriteRandomModel(kModels[0], folder_);
  const auto refusal = [&](const std::string& device) {
    RecordingSink sink;
    return std::string(LoadedRunner::Create(Options(2, device), &sink).status().message());
  };
  EXPECT_EQ(refusal("cuda:3"),
            "tp = 2: each rank takes a GPU of its own, from cuda:3 on, and there are 4; on the CPU "
            "all share its cores, --device cpu");
  EXPECT_THAT(refusal("cuda:7"), testing::StartsWith("device = cuda:7: must be below 4"));
  emulation::SetDevices(4, /*peers=*/false);
  EXPECT_EQ(refusal("cuda:1"),
            "tp = 2: cuda:1 cannot reach the memory of cuda:2: see nvidia-smi topo -p2p r for "
            "GPUs that can, or use --tp 1");
  emulation::SetDevices(4);
  emulation::SetGpu(2, "sm80");
  EXPECT_EQ(refusal("cuda:2"),
            "tp = 2: rank 0 computes as cuda-emulated-sm80.1, rank 1 as cuda-emulated-sm90.1: all "
            "must be of one kind; choose neighbouring GPUs by --device cuda:N");
  EXPECT_EQ(refusal("cuda:0"), "");
}

// In the one rank's kernel or in the other's, early and late in a step.
TEST_F(CudaRanksTest, ALostGpuEndsAllRanksOnce) {
  WriteRandomModel(kModels[0], folder_);
  for (const int kernel : {1, 8, 21, 34}) {
    RecordingSink sink;
    std::mutex mutex;
    std::vector<absl::Status> lost;
    std::promise<void> is_lost;
    {
      auto runner = LoadedRunner::Create(Options(2), &sink, [&](const absl::Status& status) {
        const std::lock_guard lock(mutex);
        lost.push_back(status);
        if (lost.size() == 1) is_lost.set_value();
      });
      ASSERT_TRUE(runner.ok()) << runner.status();
      emulation::LoseInKernel(kernel);
      auto plan = std::make_shared<StepPlan>();
      const auto prompt = Prompt(5);
      plan->rows = {{.tokens = prompt->prompt, .block_table = {0}, .sample = true,
                     .sampling = prompt}};
      (*runner)->Start(plan);
      is_lost.get_future().wait();
    }
    ASSERT_EQ(lost.size(), 1u) << kernel;
    EXPECT_THAT(std::string(lost[0].message()), testing::HasSubstr("the GPU is lost"));
    EXPECT_FALSE(sink.HasStep()) << kernel;
    emulation::ResetDevice();
  }
}

}  // namespace
}  // namespace baton
