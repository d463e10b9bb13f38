// The same bits whatever the number of ranks: logits of every token, of random models of which no
// two numbers are alike, in chunks, in batches, and by way of the host's memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/common/checkpoint/model_dir.h"
#include "tests/unit/common/model/runner_harness.h"
#include "tests/unit/common/model/shaped_model.h"

namespace baton {
namespace {

const ModelShape kShapes[] = {
    {.name = "gqa", .family = "llama"},
    {.name = "mha", .family = "llama", .num_kv_heads = 8, .hidden = 56, .vocab = 203},
    {.name = "mqa_biases", .family = "llama", .num_kv_heads = 1, .bias = true},
    {.name = "qk_norms", .family = "qwen3", .num_heads = 16, .num_kv_heads = 4, .head_dim = 48,
     .hidden = 88, .ffn = 512, .vocab = 227, .bias = true},
    {.name = "tied_qkv_biases", .family = "qwen2", .num_kv_heads = 4, .hidden = 104, .vocab = 219,
     .bias = true, .tied = true},
    {.name = "window", .family = "mistral", .num_kv_heads = 2, .head_dim = 64, .ffn = 768,
     .vocab = 239, .window = 11},
    {.name = "four_segments", .family = "qwen3", .num_heads = 12, .num_kv_heads = 4,
     .head_dim = 32, .hidden = 76, .ffn = 384, .vocab = 199, .tied = true, .sizes = {2, 4}},
    {.name = "two_segments", .family = "llama", .num_heads = 6, .num_kv_heads = 2, .hidden = 96,
     .ffn = 512, .vocab = 193, .bias = true, .sizes = {2}},
    {.name = "one_kv_head_of_two", .family = "qwen2", .num_heads = 8, .num_kv_heads = 2,
     .head_dim = 40, .hidden = 80, .ffn = 320, .vocab = 197, .bias = true, .sizes = {2}},
    {.name = "opt", .family = "opt", .num_kv_heads = 8, .hidden = 256, .bias = true, .tied = true},
    {.name = "opt_post_norm", .family = "opt", .num_heads = 4, .num_kv_heads = 4, .hidden = 128,
     .vocab = 205, .bias = true, .other = true, .sizes = {2, 4}},
    {.name = "neox", .family = "gpt_neox", .num_kv_heads = 8, .hidden = 256, .vocab = 201,
     .bias = true},
    {.name = "neox_sequential", .family = "gpt_neox", .num_heads = 4, .num_kv_heads = 4,
     .head_dim = 48, .hidden = 192, .ffn = 384, .bias = true, .other = true, .sizes = {2}},
    {.name = "bloom", .family = "bloom", .num_heads = 12, .num_kv_heads = 12, .hidden = 384,
     .ffn = 1536, .vocab = 209, .bias = true, .tied = true, .sizes = {2, 4}},
    {.name = "bloom_normed_residual", .family = "bloom", .num_kv_heads = 8, .hidden = 256,
     .ffn = 1024, .vocab = 213, .bias = true, .tied = true, .other = true},
    {.name = "gemma2", .family = "gemma2", .num_kv_heads = 4, .vocab = 207, .tied = true,
     .window = 11},
    {.name = "gemma3", .family = "gemma3_text", .num_kv_heads = 1, .head_dim = 64, .hidden = 88,
     .vocab = 215, .window = 13},
    {.name = "phi3", .family = "phi3", .num_heads = 12, .num_kv_heads = 4, .hidden = 384,
     .vocab = 221, .window = 17, .sizes = {2, 4}},
    {.name = "mixtral", .family = "mixtral", .vocab = 223},
    {.name = "qwen3_moe", .family = "qwen3_moe", .num_kv_heads = 4, .vocab = 225, .tied = true},
    {.name = "qwen2_moe", .family = "qwen2_moe", .num_kv_heads = 8, .ffn = 128, .vocab = 229,
     .bias = true, .sizes = {2, 4}},
};

class TpBitsTest : public testing::TestWithParam<ModelShape> {
 protected:
  TpBitsTest() {
    folder_.Write("config.json", ConfigOf(GetParam()));
    folder_.Write("model.safetensors", SafetensorsBytes(ShapedWeights(GetParam()).tensors()));
  }

