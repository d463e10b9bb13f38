#include "common/checkpoint/families.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton {
namespace {

using nlohmann::json;

constexpr FieldAlias kOptFields[] = {
    {"intermediate_size", "ffn_dim"},
    {"hidden_act", "activation_function", true},
    {"attention_bias", "enable_bias"},
    {"mlp_bias", "enable_bias"},
};

constexpr TensorNames kOptNames = {
    .embedding = "decoder.embed_tokens",
    .positions = "decoder.embed_positions",
    .embedding_in = "decoder.project_in",
    .embedding_out = "decoder.project_out",
    .final_norm = "decoder.final_layer_norm",
    .layer = "decoder.layers.",
    .attention_norm = "self_attn_layer_norm",
    .o = "self_attn.out_proj",
    .ffn_norm = "final_layer_norm",
    .up = "fc1",
    .down = "fc2",
};

constexpr FieldAlias kNeoXFields[] = {
    {"rope_theta", "rotary_emb_base", true},
    {"partial_rotary_factor", "rotary_pct", true},
};

constexpr absl::string_view kNeoXBuffers[] = {".attention.bias", ".attention.masked_bias"};

constexpr TensorNames kNeoXNames = {
    .base = "gpt_neox.",
    .embedding = "embed_in",
    .final_norm = "final_layer_norm",
    .lm_head = "embed_out",
    .other_lm_head = "lm_head",
    .qkv = "attention.query_key_value",
    .o = "attention.dense",
    .up = "mlp.dense_h_to_4h",
    .down = "mlp.dense_4h_to_h",
    .ignored = kNeoXBuffers,
};

constexpr FieldAlias kBloomFields[] = {
    {"hidden_size", "n_embed"},           {"num_hidden_layers", "n_layer"},
    {"num_attention_heads", "n_head"},    {"max_position_embeddings", "seq_length"},
};

constexpr TensorNames kBloomNames = {
    .base = "transformer.",
    .embedding = "word_embeddings",
    .embedding_norm = "word_embeddings_layernorm",
    .final_norm = "ln_f",
    .layer = "h.",
    .qkv = "self_attention.query_key_value",
    .o = "self_attention.dense",
    .up = "mlp.dense_h_to_4h",
    .down = "mlp.dense_4h_to_h",
};

constexpr FieldAlias kGemmaFields[] = {{"hidden_act", "hidden_activation", true}};

constexpr TensorNames kGemmaNames = {
    .ffn_norm = "pre_feedforward_layernorm",
    .attention_output_norm = "post_attention_layernorm",
    .ffn_output_norm = "post_feedforward_layernorm",
};

constexpr TensorNames kPhi3Names = {
    .qkv = "self_attn.qkv_proj",
    .qkv_by_head = false,
    .gate_up = "mlp.gate_up_proj",
};

constexpr FieldAlias kExpertFields[] = {
    {"num_experts", "num_local_experts"},
    {"attention_bias", "qkv_bias"},
};

constexpr TensorNames kMixtralNames = {
    .router = "block_sparse_moe.gate",
    .experts = "block_sparse_moe.experts.",
    .expert_gate = "w1",
    .expert_up = "w3",
    .expert_down = "w2",
};

constexpr Family kFamilies[] = {
    {.architecture = "LlamaForCausalLM",
     .model_type = "llama",
     .vocab_size = 32000,
     .ffn_size = 11008,
     .bos = 1,
     .eos = 2,
     .attention_bias_field = true,
     .o_bias = true,
     .mlp_bias_field = true,
     .needs_divisible_hidden = true},
    {.architecture = "MistralForCausalLM",
     .model_type = "mistral",
     .vocab_size = 32000,
     .ffn_size = 14336,
     .num_kv_heads = 8,
     .max_positions = 4096 * 32,
     .sliding_window = 4096,
     .bos = 1,
     .eos = 2},
    {.architecture = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .vocab_size = 151936,
     .ffn_size = 22016,
     .num_kv_heads = 32,
     .max_positions = 32768,
     .sliding_window = 4096,
     .attention_bias = true,
     .window_switch = true,
     .layer_types = true,
     .window_depth = WindowDepth::kFromMaxWindowLayers},
    {.architecture = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .vocab_size = 151936,
     .ffn_size = 22016,
     .num_kv_heads = 32,
     .head_dim = 128,
     .max_positions = 32768,
     .sliding_window = 4096,
     .qk_norm = true,
     .attention_bias_field = true,
     .o_bias = true,
     .window_switch = true,
     .layer_types = true,
     .window_depth = WindowDepth::kFromMaxWindowLayers},
    {.architecture = "OPTForCausalLM",
     .model_type = "opt",
     .vocab_size = 50272,
     .hidden_size = 768,
     .ffn_size = 3072,
     .num_layers = 12,
     .num_heads = 12,
     .bos = 2,
     .eos = 2,
     .norm = NormKind::kLayer,
     .norm_eps = 1e-5,
     .activation = "relu",
     .gated_mlp = false,
     .tied_embeddings = true,
     .rotary = false,
     .learned_positions = true,
     .position_offset = 2,
     .attention_bias = true,
     .attention_bias_field = true,
     .o_bias = true,
     .mlp_bias = true,
     .mlp_bias_field = true,
     .needs_divisible_hidden = true,
     .plain_heads = true,
     .norm_eps_field = nullptr,
     .pre_norm_field = "do_layer_norm_before",
     .no_final_norm_field = "_remove_final_layer_norm",
     .embedding_dim_field = "word_embed_proj_dim",
     .aliases = kOptFields,
     .names = kOptNames},
    {.architecture = "GPTNeoXForCausalLM",
     .model_type = "gpt_neox",
     .vocab_size = 50432,
     .hidden_size = 6144,
     .ffn_size = 24576,
     .num_layers = 44,
     .num_heads = 64,
     .bos = 0,
     .eos = 2,
     .norm = NormKind::kLayer,
     .norm_eps = 1e-5,
     .activation = "gelu",
     .gated_mlp = false,
     .rotary_factor = 0.25,
     .rotary_factor_field = true,
     .attention_bias = true,
     .attention_bias_field = true,
     .o_bias = true,
     .mlp_bias = true,
     .needs_divisible_hidden = true,
     .plain_heads = true,
     .norm_eps_field = "layer_norm_eps",
     .parallel_residual_field = "use_parallel_residual",
     .aliases = kNeoXFields,
     .names = kNeoXNames},
    {.architecture = "BloomForCausalLM",
     .model_type = "bloom",
     .vocab_size = 250880,
     .hidden_size = 64,
     .num_layers = 2,
     .num_heads = 8,
     .bos = 1,
     .eos = 2,
     .norm = NormKind::kLayer,
     .norm_eps = 1e-5,
     .embedding_norm = true,
     .activation = "gelu_pytorch_tanh",
     .activation_field = false,
     .gated_mlp = false,
     .tied_embeddings = true,
     .rotary = false,
     .alibi = true,
     .attention_bias = true,
     .o_bias = true,
     .mlp_bias = true,
     .needs_divisible_hidden = true,
     .plain_heads = true,
     .norm_eps_field = "layer_norm_epsilon",
     .normed_residual_field = "apply_residual_connection_post_layernorm",
     .aliases = kBloomFields,
     .names = kBloomNames},
    {.architecture = "Gemma2ForCausalLM",
     .model_type = "gemma2",
     .vocab_size = 256000,
     .hidden_size = 2304,
     .ffn_size = 9216,
     .num_layers = 26,
     .num_heads = 8,
     .num_kv_heads = 4,
     .head_dim = 256,
     .max_positions = 8192,
     .sliding_window = 4096,
     .bos = 2,
     .eos = 1,
     .activation = "gelu_pytorch_tanh",
     .tied_embeddings = true,
     .norm_one_plus_weight = true,
     .scaled_embedding = true,
     .query_scalar = 256,
     .attention_softcap = 50,
     .logits_softcap = 30,
     .attention_bias_field = true,
     .o_bias = true,
     .layer_types = true,
     .full_attention_every = 2,
     .aliases = kGemmaFields,
     .names = kGemmaNames},
    {.architecture = "Gemma3ForCausalLM",
     .model_type = "gemma3_text",
     .vocab_size = 262208,
     .hidden_size = 2304,
     .ffn_size = 9216,
     .num_layers = 26,
     .num_heads = 8,
     .num_kv_heads = 4,
     .head_dim = 256,
     .max_positions = 131072,
     .sliding_window = 4096,
     .bos = 2,
     .eos = 1,
     .activation = "gelu_pytorch_tanh",
     .tied_embeddings = true,
     .qk_norm = true,
     .norm_one_plus_weight = true,
     .scaled_embedding = true,
     .query_scalar = 256,
     .logits_softcap = 0,
     .rope_theta = 1e6,
     .local_rope_theta = 1e4,
     .attention_bias_field = true,
     .o_bias = true,
     .layer_types = true,
     .full_attention_every = 6,
     .full_attention_field = "sliding_window_pattern",
     .aliases = kGemmaFields,
     .names = kGemmaNames},
    {.architecture = "Phi3ForCausalLM",
     .model_type = "phi3",
     .vocab_size = 32064,
     .hidden_size = 3072,
     .ffn_size = 8192,
     .max_positions = 4096,
     .sliding_window = -1,
     .bos = 1,
     .eos = 32000,
     .norm_eps = 1e-5,
     .rotary_factor_field = true,
     .original_positions = 4096,
     .only_longrope = true,
     .needs_divisible_hidden = true,
     .names = kPhi3Names},
    {.architecture = "MixtralForCausalLM",
     .model_type = "mixtral",
     .vocab_size = 32000,
     .ffn_size = 14336,
     .num_kv_heads = 8,
     .max_positions = 4096 * 32,
     .sliding_window = -1,
     .bos = 1,
     .eos = 2,
     .norm_eps = 1e-5,
     .experts = {.count = 8, .top_k = 2, .always_renormalize = true},
     .rope_theta = 1e6,
     .aliases = kExpertFields,
     .names = kMixtralNames},
    {.architecture = "Qwen3MoeForCausalLM",
     .model_type = "qwen3_moe",
     .vocab_size = 151936,
     .hidden_size = 2048,
     .ffn_size = 6144,
     .num_layers = 24,
     .num_kv_heads = 4,
     .max_positions = 32768,
     .sliding_window = 4096,
     .experts = {.count = 128, .top_k = 8, .ffn_size = 768, .sparse_layers = true},
     .qk_norm = true,
     .attention_bias_field = true,
     .o_bias = true,
     .window_switch = true,
     .aliases = kExpertFields},
    {.architecture = "Qwen2MoeForCausalLM",
     .model_type = "qwen2_moe",
     .vocab_size = 151936,
     .hidden_size = 2048,
     .ffn_size = 5632,
     .num_layers = 24,
     .num_heads = 16,
     .num_kv_heads = 16,
     .max_positions = 32768,
     .sliding_window = 4096,
     .experts = {.count = 60, .top_k = 4, .ffn_size = 1408, .shared_ffn_size = 5632,
                 .sparse_layers = true},
     .attention_bias = true,
     .attention_bias_field = true,
     .window_switch = true,
     .layer_types = true,
     .window_depth = WindowDepth::kBelowMaxWindowLayers,
     .full_attention_every = 2,
     .aliases = kExpertFields},
};

}  // namespace

