#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "tests/unit/common/checkpoint/model_dir.h"

// Random models of two layers, in f32, of the families and sizes that a test names.
namespace baton {

struct ModelShape {
  const char* name;
  const char* family;  // model_type, of the architecture.
  int64_t num_heads = 8;
  int64_t num_kv_heads = 2;
  int64_t head_dim = 32;
  int64_t hidden = 72;
  int64_t ffn = 256;
  int64_t vocab = 211;
  bool bias = false;  // Of all that the family has.
  bool tied = false;
  int64_t window = 0;
  int experts = 5;    // Of families that have some.
  bool other = false;  // What else the family may be: post-norm, sequential, ...
  std::vector<int> sizes = {2, 4, 8};
};

inline void PrintTo(const ModelShape& shape, std::ostream* out) { *out << shape.name; }

// Weights large enough that each of them moves the logits.
class ShapedWeights {
 public:
  explicit ShapedWeights(const ModelShape& shape) : shape_(shape) {
    if (Is("opt")) {
      MakeOpt();
    } else if (Is("gpt_neox")) {
      MakeNeoX();
    } else if (Is("bloom")) {
      MakeBloom();
    } else {
      MakeLlama();
    }
  }
  const std::vector<TestTensor>& tensors() const { return tensors_; }

 private:
  bool Is(const std::string& family) const { return family == shape_.family; }

  // And its near relatives.
  void MakeLlama() {
    const ModelShape& shape = shape_;
    Add("model.embed_tokens.weight", {shape.vocab, shape.hidden}, 0, shape.tied ? 0.3 : 1);
    Add("model.norm.weight", {shape.hidden}, 1, 0.2);
    if (!shape.tied) Matrix("lm_head", shape.vocab, shape.hidden, false);
    for (int layer = 0; layer < 2; ++layer) Layer("model.layers." + std::to_string(layer) + ".");
  }
  void Layer(const std::string& layer) {
    const bool gemma = Is("gemma2") || Is("gemma3_text");
    Add(layer + "input_layernorm.weight", {shape_.hidden}, 1, 0.2);
    Add(layer + "post_attention_layernorm.weight", {shape_.hidden}, 1, 0.2);
    if (gemma) {
      Add(layer + "pre_feedforward_layernorm.weight", {shape_.hidden}, 1, 0.2);
      Add(layer + "post_feedforward_layernorm.weight", {shape_.hidden}, 1, 0.2);
    }
    Attention(layer + "self_attn.");
    const bool second = layer.ends_with("1.");
    const bool experts = Is("mixtral") || Is("qwen2_moe") || (Is("qwen3_moe") && second);
    if (experts) {
      Experts(layer);
    } else if (Is("phi3")) {
      Matrix(layer + "mlp.gate_up_proj", 2 * shape_.ffn, shape_.hidden, false);
      Matrix(layer + "mlp.down_proj", shape_.hidden, shape_.ffn, false);
    } else {
      Mlp(layer + "mlp.", shape_.ffn, {"gate_proj", "up_proj", "down_proj"});
    }
  }

  void Attention(const std::string& attention) {
    const int64_t q = shape_.num_heads * shape_.head_dim;
    const int64_t kv = shape_.num_kv_heads * shape_.head_dim;
    if (Is("qwen3") || Is("qwen3_moe") || Is("gemma3_text")) {
      Add(attention + "q_norm.weight", {shape_.head_dim}, 1, 0.2);
      Add(attention + "k_norm.weight", {shape_.head_dim}, 1, 0.2);
    }
    if (Is("phi3")) {
      Matrix(attention + "qkv_proj", q + 2 * kv, shape_.hidden, false);
    } else {
      Matrix(attention + "q_proj", q, shape_.hidden, shape_.bias);
      Matrix(attention + "k_proj", kv, shape_.hidden, shape_.bias);
      Matrix(attention + "v_proj", kv, shape_.hidden, shape_.bias);
    }
    const bool o_bias = shape_.bias && !Is("qwen2") && !Is("qwen2_moe");
    Matrix(attention + "o_proj", shape_.hidden, q, o_bias);
  }