  RunnerOptions Options(int tp, DType compute) const {
    return {.model_dir = folder_.path(),
            .compute_dtype = compute,
            .block_size = 8,
            .num_blocks = 64,
            .swap_blocks = 32,
            .tp = tp,
            .max_step_tokens = 96};
  }

  static std::shared_ptr<SamplingContext> Prompt(int32_t length, int32_t salt) {
    auto context = std::make_shared<SamplingContext>();
    const auto vocab = static_cast<int32_t>(GetParam().vocab);
    // The first and the last tokens of every rank's part are among them.
    for (int32_t i = 0; i < length; ++i) {
      context->prompt.push_back((i * 29 + salt * 7 + (i % 3 == 0 ? vocab - 1 : 0)) % vocab);
    }
    context->params.logits_digest = true;
    context->params.num_logprobs = 3;
    return context;
  }

  std::vector<uint64_t> BitsOf(int tp, DType compute) { return BitsOf(Options(tp, compute)); }

  // Every digest and every score that these steps give, in one order.
  std::vector<uint64_t> BitsOf(const RunnerOptions& options) {
    RunnerHarness harness(options);
    std::vector<uint64_t> bits;
    const auto add = [&](const Generated& generated) {
      for (const TokenOutput& output : generated.outputs) {
        bits.push_back(output.logits_digest);
        bits.push_back(static_cast<uint64_t>(output.token));
      }
      for (const PromptLogprob& score : generated.prompt_logprobs) {
        bits.push_back(std::bit_cast<uint32_t>(score.logprob));
      }
    };
    auto scored = Prompt(75, 1);
    scored->params.num_prompt_logprobs = 1;  // More rows than a slice has.
    add(Generate(harness, scored, {.num_tokens = 3}));
    add(Generate(harness, Prompt(61, 2), {.chunk_tokens = 7, .num_tokens = 4, .first_block = 20}));
    AddBatch(harness, bits);
    return bits;
  }

  // Prompts and decodes side by side; the first sequence leaves its blocks and comes to others.
  static void AddBatch(RunnerHarness& harness, std::vector<uint64_t>& bits) {
    const std::shared_ptr<SamplingContext> prompts[] = {Prompt(9, 3), Prompt(17, 4),
                                                        Prompt(30, 5)};
    const auto row = [&](int i, int32_t computed, int32_t end, BlockId first, bool sample) {
      const std::vector<int32_t>& prompt = prompts[i]->prompt;
      return StepRow{.tokens = {prompt.begin() + computed, prompt.begin() + end},
                     .context_len = computed,
                     .block_table = harness.Blocks(end, first),
                     .sample = sample,
                     .sampling = prompts[i]};
    };
    const auto step = [&](std::vector<StepRow> rows) {
      const StepDone done = harness.Step(std::move(rows));
      ASSERT_TRUE(done.status.ok()) << done.status;
      for (const RowResult& result : done.rows) bits.push_back(result.output.logits_digest);
    };
    step({row(0, 0, 8, 30, false)});
    step({row(1, 0, 16, 34, true), row(2, 0, 29, 40, true)});
    // Each group of layers has a block of it.
    std::vector<BlockMove> out, in;
    for (const BlockId at : harness.Blocks(1)) {
      const BlockId at_host = at / 2;  // As many parts, of half the size.
      out.push_back({.source = at + 30, .destination = at_host + 3});
      in.push_back({.source = at_host + 3, .destination = at + 50});
    }
    ASSERT_TRUE(harness.Move(out, {}).status.ok());
    step({row(1, 16, 17, 34, true), row(2, 29, 30, 40, true)});
    step({row(2, 0, 30, 30, true)});  // Over what was there.
    ASSERT_TRUE(harness.Move({}, in).status.ok());
    step({row(0, 8, 9, 50, true)});
  }

