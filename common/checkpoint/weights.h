#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/tensor_view.h"

namespace baton {

// Both not present(): there is no such norm.
struct NormWeights {
  TensorView weight;  // [dim]
  TensorView bias;    // [dim], of a layer norm.
};

// One expert: a gated MLP of ffn rows or columns.
struct ExpertWeights {
  TensorView gate_proj;  // [ffn, hidden_size]
  TensorView up_proj;    // [ffn, hidden_size]
  TensorView down_proj;  // [hidden_size, ffn]
};

// The parameters of one layer by role. Matrices are [out_features, in_features]. A tensor that the
// config does not ask for is not present().
struct LayerWeights {
  // [hidden_size]: before attention. With post_norm that behind the layer before; none in the
  // first layer.
  NormWeights attention_norm;
  TensorView q_proj;     // [num_heads * head_dim, hidden_size]
  TensorView k_proj;     // [num_kv_heads * head_dim, hidden_size]
  TensorView v_proj;     // [num_kv_heads * head_dim, hidden_size]
  TensorView q_bias;     // [num_heads * head_dim], with qkv_bias.
  TensorView k_bias;     // [num_kv_heads * head_dim], with qkv_bias.
  TensorView v_bias;     // [num_kv_heads * head_dim], with qkv_bias.
  TensorView q_norm;     // [head_dim], with qk_norm.
  TensorView k_norm;     // [head_dim], with qk_norm.
  TensorView o_proj;     // [hidden_size, num_heads * head_dim]
  TensorView o_bias;     // [hidden_size], with o_bias.
  NormWeights ffn_norm;  // [hidden_size]: before the MLP. With post_norm that behind attention.
  TensorView attention_output_norm;  // [hidden_size], with output_norms, as the next.
  TensorView ffn_output_norm;
  TensorView gate_proj;  // [ffn_size, hidden_size], with gated_mlp.
  TensorView up_proj;    // [ffn_size, hidden_size]
  TensorView down_proj;  // [hidden_size, ffn_size]
  TensorView gate_bias;  // [ffn_size], with gated_mlp and mlp_bias.
  TensorView up_bias;    // [ffn_size], with mlp_bias.
  TensorView down_bias;  // [hidden_size], with mlp_bias.

  // In a layer of experts, instead of gate, up and down: these are the shared expert's there.
  TensorView router;                   // [experts.count, hidden_size]
  std::vector<ExpertWeights> experts;  // [experts.count]
  TensorView shared_gate;              // [1, hidden_size], with a shared expert.
};

struct ModelWeights {
  TensorView embedding;        // [vocab_size, embedding_dim]
  TensorView positions;        // [position_offset + max_position_embeddings, hidden_size], with
                               // learned_positions.
  TensorView embedding_in;     // [hidden_size, embedding_dim], where they differ.
  NormWeights embedding_norm;  // [hidden_size], with embedding_norm.
  std::vector<LayerWeights> layers;  // [num_layers]
  NormWeights final_norm;      // [hidden_size]. With post_norm that behind the last layer.
  TensorView embedding_out;    // [embedding_dim, hidden_size], where they differ.
  TensorView lm_head;  // [vocab_size, embedding_dim]; with tied_embeddings the embedding itself.
};

// Finds every tensor that `config` asks for by its Hugging Face name (families.h) and checks its
// shape and type. The views point into `files` and live as long as it does. A missing tensor, a
// wrong shape, and a tensor that the config does not explain (a bias, another layer, ...) are
// refused by name; buffers of rotary_emb and those that the family ignores are passed over. With
// tied_embeddings, as in transformers, either of embedding and lm_head may be missing, and if both
// are there and differ they are not tied.
absl::StatusOr<ModelWeights> MapWeights(const ModelConfig& config, const SafetensorsFiles& files);

}  // namespace baton
