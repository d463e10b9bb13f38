#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/tensor_view.h"

namespace baton {

// The parameters of one layer by role. Matrices are [out_features, in_features]. A tensor that the
// config does not ask for is not present().
struct LayerWeights {
  TensorView attention_norm;  // [hidden_size]: before attention.
  TensorView q_proj;          // [num_heads * head_dim, hidden_size]
  TensorView k_proj;          // [num_kv_heads * head_dim, hidden_size]
  TensorView v_proj;          // [num_kv_heads * head_dim, hidden_size]
  TensorView q_bias;          // [num_heads * head_dim], with qkv_bias.
  TensorView k_bias;          // [num_kv_heads * head_dim], with qkv_bias.
  TensorView v_bias;          // [num_kv_heads * head_dim], with qkv_bias.
  TensorView q_norm;          // [head_dim], with qk_norm.
  TensorView k_norm;          // [head_dim], with qk_norm.
  TensorView o_proj;          // [hidden_size, num_heads * head_dim]
  TensorView o_bias;          // [hidden_size], with o_bias.
  TensorView ffn_norm;        // [hidden_size]: before the MLP.
  TensorView gate_proj;       // [ffn_size, hidden_size], with gated_mlp.
  TensorView up_proj;         // [ffn_size, hidden_size]
  TensorView down_proj;       // [hidden_size, ffn_size]
  TensorView gate_bias;       // [ffn_size], with gated_mlp and mlp_bias.
  TensorView up_bias;         // [ffn_size], with mlp_bias.
  TensorView down_bias;       // [hidden_size], with mlp_bias.
};

struct ModelWeights {
  TensorView embedding;              // [vocab_size, hidden_size]
  std::vector<LayerWeights> layers;  // [num_layers]
  TensorView final_norm;             // [hidden_size]
  TensorView lm_head;  // [vocab_size, hidden_size]; with tied_embeddings the embedding itself.
};

// Finds every tensor that `config` asks for by its Hugging Face name and checks its shape and type.
// The views point into `files` and live as long as it does. A missing tensor, a wrong shape, and a
// tensor that the config does not explain (a bias, another layer, ...) are refused by name;
// rotary_emb buffers are ignored. With tied_embeddings, as in transformers, either of embedding and
// lm_head may be missing, and if both are there and differ they are not tied.
absl::StatusOr<ModelWeights> MapWeights(const ModelConfig& config, const SafetensorsFiles& files);

}  // namespace baton
