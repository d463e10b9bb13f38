#include "common/model/load_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/common/model/runner_harness.h"

#if defined(__SANITIZE_ADDRESS__)
// Memory that cannot be had is refused, as without the sanitizer.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1:max_allocation_size_mb=65536";
}
#endif

namespace baton {
namespace {

RunnerOptions TinyModel() {
  return {.model_dir = BATON_SOURCE_DIR "/deploy/models/tiny-kjv", .num_blocks = 256};
}

TEST(LoadModelTest, InfoDescribesTheModelAndItsNumerics) {
  RunnerHarness f32(TinyModel());
  const ModelInfo& info = f32.runner().info();
  EXPECT_EQ(info.vocab_size, 4096);
  EXPECT_EQ(info.max_model_len, 2048);
  EXPECT_THAT(info.eos_token_ids, testing::Contains(1));
  EXPECT_EQ(NumLayers(info.layout), 6);
  EXPECT_EQ(info.layout.groups[0].num_kv_heads, 2);
  EXPECT_EQ(info.layout.groups[0].k_dim, 32);
  EXPECT_EQ(info.numerics_id, "cpu-16lane.1 compute=f32 kv=f32 kv_scale=1 fold=tree8 sampler.2");

  RunnerOptions other = TinyModel();
  other.compute_dtype = DType::kBF16;
  other.num_threads = 2;
  other.kernels = "portable";
  other.max_model_len = 100;
  RunnerHarness bf16(other);
  EXPECT_EQ(bf16.runner().info().max_model_len, 100);
  EXPECT_EQ(bf16.runner().info().numerics_id,
            "cpu-16lane.1 compute=bf16 kv=bf16 kv_scale=1 fold=tree8 sampler.2");
  EXPECT_EQ(bf16.runner().info().model_digest, info.model_digest);
}

TEST(LoadModelTest, RefusesOptionsByName) {
  RecordingSink sink;
  const auto refused = [&](auto change, const std::string& message) {
    RunnerOptions options = TinyModel();
    change(options);
    const absl::Status status = LoadedRunner::Create(options, &sink).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(message));
  };
  refused([](auto& o) { o.compute_dtype = DType::kF16; }, "compute_dtype = f16");
  refused([](auto& o) { o.max_model_len = -1; }, "max_model_len = -1: must be at least 0");
  refused([](auto& o) { o.block_size = 0; }, "block_size = 0");
  refused([](auto& o) { o.num_blocks = 0; }, "num_blocks = 0");
  refused([](auto& o) { o.max_step_tokens = 0; }, "max_step_tokens = 0");
  refused([](auto& o) { o.max_step_tokens = 1 << 30; },
          "for steps of 1073741824 tokens: cannot allocate");
  refused([](auto& o) { o.max_step_tokens = 1 << 30; }, "lower --chunk-tokens");
  refused([](auto& o) { o.max_step_rows = 0; }, "max_step_rows = 0");
  refused([](auto& o) { o.swap_blocks = 1 << 30; }, "1073741824 KV blocks");
  refused([](auto& o) { o.num_threads = 0; }, "threads = 0");
  refused([](auto& o) { o.compute_nice = 20; }, "nice = 20");
  refused([](auto& o) { o.kernels = "sse9"; }, "kernels = \"sse9\"");
  refused([](auto& o) { o.model_dir += "/missing"; }, "config.json");
}

// A CPU stands for any device here: nothing of its memory is counted as taken.
TEST(LoadModelTest, ThePoolIsWhatTheFractionLeavesForIt) {
  RecordingSink sink;
  Processors processors = *MakeDevice({});
  const auto load = [&](double fraction) {
    ModelOptions options = TinyModel().model();
    options.num_blocks = 0;
    options.memory_fraction = fraction;
    options.swap_blocks = -1;
    Device* const devices[] = {processors.device.get()};
    return LoadModel(options, devices, *processors.host, &sink);
  };
  const int64_t total = processors.device->Memory()->total;
  const auto model = load(0.02);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto share = static_cast<int64_t>(0.02 * static_cast<double>(total));
  const int64_t left = share - total / 64;
  const LoadedRank& rank = model->ranks[0];
  EXPECT_EQ(rank.cache->num_blocks(), left / BlockBytes(model->info.layout));
  EXPECT_EQ(rank.swap->num_blocks(), rank.cache->num_blocks());
  EXPECT_EQ(rank.memory.total, total);
  EXPECT_EQ(rank.memory.kv_cache, 0);
  EXPECT_THAT(load(1e-9).status().ToString(),
              testing::AllOf(testing::HasSubstr("RESOURCE_EXHAUSTED"),
                             testing::HasSubstr("MiB of GPU memory are missing"),
                             testing::HasSubstr(absl::StrCat((total / 64 + (1 << 20) - 1) >> 20,
                                                             " MiB for graphs")),
                             testing::HasSubstr("lower --max-model-len, --chunk-tokens or"),
                             testing::HasSubstr("--gpu-graphs off")));
  EXPECT_THAT(load(1).status().ToString(),
              testing::AllOf(testing::HasSubstr("RESOURCE_EXHAUSTED"),
                             testing::HasSubstr("other programs use this GPU")));
}

TEST(LoadModelTest, LayersWithAWindowAreGroupsBesideThoseWithout) {
  const auto windows_of = [](const std::string& model) {
    RunnerHarness harness(
        {.model_dir = std::string(BATON_SOURCE_DIR) + "/tests/golden/models/" + model,
         .num_blocks = 4});
    std::vector<int32_t> windows;
    for (const KvWindow& window : WindowsOf(harness.runner().info().layout)) {
      windows.push_back(window.tokens);
    }
    EXPECT_EQ(harness.runner().cache().num_blocks(), 4 * std::ssize(windows));
    return windows;
  };
  EXPECT_THAT(windows_of("mistral-window"), testing::ElementsAre(16));
  EXPECT_THAT(windows_of("qwen2-window-layers"), testing::ElementsAre(0, 13));
}

TEST(LoadModelTest, MoreBlocksThanGroupsCanCountAreRefusedByOption) {
  RecordingSink sink;
  const auto loaded = LoadedRunner::Create(
      {.model_dir = std::string(BATON_SOURCE_DIR) + "/tests/golden/models/gemma2",
       .num_blocks = INT32_MAX / 2},
      &sink);
  EXPECT_THAT(loaded.status().ToString(),
              testing::AllOf(testing::HasSubstr("groups of layers are more than"),
                             testing::HasSubstr("lower --num-blocks")));
}

}  // namespace
}  // namespace baton