absl::StatusOr<const Family*> FindFamily(JsonFields& config) {
  const std::string model_type = config.String("model_type", "");
  std::string architecture;
  if (const json* list = config.Find("architectures"); list != nullptr) {
    if (!list->is_array() || list->size() != 1 || !list->front().is_string()) {
      config.Refuse("architectures", *list, "a list of one name is needed");
    } else {
      architecture = list->front().get<std::string>();
    }
  }
  RETURN_IF_ERROR(config.status());
  std::string known;
  for (const Family& family : kFamilies) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", family.architecture);
    const bool matches = architecture.empty() ? family.model_type == model_type
                                              : family.architecture == architecture;
    if (!matches) continue;
    if (!model_type.empty() && family.model_type != model_type) {
      config.Refuse(
          "model_type", model_type,
          absl::StrCat("with ", family.architecture, " it must be \"", family.model_type, "\""));
      return config.status();
    }
    return &family;
  }
  const bool by_type = architecture.empty();
  // Phi-3-small's; its fields are named after it.
  const char* const why =
      (by_type ? model_type == "phi3small" : architecture == "Phi3SmallForCausalLM")
          ? ", whose block-sparse attention (\"blocksparse_block_size\", "
            "\"blocksparse_num_local_blocks\") is not supported"
          : "";
  return absl::UnimplementedError(absl::StrCat(
      config.where(), ": field \"", by_type ? "model_type" : "architectures", "\" is ",
      ShowJson(by_type ? model_type : architecture), why, "; supported architectures: ", known));
}

const TensorNames& NamesOf(absl::string_view architecture) {
  for (const Family& family : kFamilies) {
    if (family.architecture == architecture) return family.names;
  }
  return kFamilies[0].names;
}

}  // namespace baton
