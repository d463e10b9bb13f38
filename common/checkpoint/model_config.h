#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/checkpoint/rope.h"

namespace baton {

enum class NormKind : uint8_t { kRms, kLayer };

enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu };

// Layers whose MLP is one of many, the experts: a router sends each token to some of them, and adds
// up what they give by its weights.
struct ExpertConfig {
  int32_t count = 0;            // 0: no layer has them.
  int32_t top_k = 0;            // Of a token.
  int32_t ffn_size = 0;         // Of each.
  int32_t shared_ffn_size = 0;  // Of one that every token goes to, by a gate of its own; 0: none.
  bool renormalize = false;     // The weights of a token sum to 1.
  std::vector<bool> layers;     // [num_layers]: which have experts, or empty.

  bool operator==(const ExpertConfig&) const = default;
};

// A decoder-only transformer described by its features, not by its family: one runner reads this.
// Every field is in its range: sizes are positive and bounded so that the bytes of any tensor
// fit in int64, num_heads is a multiple of num_kv_heads.
//
// A layer is two blocks, attention and MLP: of each the output is added to the residual, of which a
// norm is its input. What follows names what differs from that.
struct ModelConfig {
  std::string architecture;  // E.g. "LlamaForCausalLM"; chooses the tensors' names.

  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t embedding_dim = 0;  // Of embedding and output layer; a matrix leads to hidden_size if it
                              // differs, and another back.
  float embedding_scale = 1;  // Multiplies the embedding.
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // Need not be hidden_size / num_heads.
  int32_t ffn_size = 0;

  NormKind norm = NormKind::kRms;
  float norm_eps = 1e-6f;
  bool embedding_norm = false;     // The embedding is normed too, before the first layer.
  bool normed_residual = false;    // The residual goes on from what a norm gives.
  bool post_norm = false;          // The norms of a layer stand behind its blocks, and none at the
                                   // end; with normed_residual.
  bool final_norm = true;          // Without, the output layer reads the residual.
  bool parallel_residual = false;  // Both blocks of a layer read the residual that enters it.
  bool norm_one_plus_weight = false;  // Scale by (1 + weight).
  bool output_norms = false;  // Norms of what the blocks give too, before the residual gets it.

  Activation activation = Activation::kSilu;
  bool gated_mlp = true;  // down(act(gate(x)) * up(x)); else down(act(up(x))).

  ExpertConfig experts;  // Gated, without biases.

  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;  // RMS norm with norm_eps over each head of q and k, before the rotation.

  // The logits' matrix is the embedding. As config.json says; LoadModelFiles corrects it to what
  // the weights hold.
  bool tied_embeddings = false;

  RopeForm rope;
  std::optional<RopeForm> local_rope;   // Of layers of its own,
  std::vector<bool> local_rope_layers;  // [num_layers], or empty without it.
  int32_t rotary_dim = 0;  // Of a head's first elements, see RotatedElements; 0 = none.
  bool learned_positions = false;  // A table of them is added to the embedding,
  int32_t position_offset = 0;     // at position + position_offset.
  bool alibi = false;              // Biases of scores by distance, as BLOOM's.
  float attention_scale = 0;  // Multiplies q . k: 1 / sqrt(head_dim).
  float attention_softcap = 0;  // Of scores, before the mask: cap * tanh(x / cap); 0 = none.
  float logits_softcap = 0;
  // [num_layers]: how many tokens a query of the layer sees, itself and those before it; 0 = all.
  // Less than max_model_len; layers that have a window have the same.
  std::vector<int32_t> windows;

  int32_t max_position_embeddings = 0;  // As config.json says.
  int32_t max_model_len = 0;  // Positions that Baton accepts; see MaxModelLen in rope_config.h.

  DType dtype = DType::kF32;  // As the weights were saved; each tensor still names its own.
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;  // May be empty.

  bool operator==(const ModelConfig&) const = default;
};

// Parses the text of a config.json, in the older (rope_theta, rope_scaling, torch_dtype) or newer
// (rope_parameters, dtype, layer_types) names; defaults are those of transformers 5. What Baton
// does not support is refused with the field, its value and what is allowed.
// InvalidArgument: malformed or out of range. Unimplemented: well-formed but not supported.
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json_text);

// Reads and parses <model_dir>/config.json.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_dir);

// Sequences of more tokens than this are rotated otherwise, by longrope's long factors; 0: no
// sequence that Baton accepts is.
int32_t OriginalLen(const ModelConfig& config);

}  // namespace baton