  ModelDir folder_;
};

INSTANTIATE_TEST_SUITE_P(Models, TpBitsTest, testing::ValuesIn(kShapes),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(TpBitsTest, EveryNumberOfRanksGivesTheBitsOfOne) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const std::vector<uint64_t> one = BitsOf(1, compute);
    ASSERT_EQ(one.size(), 2u * (3 + 4) + 74 + 7);
    for (const int size : GetParam().sizes) {
      EXPECT_EQ(BitsOf(size, compute), one) << "tp " << size << " " << ToString(compute);
    }
  }
}

TEST_P(TpBitsTest, BlocksThreadsAndStepsOfAnySizeGiveTheBitsOfOne) {
  const std::vector<uint64_t> one = BitsOf(1, DType::kF32);
  RunnerOptions options = Options(1, DType::kF32);
  options.block_size = 16;
  options.num_threads = 3;
  EXPECT_EQ(BitsOf(options), one);
  options.kernels = "portable";
  EXPECT_EQ(BitsOf(options), one);
}

TEST_P(TpBitsTest, ChunksAndWantedTokensLeaveTheBitsOfAnAnswer) {
  const auto digests = [&](int32_t chunk_tokens, int32_t scored, DType compute) {
    RunnerHarness harness(Options(1, compute));
    const auto prompt = Prompt(61, 6);
    if (scored > 0) prompt->params.num_prompt_logprobs = scored;
    std::vector<uint64_t> out;
    const Generated generated =
        Generate(harness, prompt, {.chunk_tokens = chunk_tokens, .num_tokens = 4});
    for (const TokenOutput& output : generated.outputs) out.push_back(output.logits_digest);
    return out;
  };
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const std::vector<uint64_t> whole = digests(96, 0, compute);
    ASSERT_EQ(whole.size(), 4u);
    for (const int32_t chunk_tokens : {1, 7, 60}) {
      EXPECT_EQ(digests(chunk_tokens, 0, compute), whole) << chunk_tokens;
    }
    EXPECT_EQ(digests(96, 1, compute), whole);
  }
}

TEST_P(TpBitsTest, ASizeThatDoesNotDivideIsRefused) {
  RecordingSink sink;
  for (const int size : {3, 4, 8}) {
    const bool fits = std::ranges::count(GetParam().sizes, size) > 0;
    const auto runner = LoadedRunner::Create(Options(size, DType::kF32), &sink);
    EXPECT_EQ(runner.ok(), fits) << size;
    if (fits) continue;
    EXPECT_THAT(std::string(runner.status().message()),
                testing::AllOf(testing::HasSubstr("tp = " + std::to_string(size)),
                               testing::HasSubstr("this model allows 1, 2")));
  }
}

// A part of the weights, but for whole panels of rows and for the KV heads that several ranks hold.
TEST_P(TpBitsTest, ARankHoldsItsPart) {
  RunnerHarness one(Options(1, DType::kF32));
  const int64_t weights = one.runner().ranks()[0].weight_bytes;
  const ModelShape& shape = GetParam();
  const int64_t kv = 2 * 2 * shape.num_kv_heads * shape.head_dim * shape.hidden * 4;
  const int64_t panels = 2 * 32 * shape.hidden * 4;  // Of the embedding and of the output layer.
  // What each rank has whole: positions, and the matrices beside the embedding; routers.
  const std::string family = shape.family;
  const bool experts = family.ends_with("moe") || family == "mixtral";
  const int64_t whole_rows = family == "opt" ? 256 + 2 * 24 : experts ? 2 * 2 * 32 : 0;
  const int64_t whole = whole_rows * shape.hidden * 4;
  const int64_t block = BlockBytes(one.runner().info().layout);
  for (const int size : GetParam().sizes) {
    RunnerHarness ranks(Options(size, DType::kF32));
    EXPECT_EQ(ranks.runner().info().layout, one.runner().info().layout);
    EXPECT_EQ(ranks.runner().info().numerics_id, one.runner().info().numerics_id);
    const int64_t kv_parts = std::min<int64_t>(size, GetParam().num_kv_heads);
    const int64_t divided = (weights - kv) / size + kv / kv_parts;
    for (const LoadedRank& rank : ranks.runner().ranks()) {
      EXPECT_LE(rank.weight_bytes, divided * 115 / 100 + panels + whole) << size;
      EXPECT_EQ(BlockBytes(rank.cache->layout()), block / kv_parts) << size;
      EXPECT_EQ(BlockBytes(rank.swap->layout()), block / kv_parts) << size;
      EXPECT_EQ(rank.cache->num_blocks(), 64 * NumGroups(rank.cache->layout()));
    }
  }
}

}  // namespace
}  // namespace baton