  void Mlp(const std::string& mlp, int64_t ffn, std::array<const char*, 3> names) {
    const bool bias = shape_.bias && Is("llama");
    Matrix(mlp + names[0], ffn, shape_.hidden, bias);
    Matrix(mlp + names[1], ffn, shape_.hidden, bias);
    Matrix(mlp + names[2], shape_.hidden, ffn, bias);
  }

  void Experts(const std::string& layer) {
    const bool mixtral = Is("mixtral");
    const std::string name = layer + (mixtral ? "block_sparse_moe." : "mlp.");
    Matrix(name + "gate", shape_.experts, shape_.hidden, false);
    for (int e = 0; e < shape_.experts; ++e) {
      const std::string expert = name + "experts." + std::to_string(e) + ".";
      if (mixtral) {
        Mlp(expert, shape_.ffn, {"w1", "w3", "w2"});
      } else {
        Mlp(expert, shape_.ffn, {"gate_proj", "up_proj", "down_proj"});
      }
    }
    if (!Is("qwen2_moe")) return;
    Matrix(name + "shared_expert_gate", 1, shape_.hidden, false);
    Mlp(name + "shared_expert.", 2 * shape_.ffn, {"gate_proj", "up_proj", "down_proj"});
  }

  void Norm(const std::string& name) {
    Add(name + ".weight", {shape_.hidden}, 1, 0.2);
    Add(name + ".bias", {shape_.hidden}, 0, 0.3);
  }

  void MakeOpt() {
    const int64_t hidden = shape_.hidden, dim = shape_.other ? 24 : hidden;
    const std::string model = "model.decoder.";
    Add(model + "embed_tokens.weight", {shape_.vocab, dim}, 0, shape_.tied ? 0.3 : 1);
    Add(model + "embed_positions.weight", {256 + 2, hidden}, 0, 0.5);
    if (!shape_.tied) Matrix("lm_head", shape_.vocab, dim, false);
    if (shape_.other) {
      Matrix(model + "project_in", hidden, dim, false);
      Matrix(model + "project_out", dim, hidden, false);
    } else {
      Norm(model + "final_layer_norm");
    }
    for (int i = 0; i < 2; ++i) {
      const std::string layer = model + "layers." + std::to_string(i) + ".";
      Norm(layer + "self_attn_layer_norm");
      Norm(layer + "final_layer_norm");
      for (const char* name : {"q_proj", "k_proj", "v_proj", "out_proj"}) {
        Matrix(layer + "self_attn." + name, hidden, hidden, true);
      }
      Matrix(layer + "fc1", shape_.ffn, hidden, true);
      Matrix(layer + "fc2", hidden, shape_.ffn, true);
    }
  }

  void MakeNeoX() {
    Add("gpt_neox.embed_in.weight", {shape_.vocab, shape_.hidden}, 0, 1);
    Matrix("embed_out", shape_.vocab, shape_.hidden, false);
    Norm("gpt_neox.final_layer_norm");
    for (const char* layer : {"gpt_neox.layers.0.", "gpt_neox.layers.1."}) {
      FusedLayer(layer, "attention.");
    }
  }

  void MakeBloom() {
    Add("word_embeddings.weight", {shape_.vocab, shape_.hidden}, 0, 0.3);
    Norm("word_embeddings_layernorm");
    Norm("ln_f");
    for (const char* layer : {"h.0.", "h.1."}) FusedLayer(layer, "self_attention.");
  }

