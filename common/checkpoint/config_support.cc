#include "common/checkpoint/config_support.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton {
namespace {

using nlohmann::json;

// Training, bookkeeping, generation defaults (transformers drops them too) and output selection.
constexpr std::string_view kHarmless[] = {"activation_dropout",
                                          "attention_dropout",
                                          "attention_probs_dropout_prob",
                                          "attention_softmax_in_fp32",
                                          "attn_implementation",
                                          "auto_map",
                                          "bad_words_ids",
                                          "begin_suppress_tokens",
                                          "bias_dropout_fusion",
                                          "cache_implementation",
                                          "chunk_size_feed_forward",
                                          "classifier_dropout",
                                          "diversity_penalty",
                                          "do_sample",
                                          "dropout",
                                          "early_stopping",
                                          "embd_pdrop",
                                          "encoder_no_repeat_ngram_size",
                                          "encoder_repetition_penalty",
                                          "epsilon_cutoff",
                                          "eta_cutoff",
                                          "experts_implementation",
                                          "exponential_decay_length_penalty",
                                          "finetuning_task",
                                          "forced_bos_token_id",
                                          "forced_eos_token_id",
                                          "gradient_checkpointing",
                                          "hidden_dropout",
                                          "hidden_dropout_prob",
                                          "id2label",
                                          "init_std",
                                          "initializer_range",
                                          "is_decoder",
                                          "keys_to_ignore_at_inference",
                                          "label2id",
                                          "layerdrop",
                                          "length_penalty",
                                          "masked_softmax_fusion",
                                          "max_length",
                                          "max_new_tokens",
                                          "max_window_layers",
                                          "min_length",
                                          "model_max_length",
                                          "name_or_path",
                                          "no_repeat_ngram_size",
                                          "num_assistant_tokens",
                                          "num_assistant_tokens_schedule",
                                          "num_beam_groups",
                                          "num_beams",
                                          "num_labels",
                                          "num_return_sequences",
                                          "offset_alibi",
                                          "output_attentions",
                                          "output_hidden_states",
                                          "output_scores",
                                          "pad_token_id",
                                          "prefix",
                                          "pretraining_tp",
                                          "problem_type",
                                          "remove_invalid_values",
                                          "repetition_penalty",
                                          "resid_pdrop",
                                          "return_dict",
                                          "return_dict_in_generate",
                                          "router_aux_loss_coef",
                                          "router_jitter_noise",
                                          "sep_token_id",
                                          "skip_bias_add",
                                          "skip_bias_add_qkv",
                                          "suppress_tokens",
                                          "task_specific_params",
                                          "temperature",
                                          "tf_legacy_loss",
                                          "tokenizer_class",
                                          "top_k",
                                          "top_p",
                                          "torchscript",
                                          "transformers_version",
                                          "typical_p",
                                          "unk_token_id",
                                          "use_bfloat16",
                                          "use_cache",
                                          "use_return_dict"};

// Features of other families and the JSON values that switch them off.
struct NeutralValue {
  std::string_view field;
  std::string_view values;  // A JSON list.
};
constexpr NeutralValue kNeutral[] = {
    {"add_cross_attention", "[false]"},
    {"alibi", "[false]"},
    {"attn_logit_softcapping", "[0]"},
    {"clip_qkv", "[]"},
    {"compression_config", "[{}]"},
    {"cross_attention_hidden_size", "[]"},
    {"embedding_multiplier", "[1]"},
    {"final_logit_softcapping", "[0]"},
    {"full_attn_mod", "[1]"},
    {"hidden_act", "[\"gelu_pytorch_tanh\"]"},  // Gemma's files have it beside its own name.
    {"interpolate_factor", "[1]"},
    {"is_encoder_decoder", "[false]"},
    {"layer_norm_elementwise_affine", "[true]"},
    {"lm_head_bias", "[false]"},
    {"logit_scale", "[1]"},
    {"logits_scaling", "[1]"},
    {"mlp_layer_types", "[]"},
    {"moe_layers", "[[]]"},
    {"num_experts", "[0, 1]"},
    {"num_experts_per_tok", "[0, 1]"},
    {"num_local_experts", "[0, 1]"},
    {"output_router_logits", "[false]"},
    {"per_layer_config", "[{}, []]"},
    {"pruned_heads", "[{}]"},
    {"qk_layernorm", "[false]"},
    {"quantization_config", "[]"},
    {"residual_multiplier", "[1]"},
    {"rope_interleaved", "[false]"},
    {"slow_but_exact", "[false]"},
    {"tie_encoder_decoder", "[false]"},
    {"use_mrope", "[false]"},
    {"use_qk_norm", "[false]"},
};

constexpr int64_t kMostParts = 1 << 20;

bool IsHarmless(std::string_view field) {
  // Private bookkeeping of transformers and of fine-tuning tools.
  if (field.starts_with("_") || field.starts_with("unsloth_")) return true;
  return std::find(std::begin(kHarmless), std::end(kHarmless), field) != std::end(kHarmless);
}

// What switches the field off; an empty list for a field that only null switches off.
json NeutralValues(std::string_view field) {
  for (const NeutralValue& neutral : kNeutral) {
    if (neutral.field == field) return json::parse(neutral.values);
  }
  return json::parse(R"([false, "", [], {}])");
}

}  // namespace

void RefuseUnsupportedFields(JsonFields& config) {
  for (const std::string& field : config.Untaken()) {
    const json* value = config.FindExactly(field);
    if (value == nullptr || IsHarmless(field)) continue;
    // Of one part it changes nothing; of several transformers leaves out biases of BLOOM.
    if (field == "slow_but_exact" && config.Int("pretraining_tp", 1, 0, kMostParts) <= 1) continue;
    const json neutral = NeutralValues(field);
    if (std::find(neutral.begin(), neutral.end(), *value) != neutral.end()) continue;
    std::string allowed = "null";
    for (const json& one : neutral) absl::StrAppend(&allowed, ", ", one.dump());
    config.Fail(absl::UnimplementedError(
        absl::StrCat(config.where(), ": field \"", field, "\" is ", ShowJson(*value),
                     "; Baton does not support it (allowed: ", allowed,
                     "); remove it if it does not change what the model computes")));
  }
}

}  // namespace baton
