#include "common/model/step_batch.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton {
namespace {

void CheckRow(const StepRow& row, const StepBounds& bounds) {
  const auto num_tokens = static_cast<int64_t>(row.tokens.size());
  BATON_CHECK(num_tokens >= 1 && row.context_len >= 0);
  BATON_CHECK(row.context_len + num_tokens <= bounds.max_model_len);
  const auto capacity = static_cast<int64_t>(row.block_table.size()) * bounds.block_size;
  BATON_CHECK(row.context_len + num_tokens <= capacity);
  // The row's first query sees the farthest back.
  const size_t num_passed = TokensBehindWindow(bounds.window, row.context_len) / bounds.block_size;
  for (size_t i = 0; i < row.block_table.size(); ++i) {
    const BlockId block = row.block_table[i];
    BATON_CHECK(block < bounds.num_blocks && (block >= 0 || i < num_passed));
  }
  for (const int32_t token : row.tokens) BATON_CHECK(token >= 0 && token < bounds.vocab_size);
  BATON_CHECK(!row.sample || row.sampling != nullptr);
}

void AppendRow(const StepRow& row, const StepBounds& bounds, ForwardBatch& batch) {
  const auto num_tokens = static_cast<int32_t>(row.tokens.size());
  for (int32_t i = 0; i < num_tokens; ++i) {
    const int32_t position = row.context_len + i;
    const int64_t block = row.block_table[position / bounds.block_size];
    if (ScoresPrompt(row, i) || (row.sample && i + 1 == num_tokens)) {
      batch.logit_tokens.push_back(static_cast<int32_t>(batch.tokens.size()));
    }
    batch.tokens.push_back(row.tokens[i]);
    batch.positions.push_back(position);
    batch.slot_mapping.push_back(block * bounds.block_size + position % bounds.block_size);
  }
  batch.cu_seqlens_q.push_back(static_cast<int32_t>(batch.tokens.size()));
  batch.seq_lens.push_back(row.context_len + num_tokens);
}

}  // namespace

bool ScoresPrompt(const StepRow& row, int64_t index) {
  if (row.sampling == nullptr || row.sampling->params.num_prompt_logprobs < 0) return false;
  return row.context_len + index + 1 < static_cast<int64_t>(row.sampling->prompt.size());
}

void BuildForwardBatch(const StepPlan& plan, const StepBounds& bounds, ForwardBatch& batch) {
  batch.tokens.clear();
  batch.positions.clear();
  batch.slot_mapping.clear();
  batch.cu_seqlens_q.assign(1, 0);
  batch.seq_lens.clear();
  batch.block_table.clear();
  batch.logit_tokens.clear();
  batch.max_blocks = 0;
  for (const StepRow& row : plan.rows) {
    CheckRow(row, bounds);
    AppendRow(row, bounds, batch);
    batch.max_blocks = std::max(batch.max_blocks, static_cast<int64_t>(row.block_table.size()));
  }
  for (const StepRow& row : plan.rows) {
    batch.block_table.insert(batch.block_table.end(), row.block_table.begin(),
                             row.block_table.end());
    batch.block_table.resize(batch.block_table.size() + batch.max_blocks - row.block_table.size(),
                             -1);
  }
}

}  // namespace baton
