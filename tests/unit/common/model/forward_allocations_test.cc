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
ForwardBatch BatchOf(const std::vector<int32_t>& context, const std::vector<int32_t>& count) {
  ForwardBatch batch{.cu_seqlens_q = {0}, .max_blocks = 64};
  for (size_t s = 0; s < context.size(); ++s) {
    const auto first = static_cast<int32_t>(s) * 64;
    for (int32_t i = 0; i < count[s]; ++i) {
      const int32_t position = context[s] + i;
      batch.tokens.push_back(5 + position % 90);
      batch.positions.push_back(position);
      batch.slot_mapping.push_back(first * kBlockSize + position);
    }
    batch.cu_seqlens_q.push_back(static_cast<int32_t>(batch.tokens.size()));
    batch.seq_lens.push_back(context[s] + count[s]);
    batch.logit_tokens.push_back(batch.cu_seqlens_q.back() - 1);
    batch.block_table.resize(batch.block_table.size() + 64);
    std::iota(batch.block_table.end() - 64, batch.block_table.end(), first);
  }
  return batch;
}

TEST(ForwardAllocationsTest, AStepAllocatesNothingAfterTheFirst) {
  const ModelFiles files =
      *LoadModelFiles(std::string(BATON_SOURCE_DIR) + "/deploy/models/tiny-kjv");
  // A prompt's chunk with decodes beside it; decodes alone; one long decode, whose attention is
  // split over the threads.
  const ForwardBatch batches[] = {BatchOf({0, 530, 7}, {70, 1, 1}), BatchOf({300, 531}, {1, 1}),
                                  BatchOf({900}, {1})};
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    auto kernels = *MakeKernels({.num_threads = 2});
    auto model = *Transformer::Create(files.config, files.weights, compute, kernels.get());
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
    const Transformer::LayerDoneFn count = [&](int32_t) { ++layers; };
    const auto step = [&](const ForwardBatch& batch) {
      const auto rows = static_cast<int64_t>(batch.logit_tokens.size());
      return model->Forward(batch, *cache, count).ok() && model->Logits(0, rows).ok();
    };
    for (const ForwardBatch& batch : batches) ASSERT_TRUE(step(batch));
    const int64_t before = num_allocations.load();
    for (int i = 0; i < 3; ++i) {
      for (const ForwardBatch& batch : batches) ASSERT_TRUE(step(batch));
    }
    EXPECT_EQ(num_allocations.load(), before) << ToString(compute);
    EXPECT_EQ(layers, 4 * 3 * 6);
  }
}

}  // namespace
}  // namespace baton
