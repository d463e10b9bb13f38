#include "common/checkpoint/model_files.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace baton {
namespace {

std::string Describe(const RopeDefault&) { return "default"; }
std::string Describe(const RopeLinear& r) { return absl::StrFormat("linear %a", r.factor); }
std::string Describe(const RopeDynamic& r) {
  return absl::StrFormat("dynamic %a %d", r.factor, r.original_max_positions);
}
std::string Describe(const RopeYarn& r) {
  return absl::StrFormat("yarn %a %d %a %a %a %d", r.factor, r.original_max_positions, r.beta_fast,
                         r.beta_slow, r.attention_factor, r.truncate);
}
std::string Describe(const RopeLlama3& r) {
  return absl::StrFormat("llama3 %a %a %a %d", r.factor, r.low_freq_factor, r.high_freq_factor,
                         r.original_max_positions);
}
// Of both lists, whatever --max-model-len is. A release that took one for all sequences told that
// alone: its workers do not pair with these.
std::string Describe(const RopeLongrope& r) {
  std::string text =
      absl::StrFormat("longrope %a %d", r.attention_factor, r.original_max_positions);
  for (const double factor : r.short_factors) absl::StrAppendFormat(&text, " %a", factor);
  for (const double factor : r.long_factors) absl::StrAppendFormat(&text, " %a", factor);
  return text;
}

// Everything of the config that a forward pass depends on, so that two spellings of one model
// (older and newer field names) have one digest.
std::string Describe(const ModelConfig& c) {
  std::string text = absl::StrJoin(
      {c.vocab_size, c.hidden_size, c.num_layers, c.num_heads, c.num_kv_heads, c.head_dim,
       c.ffn_size, static_cast<int32_t>(c.norm), int32_t{c.norm_one_plus_weight},
       static_cast<int32_t>(c.activation), int32_t{c.gated_mlp}, int32_t{c.qkv_bias},
       int32_t{c.o_bias}, int32_t{c.mlp_bias}, int32_t{c.qk_norm}, int32_t{c.tied_embeddings},
       c.rotary_dim},
      " ");
  absl::StrAppendFormat(&text, " %a %a %a ", c.norm_eps, c.attention_scale, c.rope.theta);
  text += std::visit([](const auto& form) { return Describe(form); }, c.rope.scaling);
  return absl::StrCat(text, " windows ", absl::StrJoin(c.windows, " "));
}

std::string Exactly(double value) { return absl::StrFormat("%a", value); }

// What is as ModelConfig has it at first is not told, so that a digest outlives new features.
std::string DescribeFeatures(const ModelConfig& c) {
  std::string text;
  const auto add = [&](bool told, const auto&... parts) {
    if (told) absl::StrAppend(&text, " ", parts...);
  };
  add(c.embedding_dim != c.hidden_size, "embedding ", c.embedding_dim);
  add(c.embedding_norm, "embedding norm");
  add(c.normed_residual, "normed residual");
  add(c.post_norm, "post-norm");
  add(!c.final_norm, "no final norm");
  add(c.parallel_residual, "parallel residual");
  add(c.learned_positions, "learned positions ", c.position_offset);
  add(c.alibi, "alibi");
  add(c.output_norms, "output norms");
  add(c.embedding_scale != 1, "embedding scale ", Exactly(c.embedding_scale));
  add(c.attention_softcap > 0, "attention softcap ", Exactly(c.attention_softcap));
  if (c.local_rope.has_value()) {
    absl::StrAppend(&text, " local rope ", Exactly(c.local_rope->theta), " ",
                    std::visit([](const auto& form) { return Describe(form); },
                               c.local_rope->scaling),
                    " of ", absl::StrJoin(c.local_rope_layers, " "));
  }
  const ExpertConfig& experts = c.experts;
  add(experts.count > 0, "experts ", experts.count, " ", experts.top_k, " ", experts.ffn_size, " ",
      experts.shared_ffn_size, " ", int32_t{experts.renormalize}, " of ",
      absl::StrJoin(experts.layers, " "));
  add(c.logits_softcap > 0, "logits softcap ", Exactly(c.logits_softcap));
  return text;
}

// Ids beyond the vocabulary can never be produced; configs on the hub have them.
std::vector<int32_t> EndTokens(const ModelConfig& config, const GenerationConfig& generation) {
  std::vector<int32_t> ids =
      generation.eos_token_ids.empty() ? config.eos_token_ids : generation.eos_token_ids;
  std::erase_if(ids, [&](int32_t id) { return id >= config.vocab_size; });
  return ids;
}

}  // namespace

absl::StatusOr<ModelFiles> LoadModelFiles(const std::string& model_dir,
                                          const LoadOptions& options) {
  ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(model_dir));
  ASSIGN_OR_RETURN(GenerationConfig generation, LoadGenerationConfig(model_dir));
  ASSIGN_OR_RETURN(SafetensorsFiles files, SafetensorsFiles::Open(model_dir));
  ASSIGN_OR_RETURN(ModelWeights weights, MapWeights(config, files));
  config.tied_embeddings = weights.lm_head.bytes.data() == weights.embedding.bytes.data();
  std::vector<int32_t> eos = EndTokens(config, generation);
  // Workers that pair must end an answer at the same tokens.
  const std::string description = absl::StrCat(Describe(config), DescribeFeatures(config),
                                               " end tokens ", absl::StrJoin(eos, ","));
  ASSIGN_OR_RETURN(const uint64_t of_files, files.Digest(options.num_threads, options.nice));
  const uint64_t digest = XXH3_64bits_withSeed(description.data(), description.size(), of_files);
  return ModelFiles{.config = std::move(config),
                    .generation = std::move(generation),
                    .files = std::move(files),
                    .weights = std::move(weights),
                    .eos_token_ids = std::move(eos),
                    .model_digest = digest};
}

absl::Status AtModelOption(const std::string& model_dir, const absl::Status& status) {
  const char* cure = absl::IsNotFound(status) ? "; name a model folder in Hugging Face layout" : "";
  return absl::Status(status.code(),
                      absl::StrCat("--model ", model_dir, ": ", status.message(), cure));
}

}  // namespace baton
