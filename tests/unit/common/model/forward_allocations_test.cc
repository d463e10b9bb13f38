// A forward pass allocates nothing once its room has grown. Counts the allocations of this whole
// test program, which is not part of sanitizer builds: those bring their own operator new.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <numeric>

#include "common/checkpoint/model_files.h"
#include "common/model/transformer.h"
#include "kernels/make_device.h"

namespace {
std::atomic<int64_t> num_allocations{0};

void* Count(void* p) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (p == nullptr) std::abort();
  return p;
}
}  // namespace

// GCC does not see that all of a pair are replaced.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(size_t size) { return Count(std::malloc(size)); }
void* operator new(size_t size, std::align_val_t alignment) {
  const auto align = static_cast<size_t>(alignment);
  return Count(std::aligned_alloc(align, (size + align - 1) / align * align));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }

namespace baton {
namespace {

constexpr int32_t kBlockSize = 16;

// One new chunk per sequence: sequence s has context[s] tokens in the cache and computes count[s].
StepPlan PlanOf(const std::vector<int32_t>& context, const std::vector<int32_t>& count) {
  StepPlan plan;
  for (size_t s = 0; s < context.size(); ++s) {
    StepRow row{.context_len = context[s],
                .block_table = std::vector<BlockId>(64),
                .sample = true,
                .sampling = std::make_shared<SamplingContext>()};
    std::iota(row.block_table.begin(), row.block_table.end(), static_cast<BlockId>(s) * 64);
    for (int32_t i = 0; i < count[s]; ++i) row.tokens.push_back(5 + (context[s] + i) % 90);
    plan.rows.push_back(std::move(row));
  }
  return plan;
}

TEST(ForwardAllocationsTest, AStepAllocatesNothingAfterTheFirst) {
  const ModelFiles files =
      *LoadModelFiles(std::string(BATON_SOURCE_DIR) + "/deploy/models/tiny-kjv");
  // A prompt's chunk with decodes beside it; decodes alone; one long decode, whose attention is
  // split over the threads.
  const StepPlan plans[] = {PlanOf({0, 530, 7}, {70, 1, 1}), PlanOf({300, 531}, {1, 1}),
                            PlanOf({900}, {1})};
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const Processors cpu = *MakeDevice({.num_threads = 2});
    Device* const device = cpu.device.get();
    auto weights = *PackModel(files.config, files.weights, compute, {&device, 1});
    auto model = *Transformer::Create({.config = files.config,
                                       .weights = std::make_shared<PackedRanks>(std::move(weights)),
                                       .compute = compute,
                                       .device = device,
                                       .max_tokens = 72});
    auto batch = *StepMetadata::Create(
        *cpu.device, {.max_tokens = 72, .max_rows = 3, .max_row_blocks = 64});
    auto cache = *KvCache::Create(
        {.block_size = kBlockSize,
         .groups =
             {{.num_layers = 6, .num_kv_heads = 2, .k_dim = 32, .v_dim = 32, .dtype = compute}}},
        192);
    for (int32_t layer = 0; layer < 6; ++layer) {
      for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
        for (BlockId block = 0; block < 192; ++block) {
          for (int32_t head = 0; head < 2; ++head) {
            std::ranges::fill(cache->HeadBlock(layer, plane, block, head), std::byte{0});
          }
        }
      }
    }
    int32_t layers = 0;
    const auto count = [&](int32_t) {
      ++layers;
      return absl::OkStatus();
    };
    const StepBounds bounds{
        .vocab_size = 4096, .max_model_len = 2048, .block_size = kBlockSize, .num_blocks = 192};
    const auto step = [&](const StepPlan& plan) {
      return batch.Build(plan, bounds).ok() && batch.Upload().ok() &&
             model->Forward(batch, *cache, count).ok() &&
             model->Logits(0, batch.wanted().num_tokens).ok();
    };
    for (const StepPlan& plan : plans) ASSERT_TRUE(step(plan));
    const int64_t before = num_allocations.load();
    for (int i = 0; i < 3; ++i) {
      for (const StepPlan& plan : plans) ASSERT_TRUE(step(plan));
    }
    EXPECT_EQ(num_allocations.load(), before) << ToString(compute);
    EXPECT_EQ(layers, 4 * 3 * 6);
  }
}

}  // namespace
}  // namespace baton
