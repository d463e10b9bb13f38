#include "common/base/check.h"
#include "common/base/status.h"
#include "common/model/transformer.h"

// What lies between tokens and the first layer, and between the last layer and the logits.
namespace baton {

// Each rank reads the rows of all, where they are.
absl::Status Transformer::EmbedTokens(const BatchView& batch, Floats out) {
  EmbeddingArgs args{.num_shards = shape_.size,
                     .rows_each = shape_.ids_each,
                     .tokens = batch.tokens,
                     .num_tokens = batch.num_tokens,
                     .scale = config_.embedding_scale,
                     .out = out,
                     .out_stride = Stride(config_.embedding_dim)};
  for (int r = 0; r < shape_.size; ++r) args.shards[r] = &(*all_ranks_)[r].embedding;
  return ops().Embedding(args);
}

absl::Status Transformer::Embed(const BatchView& batch) {
  const int64_t num_tokens = batch.num_tokens;
  if (config_.embedding_dim == config_.hidden_size) {
    RETURN_IF_ERROR(EmbedTokens(batch, residual_.data()));
  } else {
    RETURN_IF_ERROR(EmbedTokens(batch, delta_.data()));
    RETURN_IF_ERROR(
        Round(delta_.data(), num_tokens, config_.embedding_dim, projected_.data()));
    RETURN_IF_ERROR(ops().Gemm(
        ProductOf(model_.embedding_in, projected_.data(), num_tokens, residual_.data())));
  }
  if (config_.learned_positions) {
    RETURN_IF_ERROR(ops().Embedding({.shards = {&model_.positions},
                                     .tokens = batch.positions,
                                     .num_tokens = num_tokens,
                                     .out = delta_.data(),
                                     .out_stride = Stride(config_.hidden_size)}));
    RETURN_IF_ERROR(AddDelta(num_tokens));
  }
  if (!config_.embedding_norm) return absl::OkStatus();
  return LayerNorm(model_.embedding_norm, num_tokens, residual_.data(), DType::kF32);
}

absl::Status Transformer::Finish(int64_t num_tokens) {
  num_final_ = num_tokens;
  if (config_.embedding_dim == config_.hidden_size) return absl::OkStatus();
  RETURN_IF_ERROR(
      ops().Gemm(ProductOf(model_.embedding_out, normed_in_use_, num_tokens, delta_.data())));
  return Round(delta_.data(), num_tokens, config_.embedding_dim, projected_.data());
}

absl::StatusOr<Floats> Transformer::Logits(int64_t first, int64_t count) {
  BATON_CHECK(first >= 0 && count >= 0 && count <= device_->info().logit_rows);
  BATON_CHECK(first + count <= num_final_);
  const Floats logits = lead_->logits_[slice_].data();
  if (group_ != nullptr) slice_ = 1 - slice_;
  const bool projects = config_.embedding_dim != config_.hidden_size;
  const Floats rows = projects ? projected_.data() : normed_in_use_;
  const int64_t stride = Stride(config_.embedding_dim);
  const Floats own = logits.At(shape_.first_token_id);  // This rank's.
  RETURN_IF_ERROR(ops().Gemm({.a = rows.At(first * stride),
                              .a_stride = stride,
                              .m = count,
                              .a_rounded_to = compute_,
                              .weights = &model_.output(),
                              .out = own,
                              .out_stride = config_.vocab_size}));
  if (config_.logits_softcap == 0) return logits;
  RETURN_IF_ERROR(ops().Softcap({.x = own,
                                 .x_stride = config_.vocab_size,
                                 .num_tokens = count,
                                 .dim = shape_.num_token_ids,
                                 .cap = config_.logits_softcap}));
  return logits;
}

}  // namespace baton
