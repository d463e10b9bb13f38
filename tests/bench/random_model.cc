#include "tests/bench/random_model.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"

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
    if (s.experts == 0) {
      out.push_back({layer + "mlp.gate_proj.weight", {s.ffn, s.hidden}});
      out.push_back({layer + "mlp.up_proj.weight", {s.ffn, s.hidden}});
      out.push_back({layer + "mlp.down_proj.weight", {s.hidden, s.ffn}});
      continue;
    }
    const std::string moe = layer + "block_sparse_moe.";
    out.push_back({moe + "gate.weight", {s.experts, s.hidden}});
    for (int64_t e = 0; e < s.experts; ++e) {
      const std::string expert = absl::StrCat(moe, "experts.", e, ".");
      out.push_back({expert + "w1.weight", {s.ffn, s.hidden}});
      out.push_back({expert + "w3.weight", {s.ffn, s.hidden}});
      out.push_back({expert + "w2.weight", {s.hidden, s.ffn}});
    }
  }
  return out;
}

json ConfigOf(const ModelShape& s) {
  json config = {{"architectures", {"LlamaForCausalLM"}},
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
                 {"bos_token_id", 1},
                 {"eos_token_id", 2}};
  if (s.experts == 0) return config;
  config["architectures"] = {"MixtralForCausalLM"};
  config["model_type"] = "mixtral";
  config["num_local_experts"] = s.experts;
  config["num_experts_per_tok"] = s.top_k;
  config["sliding_window"] = nullptr;
  return config;
}

// Byte-level BPE writes each byte as a printable character: those that are stand for themselves,
// the others follow from U+0100 on. (Radford et al., 2019.)
std::string ByteCharacter(int byte, int* next) {
  const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
  const int code = printable ? byte : (*next)++;
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

// Three special tokens, the bytes, and words of letters that no merge leads to.
json TokenizerOf(const ModelShape& s) {
  json vocab = json::object();
  json added = json::array();
  for (const char* name : {"<unk>", "<s>", "</s>"}) {
    const size_t id = vocab.size();
    vocab[name] = id;
    added.push_back({{"id", id},
                     {"content", name},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const size_t id = vocab.size();
    vocab[ByteCharacter(byte, &next)] = id;
  }
  for (int64_t id = std::ssize(vocab); id < s.vocab; ++id) {
    std::string word = "\u0120";  // A space.
    for (int64_t rest = id, i = 0; i < 4; ++i, rest /= 26) {
      word += static_cast<char>('a' + rest % 26);
    }
    vocab[word] = id;
  }
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}};
}

// Four bf16 of either sign with magnitudes in [2^-8, 2^-7).
uint64_t FourWeights(Random& random) {
  const uint64_t bits = random.Next();
  return (bits & 0x807f807f807f807full) | 0x3b803b803b803b80ull;
}

absl::Status WriteModel(const ModelShape& shape, const std::string& dir) {
  std::ofstream(dir + "/config.json") << ConfigOf(shape).dump(2);
  std::ofstream(dir + "/tokenizer.json") << TokenizerOf(shape).dump();
  std::ofstream(dir + "/tokenizer_config.json")
      << json({{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}}).dump(2);
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

}  // namespace

absl::StatusOr<ModelShape> ShapeOf(const std::string& name) {
  for (const ModelShape& shape : {k125M, k1B, k8B, kQuick}) {
    if (name == shape.name) return shape;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--model ", name, ": must be 125M, 1B, 8B or quick"));
}

absl::StatusOr<std::string> MakeRandomModel(const ModelShape& shape,
                                            const std::string& models_dir) {
  const std::string dir = models_dir + "/" + shape.name;
  if (std::filesystem::exists(dir)) return dir;
  const std::string unfinished = absl::StrCat(dir, ".", getpid());
  std::error_code error;
  std::filesystem::create_directories(unfinished, error);
  if (error) return absl::NotFoundError(absl::StrCat(unfinished, ": ", error.message()));
  absl::Status status = WriteModel(shape, unfinished);
  if (status.ok()) {
    std::filesystem::rename(unfinished, dir, error);
    // Another process may have been first: its model is the same.
    if (!error || std::filesystem::exists(dir)) return dir;
    status = absl::UnavailableError(absl::StrCat(dir, ": ", error.message()));
  }
  std::filesystem::remove_all(unfinished, error);
  return status;
}

ModelsFolder::ModelsFolder(const std::string& kept_dir)
    : dir_(kept_dir.empty() ? absl::StrCat(std::filesystem::temp_directory_path().string(),
                                           "/baton-bench-", getpid())
                            : kept_dir),
      keep_(!kept_dir.empty()) {}

ModelsFolder::~ModelsFolder() {
  std::error_code error;
  if (!keep_) std::filesystem::remove_all(dir_, error);
}

}  // namespace baton::bench
