#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "tests/unit/common/checkpoint/model_dir.h"

namespace baton {

// The sizes of a model of two layers, every feature of the qwen3 family and random weights.
struct RandomModel {
  int64_t head_dim = 64;
  int64_t num_heads = 2;
  int64_t num_kv_heads = 1;
  int64_t hidden = 40;
  int64_t ffn = 56;
  int64_t vocab = 96;
  bool bias = true;
  bool tied = false;
  int64_t max_len = 256;
};

inline std::string ConfigOf(const RandomModel& model) {
  return nlohmann::json{{"architectures", {"Qwen3ForCausalLM"}},
                        {"model_type", "qwen3"},
                        {"vocab_size", model.vocab},
                        {"hidden_size", model.hidden},
                        {"intermediate_size", model.ffn},
                        {"num_hidden_layers", 2},
                        {"num_attention_heads", model.num_heads},
                        {"num_key_value_heads", model.num_kv_heads},
                        {"head_dim", model.head_dim},
                        {"attention_bias", model.bias},
                        {"tie_word_embeddings", model.tied},
                        {"max_position_embeddings", model.max_len},
                        {"eos_token_id", 2}}
      .dump();
}

// Weights large enough that every one of them moves the logits.
class RandomWeights {
 public:
  explicit RandomWeights(const RandomModel& model) : model_(model) {
    Add("model.embed_tokens.weight", {model.vocab, model.hidden}, 0, model.tied ? 0.3 : 1);
    Add("model.norm.weight", {model.hidden}, 1, 0.2);
    if (!model.tied) AddMatrix("lm_head", model.vocab, model.hidden, false);
    for (int layer = 0; layer < 2; ++layer) AddLayer("model.layers." + std::to_string(layer) + ".");
  }
  const std::vector<TestTensor>& tensors() const { return tensors_; }

 private:
  void AddLayer(const std::string& layer) {
    const int64_t q = model_.num_heads * model_.head_dim;
    const int64_t kv = model_.num_kv_heads * model_.head_dim;
    Add(layer + "input_layernorm.weight", {model_.hidden}, 1, 0.2);
    Add(layer + "post_attention_layernorm.weight", {model_.hidden}, 1, 0.2);
    Add(layer + "self_attn.q_norm.weight", {model_.head_dim}, 1, 0.2);
    Add(layer + "self_attn.k_norm.weight", {model_.head_dim}, 1, 0.2);
    AddMatrix(layer + "self_attn.q_proj", q, model_.hidden, model_.bias);
    AddMatrix(layer + "self_attn.k_proj", kv, model_.hidden, model_.bias);
    AddMatrix(layer + "self_attn.v_proj", kv, model_.hidden, model_.bias);
    AddMatrix(layer + "self_attn.o_proj", model_.hidden, q, model_.bias);
    AddMatrix(layer + "mlp.gate_proj", model_.ffn, model_.hidden, false);
    AddMatrix(layer + "mlp.up_proj", model_.ffn, model_.hidden, false);
    AddMatrix(layer + "mlp.down_proj", model_.hidden, model_.ffn, false);
  }

  void AddMatrix(const std::string& name, int64_t rows, int64_t columns, bool bias) {
    Add(name + ".weight", {rows, columns}, 0, 1.3 / std::sqrt(static_cast<double>(columns)));
    if (bias) Add(name + ".bias", {rows}, 0, 0.3);
  }

  void Add(const std::string& name, const std::vector<int64_t>& shape, double mean, double spread) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    std::string bytes;
    for (int64_t i = 0; i < count; ++i) {
      // Of variance 1.
      const double unit = (random_.Unit() - 0.5) * std::sqrt(12.0);
      const auto value = static_cast<float>(mean + spread * unit);
      bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    tensors_.push_back({name, "F32", shape, bytes});
  }

  const RandomModel model_;
  Random random_{3};
  std::vector<TestTensor> tensors_;
};

inline void WriteRandomModel(const RandomModel& model, const ModelDir& folder) {
  folder.Write("config.json", ConfigOf(model));
  folder.Write("model.safetensors", SafetensorsBytes(RandomWeights(model).tensors()));
}

}  // namespace baton
