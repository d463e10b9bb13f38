#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/random.h"
#include "tests/unit/common/model/runner_harness.h"

namespace baton {

// Decode steps at any lengths, without the prefills before them: what the pool holds is moved in.
// Rows share the blocks of their pasts and have one of their own each, the last.
class DecodeSteps {
 public:
  static constexpr int32_t kBlock = 16;
  static constexpr int32_t kSharedBlocks = 104;  // Of pasts of up to 1,664 tokens.

  // With room for so many rows.
  DecodeSteps(RunnerOptions options, int32_t max_rows, RecordingSink* sink = nullptr)
      : num_blocks_(kSharedBlocks + max_rows),
        harness_(WithPools(std::move(options), num_blocks_, max_rows), sink) {
    for (const LoadedRank& rank : harness_.runner().ranks()) Fill(rank);
    BATON_CHECK(harness_.Move({}, AllBlocks()).status.ok());
  }

  RunnerHarness& harness() { return harness_; }

  // One of them: what follows `length` tokens.
  StepRow Row(int32_t index, int32_t length) const {
    auto context = std::make_shared<SamplingContext>();
    context->prompt = {1 + index};
    context->params.logits_digest = true;
    context->params.num_logprobs = 2;
    std::vector<BlockId> table = harness_.Blocks(length / kBlock * kBlock);
    table.push_back(kSharedBlocks + index);
    return {.sequence = static_cast<SequenceId>(index),
            .tokens = {7 + 13 * index},
            .context_len = length,
            .block_table = std::move(table),
            .sample = true,
            .sampling = std::move(context),
            .num_emitted = length};
  }

  std::vector<TokenOutput> Run(const std::vector<int32_t>& lengths) {
    std::vector<StepRow> rows;
    for (size_t i = 0; i < lengths.size(); ++i) {
      rows.push_back(Row(static_cast<int32_t>(i), lengths[i]));
    }
    StepDone done = harness_.Step(std::move(rows));
    BATON_CHECK(done.status.ok());
    std::vector<TokenOutput> outputs;
    for (RowResult& row : done.rows) {
      // Rows that failed are alike whatever made them fail.
      BATON_CHECK(row.status.ok());
      outputs.push_back(std::move(row.output));
    }
    return outputs;
  }

  // All bytes of the first rank's pool, moved out.
  std::string Pool() {
    BATON_CHECK(harness_.Move(AllBlocks(), {}).status.ok());
    const KvCache& swap = *harness_.runner().swap();
    return {reinterpret_cast<const char*>(swap.base()),
            static_cast<size_t>(BlockBytes(swap.layout()) * num_blocks_)};
  }

 private:
  static RunnerOptions WithPools(RunnerOptions options, int32_t num_blocks, int32_t max_rows) {
    options.num_blocks = options.swap_blocks = num_blocks;
    options.max_step_rows = max_rows;
    options.max_step_tokens = std::max(options.max_step_tokens, max_rows);
    return options;
  }
  // Of each head the same, whichever rank has it.
  static void Fill(const LoadedRank& rank) {
    KvCache& swap = *rank.swap;
    const KvLayout& layout = swap.layout();
    const int64_t bytes = *KvCache::PoolBytes(layout, swap.num_blocks());
    std::memset(swap.base(), 0, static_cast<size_t>(bytes));
    const bool is_f32 = layout.groups[0].dtype == DType::kF32;
    for (int32_t head = 0; head < layout.groups[0].num_kv_heads; ++head) {
      Random random(static_cast<uint64_t>(rank.shape.kv_heads.first + head));
      for (int32_t layer = 0; layer < NumLayers(layout); ++layer) {
        for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
          for (BlockId block = 0; block < swap.num_blocks(); ++block) {
            const std::span<std::byte> to = swap.HeadBlock(layer, plane, block, head);
            for (size_t at = 0; at < to.size(); at += 4) {
              // Numbers in [0.5, 2) of either sign, as f32 or as a pair of bf16.
              auto bits =
                  static_cast<uint32_t>(random.Next()) & (is_f32 ? 0x80ffffffu : 0x80ff80ffu);
              bits |= is_f32 ? 0x3f000000u : 0x3f003f00u;
              std::memcpy(&to[at], &bits, 4);
            }
          }
        }
      }
    }
  }
  std::vector<BlockMove> AllBlocks() const {
    std::vector<BlockMove> moves;
    for (BlockId block = 0; block < num_blocks_; ++block) moves.push_back({block, block});
    return moves;
  }

  const int32_t num_blocks_;
  RunnerHarness harness_;
};

}  // namespace baton
