#include "common/model/transformer.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/checkpoint/alibi.h"
#include "common/model/cache_planes.h"
#include "common/model/device_memory.h"

namespace baton {

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Create(TransformerParts parts) {
  std::unique_ptr<Transformer> model(new Transformer(std::move(parts)));
  const ModelConfig& config = model->config_;
  const RopeForm* const forms[] = {config.rotary_dim > 0 ? &config.rope : nullptr,
                                   config.local_rope.has_value() ? &*config.local_rope : nullptr};
  for (size_t i = 0; i < std::size(forms); ++i) {
    if (forms[i] == nullptr) continue;
    const RopeFrequencies rope = ComputeRopeFrequencies(*forms[i], config.rotary_dim);
    ASSIGN_OR_RETURN(model->rotary_[i].inv_freq,
                     CopyToDevice(*model->device_, std::as_bytes(std::span(rope.inv_freq))));
    model->rotary_[i].scaling = rope.attention_scaling;
    const int32_t original = OriginalLen(config);
    if (original == 0) continue;
    const RopeFrequencies other =
        ComputeRopeFrequencies(*forms[i], config.rotary_dim, original + 1);
    ASSIGN_OR_RETURN(model->rotary_[i].other_inv_freq,
                     CopyToDevice(*model->device_, std::as_bytes(std::span(other.inv_freq))));
  }
  if (config.alibi) {
    const std::vector<float> slopes = AlibiSlopes(config.num_heads);
    const RankShape& shape = model->shape_;
    const auto own = std::span(slopes).subspan(shape.rank * shape.num_heads, shape.num_heads);
    ASSIGN_OR_RETURN(model->alibi_slopes_, CopyToDevice(*model->device_, std::as_bytes(own)));
  }
  RETURN_IF_ERROR(model->MakeRoom());
  RETURN_IF_ERROR(model->MakeExperts());
  return model;
}

Transformer::Transformer(TransformerParts parts)
    : config_(std::move(parts.config)),
      shape_(ShardOf(config_, parts.rank, static_cast<int>(parts.weights->size()))),
      all_ranks_(std::move(parts.weights)),
      model_((*all_ranks_)[parts.rank]),
      compute_(parts.compute),
      device_(parts.device),
      group_(parts.group),
      lead_(parts.lead == nullptr ? this : parts.lead),
      q_width_(int64_t{shape_.num_heads} * config_.head_dim),
      kv_width_(int64_t{2} * shape_.kv_heads.count * config_.head_dim),
      max_tokens_(parts.max_tokens) {
  BATON_CHECK((shape_.size == 1) == (group_ == nullptr) && (shape_.rank == 0) == (lead_ == this));
}

int64_t Transformer::Stride(int64_t width) const { return StrideOf(width, *device_); }

int64_t Transformer::PartialFloats(const ModelConfig& config, const Device& device,
                                   int64_t max_tokens) {
  return max_tokens * StrideOf(config.hidden_size, device);
}

absl::Status Transformer::MakeRoom() {
  const DType activations = device_->Activations(compute_);
  struct Room {
    ActivationRows& activation;
    DType dtype;
    int64_t rows;
    int64_t width;
  };
  const int64_t max_tokens = max_tokens_;
  const int64_t logit_rows = lead_ == this ? device_->info().logit_rows : 0;
  const int64_t hidden = config_.hidden_size, half = RotatedElements(config_.rotary_dim) / 2;
  const int64_t embedding = config_.embedding_dim;
  const int64_t ffn = std::max(shape_.ffn_size, shape_.shared_ffn_size);
  const int64_t local_tokens = config_.local_rope.has_value() ? max_tokens : 0;
  const Room rooms[] = {
      {residual_, DType::kF32, max_tokens, hidden},
      {delta_, DType::kF32, max_tokens, std::max(hidden, embedding)},
      {normed_, activations, max_tokens, hidden},
      {wanted_residual_, DType::kF32, max_tokens, hidden},
      {wanted_normed_, activations, max_tokens, hidden},
      {qkv_, activations, max_tokens, kv_width_ + q_width_},
      {context_, activations, max_tokens, q_width_},
      {projected_, activations, embedding == hidden ? 0 : max_tokens, embedding},
      {gate_up_, activations, max_tokens, GateUpWidth(ffn)},
      {ffn_, activations, max_tokens, ffn},
      {shared_, DType::kF32, shape_.shared_ffn_size > 0 ? max_tokens : 0, hidden},
      {rotary_[0].cos, DType::kF32, max_tokens, half},
      {rotary_[0].sin, DType::kF32, max_tokens, half},
      {rotary_[1].cos, DType::kF32, local_tokens, half},
      {rotary_[1].sin, DType::kF32, local_tokens, half},
      {logits_[0], DType::kF32, logit_rows, config_.vocab_size},
      {logits_[1], DType::kF32, group_ == nullptr ? 0 : logit_rows, config_.vocab_size},
  };
  for (const Room& room : rooms) {
    ASSIGN_OR_RETURN(room.activation,
                     AllocateRows(*device_, room.rows, Stride(room.width), room.dtype));
  }
  return absl::OkStatus();
}

GemmArgs Transformer::ProductOf(const PackedLinear& linear, Floats x, int64_t num_tokens,
                                Floats out) const {
  return {.a = x,
          .a_stride = Stride(linear.weights.k()),
          .m = num_tokens,
          .a_rounded_to = compute_,
          .weights = &linear.weights,
          .bias = linear.bias.floats(DType::kF32).f32(),
          .out = out,
          .out_stride = Stride(linear.weights.n())};
}

// The ranks' sums meet before the bias, as those of the segments of one rank do.
absl::Status Transformer::SumOverRanks(const PackedLinear& linear, int32_t segments, Floats x,
                                       int64_t num_tokens, Floats out) {
  const float* const bias = linear.bias.floats(DType::kF32).f32();
  GemmArgs product = ProductOf(linear, x, num_tokens, OwnPartial(out));
  product.segments = segments;
  product.bias = group_ == nullptr ? bias : nullptr;
  RETURN_IF_ERROR(ops().Gemm(product));
  return FoldRanks(bias, num_tokens, out);
}

Floats Transformer::OwnPartial(Floats out) const {
  return group_ == nullptr ? out : Floats(group_->partial(), DType::kF32);
}

absl::Status Transformer::FoldRanks(const float* bias, int64_t num_tokens, Floats out) {
  if (group_ == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::span<const float* const> partials, group_->Exchange());
  FoldPartialsArgs fold{.num_parts = shape_.size,
                        .part_stride = Stride(config_.hidden_size),
                        .num_tokens = num_tokens,
                        .dim = config_.hidden_size,
                        .bias = bias,
                        .out = out.f32(),
                        .out_stride = Stride(config_.hidden_size)};
  for (int r = 0; r < shape_.size; ++r) fold.parts[r] = partials[r];
  return ops().FoldPartials(fold);
}

absl::Status Transformer::ProjectHeads(const PackedLayer& weights, Heads heads,
                                       int64_t num_tokens) {
  GemmArgs product = ProductOf(weights.qkv, normed_in_use_, num_tokens, qkv_.data());
  if (heads == Heads::kKeysAndValues) product.num_rows = kv_width_;
  if (heads == Heads::kQueries) {
    // Of whole units of rows: some values come once more, which nobody reads.
    product.first_row = kv_width_ / kWeightRows * kWeightRows;
    if (product.bias != nullptr) product.bias += product.first_row;
    product.out = product.out.At(product.first_row);
  }
  RETURN_IF_ERROR(ops().Gemm(product));
  if (heads != Heads::kQueries) {
    RETURN_IF_ERROR(NormHeads(weights.k_norm, num_tokens, qkv_.data(), shape_.kv_heads.count));
  }
  if (heads == Heads::kKeysAndValues) return absl::OkStatus();
  return NormHeads(weights.q_norm, num_tokens, Queries(), shape_.num_heads);
}

const Transformer::RotaryTables& Transformer::TablesOf(int32_t layer) const {
  const bool local = config_.local_rope.has_value() && config_.local_rope_layers[layer];
  return rotary_[local ? 1 : 0];
}

// Of the layer's input, normed. Also leaves queries rotated, if asked for.
absl::Status Transformer::WriteKeysAndValues(int32_t layer, const BatchView& batch, Heads heads,
                                             KvCache& cache) {
  const PackedLayer& weights = model_.layers[layer];
  RETURN_IF_ERROR(ProjectHeads(weights, heads, batch.num_tokens));
  const RotaryTables& tables = TablesOf(layer);
  return ops().RopeAndCache({.q = heads == Heads::kAll ? Queries() : Floats(),
                             .q_stride = Stride(kv_width_ + q_width_),
                             .num_heads = shape_.num_heads,
                             .key = qkv_.data(),
                             .key_stride = Stride(kv_width_ + q_width_),
                             .value = qkv_.data().At(kv_width_ / 2),
                             .value_stride = Stride(kv_width_ + q_width_),
                             .num_tokens = batch.num_tokens,
                             .rotary_dim = RotatedElements(config_.rotary_dim),
                             .cos = tables.cos.data().f32(),
                             .sin = tables.sin.data().f32(),
                             .slot_mapping = batch.slots(cache.GroupOf(layer)),
                             .k_cache = PlaneOf(cache, layer, KvPlane::kK),
                             .v_cache = PlaneOf(cache, layer, KvPlane::kV)});
}

// Those of the wanted tokens alone.
absl::Status Transformer::LateQueries(int32_t layer, int64_t num_tokens) {
  RETURN_IF_ERROR(ProjectHeads(model_.layers[layer], Heads::kQueries, num_tokens));
  if (config_.rotary_dim == 0) return absl::OkStatus();
  const RotaryTables& tables = TablesOf(layer);
  return ops().Rope({.x = Queries(),
                     .x_stride = Stride(kv_width_ + q_width_),
                     .num_tokens = num_tokens,
                     .num_heads = shape_.num_heads,
                     .head_dim = config_.head_dim,
                     .rotary_dim = RotatedElements(config_.rotary_dim),
                     .cos = tables.cos.data().f32(),
                     .sin = tables.sin.data().f32()});
}

absl::Status Transformer::AttentionBlock(int32_t layer, const BatchView& queries, KvCache& cache) {
  const PackedLayer& weights = model_.layers[layer];
  const int64_t num_tokens = queries.num_tokens;
  RETURN_IF_ERROR(
      ops().VarlenAttention({.q = Queries(),
                             .q_stride = Stride(kv_width_ + q_width_),
                             .num_heads = shape_.num_heads,
                             .num_seqs = queries.num_seqs,
                             .cu_seqlens_q = queries.cu_seqlens_q,
                             .num_tokens = num_tokens,
                             .max_seqlen_q = queries.max_seqlen_q,
                             .seq_lens = queries.seq_lens,
                             .max_seqlen_k = queries.max_seqlen_k,
                             .block_table = queries.block_table,
                             .max_blocks = queries.max_blocks,
                             .table_starts = queries.table_starts(cache.GroupOf(layer)),
                             .k_cache = PlaneOf(cache, layer, KvPlane::kK),
                             .v_cache = PlaneOf(cache, layer, KvPlane::kV),
                             // No window, 0, gives -1: infinite.
                             .scores = {.scale = config_.attention_scale,
                                        .softcap = config_.attention_softcap,
                                        .window_left = config_.windows[layer] - 1,
                                        .alibi_slopes = alibi_slopes_.floats(DType::kF32).f32()},
                             .round_to = compute_,
                             .out = context_.data(),
                             .out_stride = Stride(q_width_)}));
  if (!config_.parallel_residual) {
    return EndBlock(weights.o, shape_.o_segments, context_.data(), num_tokens,
                    weights.attention_output_norm, weights.ffn_norm);
  }
  // The MLP reads what the attention has read.
  RETURN_IF_ERROR(
      SumOverRanks(weights.o, shape_.o_segments, context_.data(), num_tokens, delta_.data()));
  RETURN_IF_ERROR(NormOutput(weights.attention_output_norm, num_tokens));
  RETURN_IF_ERROR(Norm(weights.ffn_norm, num_tokens, /*add_delta=*/false));
  return AddDelta(num_tokens);
}

absl::Status Transformer::FillRotary(const BatchView& batch) {
  for (const RotaryTables& tables : rotary_) {
    if (tables.inv_freq.data() == nullptr) continue;
    RETURN_IF_ERROR(
        ops().RotaryTable({.positions = batch.positions,
                           .num_tokens = batch.num_tokens,
                           .inv_freq = tables.inv_freq.floats(DType::kF32).f32(),
                           .other_inv_freq = tables.other_inv_freq.floats(DType::kF32).f32(),
                           .half = RotatedElements(config_.rotary_dim) / 2,
                           .attention_scaling = tables.scaling,
                           .cos = tables.cos.data().f32(),
                           .sin = tables.sin.data().f32()}));
  }
  return absl::OkStatus();
}

// From here on only the rows of the tokens whose logits are wanted: nobody reads the others.
absl::Status Transformer::KeepWanted(const StepMetadata& batch) {
  const auto keep = [&](Floats& in_use, const ActivationRows& wanted) {
    const absl::Status status = ops().SelectRows({.from = in_use,
                                                  .from_stride = Stride(config_.hidden_size),
                                                  .rows = batch.wanted_tokens(),
                                                  .num_rows = batch.wanted().num_tokens,
                                                  .dim = config_.hidden_size,
                                                  .to = wanted.data(),
                                                  .to_stride = Stride(config_.hidden_size)});
    in_use = wanted.data();
    return status;
  };
  RETURN_IF_ERROR(keep(residual_in_use_, wanted_residual_));
  RETURN_IF_ERROR(keep(normed_in_use_, wanted_normed_));
  return FillRotary(batch.wanted());
}

absl::Status Transformer::Forward(const StepMetadata& batch, KvCache& cache,
                                  LayerDoneFn layer_done) {
  BATON_CHECK(batch.all().num_tokens <= max_tokens_);
  num_final_ = 0;
  slice_ = 0;
  residual_in_use_ = residual_.data();
  normed_in_use_ = normed_.data();
  RETURN_IF_ERROR(FillRotary(batch.all()));
  RETURN_IF_ERROR(Embed(batch.all()));
  RETURN_IF_ERROR(Norm(NormAfter(-1), batch.all().num_tokens, /*add_delta=*/false));
  const BatchView* queries = &batch.all();
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    const bool cuts = layer + 1 == config_.num_layers && !batch.wants_all();
    RETURN_IF_ERROR(
        WriteKeysAndValues(layer, batch.all(), cuts ? Heads::kKeysAndValues : Heads::kAll, cache));
    RETURN_IF_ERROR(layer_done(layer));
    if (cuts) {
      queries = &batch.wanted();
      if (queries->num_tokens == 0) return absl::OkStatus();
      RETURN_IF_ERROR(KeepWanted(batch));
      RETURN_IF_ERROR(LateQueries(layer, queries->num_tokens));
    }
    RETURN_IF_ERROR(AttentionBlock(layer, *queries, cache));
    RETURN_IF_ERROR(MlpBlock(layer, queries->num_tokens));
  }
  return Finish(queries->num_tokens);
}

absl::Status Transformer::Replay(const Graph* graph, int64_t num_tokens) {
  num_final_ = num_tokens;
  slice_ = 0;
  normed_in_use_ = normed_.data();
  return group_ == nullptr ? device_->Launch(*graph) : group_->Launch(graph);
}

}  // namespace baton
