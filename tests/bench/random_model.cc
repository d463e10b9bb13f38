#include "tests/bench/random_model.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/base/random.h"

namespace baton::bench {
namespace {

using nlohmann::json;

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;

  int64_t size() const {
    int64_t product = 1;
    for (const int64_t extent : shape) product *= extent;
    return product;
  }
  bool is_norm() const { return shape.size() == 1; }
};

std::vector<Tensor> TensorsOf(const ModelShape& s) {
  const int64_t kv = s.hidden / s.heads * s.kv_heads;
  std::vector<Tensor> out = {{"model.embed_tokens.weight", {s.vocab, s.hidden}},
                             {"model.norm.weight", {s.hidden}},
                             {"lm_head.weight", {s.vocab, s.hidden}}};
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    out.push_back({layer + "input_layernorm.weight", {s.hidden}});
    out.push_back({layer + "post_attention_layernorm.weight", {s.hidden}});
    out.push_back({layer + "self_attn.q_proj.weight", {s.hidden, s.hidden}});
    out.push_back({layer + "self_attn.k_proj.weight", {kv, s.hidden}});
    out.push_back({layer + "self_attn.v_proj.weight", {kv, s.hidden}});
    out.push_back({layer + "self_attn.o_proj.weight", {s.hidden, s.hidden}});
    out.push_back({layer + "mlp.gate_proj.weight", {s.ffn, s.hidden}});
    out.push_back({layer + "mlp.up_proj.weight", {s.ffn, s.hidden}});
    out.push_back({layer + "mlp.down_proj.weight", {s.hidden, s.ffn}});
  }
  return out;
}

json ConfigOf(const ModelShape& s) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", s.hidden},
          {"num_hidden_layers", s.layers},
          {"num_attention_heads", s.heads},
          {"num_key_value_heads", s.kv_heads},
          {"intermediate_size", s.ffn},
          {"vocab_size", s.vocab},
          {"max_position_embeddings", 8192},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"},
          {"eos_token_id", 2}};
}

// Four bf16 of either sign with magnitudes in [2^-8, 2^-7).
uint64_t FourWeights(Random& random) {
  const uint64_t bits = random.Next();
  return (bits & 0x807f807f807f807full) | 0x3b803b803b803b80ull;
}

}  // namespace

absl::Status WriteRandomModel(const ModelShape& shape, const std::string& dir) {
  std::ofstream(dir + "/config.json") << ConfigOf(shape).dump(2);
  const std::vector<Tensor> tensors = TensorsOf(shape);
  json header = json::object();
  int64_t at = 0;
  for (const Tensor& tensor : tensors) {
    const int64_t end = at + tensor.size() * 2;
    header[tensor.name] = {{"dtype", "BF16"}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream file(dir + "/model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file.write(text.data(), static_cast<std::streamsize>(length));
  Random random(1);
  std::vector<uint64_t> chunk;
  for (const Tensor& tensor : tensors) {
    for (int64_t left = tensor.size() / 4; left > 0; left -= std::ssize(chunk)) {
      chunk.resize(std::min<int64_t>(left, 1 << 17));
      for (uint64_t& four : chunk) {
        four = tensor.is_norm() ? 0x3f803f803f803f80ull : FourWeights(random);
      }
      file.write(reinterpret_cast<const char*>(chunk.data()),
                 static_cast<std::streamsize>(chunk.size() * 8));
    }
  }
  file.close();
  if (!file) return absl::ResourceExhaustedError("cannot write the model to " + dir);
  return absl::OkStatus();
}

}  // namespace baton::bench