  void FusedLayer(const std::string& layer, const std::string& attention) {
    Norm(layer + "input_layernorm");
    Norm(layer + "post_attention_layernorm");
    Matrix(layer + attention + "query_key_value", 3 * shape_.hidden, shape_.hidden, true);
    Matrix(layer + attention + "dense", shape_.hidden, shape_.hidden, true);
    Matrix(layer + "mlp.dense_h_to_4h", shape_.ffn, shape_.hidden, true);
    Matrix(layer + "mlp.dense_4h_to_h", shape_.hidden, shape_.ffn, true);
  }

  void Matrix(const std::string& name, int64_t rows, int64_t columns, bool bias) {
    Add(name + ".weight", {rows, columns}, 0, 1.3 / std::sqrt(static_cast<double>(columns)));
    if (bias) Add(name + ".bias", {rows}, 0, 0.3);
  }

  void Add(const std::string& name, const std::vector<int64_t>& shape, double mean, double spread) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    std::string bytes;
    for (int64_t i = 0; i < count; ++i) {
      const double unit = (random_.Unit() - 0.5) * std::sqrt(12.0);
      const auto value = static_cast<float>(mean + spread * unit);
      bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    tensors_.push_back({name, "F32", shape, bytes});
  }

  const ModelShape shape_;
  Random random_{5};
  std::vector<TestTensor> tensors_;
};

// Of the families with names of their own.
inline nlohmann::json OwnConfigOf(const ModelShape& shape) {
  nlohmann::json config{{"model_type", shape.family},
                        {"vocab_size", shape.vocab},
                        {"hidden_size", shape.hidden},
                        {"num_hidden_layers", 2},
                        {"num_attention_heads", shape.num_heads},
                        {"tie_word_embeddings", shape.tied},
                        {"max_position_embeddings", 256}};
  const std::string family = shape.family;
  if (family == "opt") config["ffn_dim"] = shape.ffn;
  if (family == "opt" && shape.other) {
    config.update({{"do_layer_norm_before", false}, {"word_embed_proj_dim", 24}});
  }
  if (family == "gpt_neox") config["intermediate_size"] = shape.ffn;
  if (family == "gpt_neox") config["use_parallel_residual"] = !shape.other;
  if (family == "bloom") config["apply_residual_connection_post_layernorm"] = shape.other;
  return config;
}

inline std::string ConfigOf(const ModelShape& shape) {
  const std::string family = shape.family;
  if (family == "opt" || family == "gpt_neox" || family == "bloom") {
    return OwnConfigOf(shape).dump();
  }
  nlohmann::json config{{"model_type", family},
                        {"vocab_size", shape.vocab},
                        {"hidden_size", shape.hidden},
                        {"intermediate_size", shape.ffn},
                        {"num_hidden_layers", 2},
                        {"num_attention_heads", shape.num_heads},
                        {"num_key_value_heads", shape.num_kv_heads},
                        {"head_dim", shape.head_dim},
                        {"tie_word_embeddings", shape.tied},
                        {"max_position_embeddings", 256},
                        {"eos_token_id", 2}};
  if (family == "llama") config["mlp_bias"] = shape.bias;
  if (family == "llama" || family == "qwen3") config["attention_bias"] = shape.bias;
  if (shape.window > 0) config["sliding_window"] = shape.window;
  if (family == "gemma3_text") config["sliding_window_pattern"] = 2;
  if (family == "phi3") config["partial_rotary_factor"] = 0.75;
  if (family == "mixtral") config["num_local_experts"] = shape.experts;
  if (family == "qwen2_moe" || family == "qwen3_moe") {
    config.update({{"num_experts", shape.experts},
                   {"num_experts_per_tok", 3},
                   {"moe_intermediate_size", shape.ffn},
                   {"shared_expert_intermediate_size", 2 * shape.ffn},
                   {"decoder_sparse_step", family == "qwen3_moe" ? 2 : 1},
                   {"norm_topk_prob", family == "qwen3_moe"}});
    config.erase(family == "qwen3_moe" ? "shared_expert_intermediate_size" : "");
  }
  return config.dump();
}

}  // namespace baton
