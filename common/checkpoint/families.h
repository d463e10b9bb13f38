#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/json_fields.h"
#include "common/checkpoint/model_config.h"

namespace baton {

// Where a checkpoint keeps its tensors: names without ".weight" and ".bias". An empty name is that
// of a tensor that the family does not have.
struct TensorNames {
  // Before all names but the output layer's; a file saved without the output layer lacks it.
  absl::string_view base = "model.";
  absl::string_view embedding = "embed_tokens";
  absl::string_view positions;
  absl::string_view embedding_norm;
  absl::string_view embedding_in;   // From the embedding's size to the hidden size,
  absl::string_view embedding_out;  // and back.
  absl::string_view final_norm = "norm";
  absl::string_view lm_head = "lm_head";
  absl::string_view other_lm_head;  // Instead, if the file has it.

  absl::string_view layer = "layers.";  // And then the layer's number, before all that follow.
  absl::string_view attention_norm = "input_layernorm";
  absl::string_view q = "self_attn.q_proj";
  absl::string_view k = "self_attn.k_proj";
  absl::string_view v = "self_attn.v_proj";
  absl::string_view qkv;    // Instead: of each head the rows of q, k and v in turn,
  bool qkv_by_head = true;  // or else all of q, then of k, then of v.
  absl::string_view q_norm = "self_attn.q_norm";
  absl::string_view k_norm = "self_attn.k_norm";
  absl::string_view o = "self_attn.o_proj";
  absl::string_view ffn_norm = "post_attention_layernorm";
  absl::string_view attention_output_norm;  // Both or none.
  absl::string_view ffn_output_norm;
  absl::string_view gate = "mlp.gate_proj";
  absl::string_view up = "mlp.up_proj";
  absl::string_view gate_up;  // Instead of both: gate, then up.
  absl::string_view down = "mlp.down_proj";

  // Of a layer of experts. An expert's number and what its matrices are called follow `experts`.
  absl::string_view router = "mlp.gate";
  absl::string_view experts = "mlp.experts.";
  absl::string_view expert_gate = "gate_proj";
  absl::string_view expert_up = "up_proj";
  absl::string_view expert_down = "down_proj";
  absl::string_view shared_gate = "mlp.shared_expert_gate";
  absl::string_view shared_expert = "mlp.shared_expert.";
  std::span<const absl::string_view> ignored;  // Ends of names of buffers that nobody reads.
};

// Which layers "max_window_layers" leaves a window.
enum class WindowDepth : uint8_t { kAll, kFromMaxWindowLayers, kBelowMaxWindowLayers };

// Of a family whose layers have experts.
struct ExpertDefaults {
  int64_t count = 0;  // 0: none.
  int64_t top_k = 0;
  int64_t ffn_size = 0;         // 0: that of "intermediate_size", and no field of its own.
  int64_t shared_ffn_size = 0;  // 0: no shared expert.
  bool always_renormalize = false;  // Or as "norm_topk_prob" says.
  bool sparse_layers = false;  // "decoder_sparse_step" and "mlp_only_layers" spare some layers.
};

// What the architectures differ in: their features, the names of their fields and tensors, and
// transformers' defaults for absent fields.
struct Family {
  const char* architecture = nullptr;
  const char* model_type = nullptr;
  int64_t vocab_size = 0;
  int64_t hidden_size = 4096;
  int64_t ffn_size = 0;  // 0: four times hidden_size, whatever the file says.
  int64_t num_layers = 32;
  int64_t num_heads = 32;
  int64_t num_kv_heads = 0;  // 0: as many as heads.
  int64_t head_dim = 0;      // 0: hidden_size / num_heads.
  int64_t max_positions = 2048;
  int64_t sliding_window = 0;  // 0: never one; -1: none.
  int32_t bos = -1;            // -1: none.
  int32_t eos = -1;            // -1: none.

  NormKind norm = NormKind::kRms;
  double norm_eps = 1e-6;
  bool embedding_norm = false;
  const char* activation = "silu";
  bool activation_field = true;  // "hidden_act" may name another.
  bool gated_mlp = true;
  ExpertDefaults experts = {};
  bool tied_embeddings = false;
  bool qk_norm = false;
  bool norm_one_plus_weight = false;
  bool scaled_embedding = false;  // By the root of hidden_size.
  double query_scalar = 0;        // Of "query_pre_attn_scalar"; 0: head_dim.
  // Without a value the family does not read the field.
  std::optional<double> attention_softcap = std::nullopt;
  std::optional<double> logits_softcap = std::nullopt;

  bool rotary = true;
  double rotary_factor = 1;          // Of each head's elements,
  bool rotary_factor_field = false;  // or as "partial_rotary_factor" says.
  double rope_theta = 10000;
  double local_rope_theta = 0;     // Of layers that may have a window; 0: as the others.
  int32_t original_positions = 0;  // Before longrope; 0: max_position_embeddings, as read.
  bool only_longrope = false;      // No other scaled form is allowed.
  bool learned_positions = false;
  int32_t position_offset = 0;
  bool alibi = false;

  bool attention_bias = false;        // q, k and v have biases,
  bool attention_bias_field = false;  // or as "attention_bias" says;
  bool o_bias = false;                // and o has one too, where they have.
  bool mlp_bias = false;
  bool mlp_bias_field = false;
  bool window_switch = false;  // The window needs "use_sliding_window".
  bool layer_types = false;    // The field of that name says which layers have it, or else
  WindowDepth window_depth = WindowDepth::kAll;
  int64_t full_attention_every = 0;  // the last of so many has none, or as a field says.
  const char* full_attention_field = nullptr;
  bool needs_divisible_hidden = false;  // hidden_size % num_heads == 0 unless head_dim is given.
  bool plain_heads = false;  // As many KV heads as heads, of hidden_size / num_heads elements each.

  // Names of fields that only some families have; null: not this one.
  const char* norm_eps_field = "rms_norm_eps";
  const char* pre_norm_field = nullptr;        // False: norms behind the blocks.
  const char* no_final_norm_field = nullptr;   // True: without the last norm.
  const char* normed_residual_field = nullptr;
  const char* parallel_residual_field = nullptr;  // Absent: true.
  const char* embedding_dim_field = nullptr;      // Absent: hidden_size.

  std::span<const FieldAlias> aliases;
  TensorNames names;
};

// That a config.json names by "architectures", or else by "model_type".
absl::StatusOr<const Family*> FindFamily(JsonFields& config);

// Of a ModelConfig's architecture; Llama's for one that is not known.
const TensorNames& NamesOf(absl::string_view architecture);

}  // namespace baton
