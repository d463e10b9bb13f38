#include "common/checkpoint/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/unit/common/checkpoint/model_dir.h"

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kHead[] = "lm_head.weight";
constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kAttention[] = "model.layers.0.self_attn.";

// One Llama layer: hidden 8, 2 heads of 6, 1 kv head, ffn 5, vocab 3.
class WeightsTest : public ::testing::Test {
 protected:
  WeightsTest() {
    config_ = {.vocab_size = 3,
               .hidden_size = 8,
               .embedding_dim = 8,
               .num_layers = 1,
               .num_heads = 2,
               .num_kv_heads = 1,
               .head_dim = 6,
               .ffn_size = 5,
               .rotary_dim = 6};
    const std::string layer = "model.layers.0.";
    Add(kEmbedding, {3, 8});
    Add(kHead, {3, 8});
    Add("model.norm.weight", {8});
    Add(layer + "input_layernorm.weight", {8});
    Add(layer + "post_attention_layernorm.weight", {8});
    Add(kAttention + std::string("q_proj.weight"), {12, 8});
    Add(kAttention + std::string("k_proj.weight"), {6, 8});
    Add(kAttention + std::string("v_proj.weight"), {6, 8});
    Add(kAttention + std::string("o_proj.weight"), {8, 12});
    Add(layer + "mlp.gate_proj.weight", {5, 8});
    Add(layer + "mlp.up_proj.weight", {5, 8});
    Add(layer + "mlp.down_proj.weight", {8, 5});
  }

  // Contents differ from tensor to tensor.
  void Add(const std::string& name, const std::vector<int64_t>& shape) {
    int64_t size = 2;
    for (int64_t extent : shape) size *= extent;
    const char fill = static_cast<char>('a' + tensors_.size());
    tensors_.push_back({name, "BF16", shape, std::string(size, fill)});
  }
  TestTensor& Find(const std::string& name) {
    return *std::find_if(tensors_.begin(), tensors_.end(),
                         [&](const TestTensor& t) { return t.name == name; });
  }
  void Remove(const std::string& name) {
    std::erase_if(tensors_, [&](const TestTensor& t) { return t.name == name; });
  }
  absl::StatusOr<ModelWeights> Map() {
    dir_.Write("model.safetensors", SafetensorsBytes(tensors_));
    files_ = std::make_unique<SafetensorsFiles>(*SafetensorsFiles::Open(dir_.path()));
    return MapWeights(config_, *files_);
  }
  std::string Error() { return std::string(Map().status().message()); }

  ModelConfig config_;
  std::vector<TestTensor> tensors_;
  ModelDir dir_;
  std::unique_ptr<SafetensorsFiles> files_;
};

TEST_F(WeightsTest, EveryRoleGetsItsTensor) {
  const auto weights = Map();
  ASSERT_TRUE(weights.ok()) << weights.status();
  ASSERT_EQ(weights->layers.size(), 1u);
  const LayerWeights& layer = weights->layers[0];
  const auto first = [](const TensorView& t) { return static_cast<char>(t.bytes[0]); };
  EXPECT_EQ(
      std::string({first(weights->embedding), first(weights->lm_head),
                   first(weights->final_norm.weight), first(layer.attention_norm.weight),
                   first(layer.ffn_norm.weight), first(layer.q_proj),
                   first(layer.k_proj), first(layer.v_proj), first(layer.o_proj),
                   first(layer.gate_proj), first(layer.up_proj), first(layer.down_proj)}),
      "abcdefghijkl");
  EXPECT_EQ(layer.q_proj.dtype, DType::kBF16);
  EXPECT_EQ(layer.q_proj.shape, (std::vector<int64_t>{12, 8}));
  for (const TensorView* absent : {&layer.q_bias, &layer.o_bias, &layer.gate_bias, &layer.q_norm}) {
    EXPECT_FALSE(absent->present());
  }
}

TEST_F(WeightsTest, BiasesAndHeadNormsComeWithTheirFeatures) {
  config_.qkv_bias = config_.o_bias = config_.mlp_bias = config_.qk_norm = true;
  for (const auto& [name, size] : {std::pair<std::string, int64_t>{"self_attn.q_proj.bias", 12},
                                   {"self_attn.k_proj.bias", 6},
                                   {"self_attn.v_proj.bias", 6},
                                   {"self_attn.o_proj.bias", 8},
                                   {"self_attn.q_norm.weight", 6},
                                   {"self_attn.k_norm.weight", 6},
                                   {"mlp.gate_proj.bias", 5},
                                   {"mlp.up_proj.bias", 5},
                                   {"mlp.down_proj.bias", 8}}) {
    EXPECT_THAT(Error(), HasSubstr("is missing"));
    Add("model.layers.0." + name, {size});
  }
  const auto weights = Map();
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->layers[0].down_bias.shape, (std::vector<int64_t>{8}));
  EXPECT_TRUE(weights->layers[0].k_norm.present());
}

TEST_F(WeightsTest, EachMissingTensorIsNamed) {
  const std::vector<TestTensor> all = tensors_;
  for (const TestTensor& missing : all) {
    tensors_ = all;
    Remove(missing.name);
    EXPECT_THAT(Error(), HasSubstr("tensor \"" + missing.name + "\" is missing"));
  }
}

TEST_F(WeightsTest, AWrongShapeIsRefusedWithBothShapes) {
  Find("model.layers.0.mlp.up_proj.weight").shape = {8, 5};
  EXPECT_THAT(Error(), AllOf(HasSubstr("up_proj.weight"), HasSubstr("has shape [8, 5]"),
                             HasSubstr("asks for [5, 8]")));
}

TEST_F(WeightsTest, OtherDTypesAreRefusedOnlyWhereTheyAreNeeded) {
  tensors_.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "I64", {1}, "12345678"});
  EXPECT_TRUE(Map().ok());
  Find("model.norm.weight").dtype = "I16";
  EXPECT_THAT(Error(), AllOf(HasSubstr("model.norm.weight"), HasSubstr("dtype I16")));
}

TEST_F(WeightsTest, TensorsWithoutAPlaceAreRefusedByName) {
  for (const char* name : {"model.layers.0.self_attn.q_proj.bias", "model.layers.1.mlp.x",
                           "lm_head.bias", "model.layers.0.self_attn.q_norm.weight"}) {
    Add(name, {1});
    EXPECT_THAT(Error(), AllOf(HasSubstr(name), HasSubstr("has no place")));
    Remove(name);
  }
}

TEST_F(WeightsTest, TiedModelsUseWhicheverMatrixIsThere) {
  config_.tied_embeddings = true;
  Remove(kHead);
  auto weights = Map();
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->lm_head.bytes.data(), weights->embedding.bytes.data());
  Find(kEmbedding).name = kHead;
  weights = Map();
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->lm_head.bytes.data(), weights->embedding.bytes.data());
  Remove(kHead);
  EXPECT_THAT(Error(), HasSubstr("embed_tokens.weight\" is missing"));
}

TEST_F(WeightsTest, TwoMatricesAreOneOnlyIfTheyAreEqual) {
  config_.tied_embeddings = true;
  auto weights = Map();
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_NE(weights->lm_head.bytes.data(), weights->embedding.bytes.data());
  Find(kHead).bytes = Find(kEmbedding).bytes;
  weights = Map();
  EXPECT_EQ(weights->lm_head.bytes.data(), weights->embedding.bytes.data());
}

// A file saved from the model without its output layer.
TEST_F(WeightsTest, NamesMayLackTheirBase) {
  config_.tied_embeddings = true;
  Remove(kHead);
  for (TestTensor& tensor : tensors_) tensor.name = tensor.name.substr(sizeof("model.") - 1);
  EXPECT_TRUE(Map().ok()) << Map().status();
  tensors_.back().name = "model." + tensors_.back().name;
  EXPECT_THAT(Error(), HasSubstr("\"layers.0.mlp.down_proj.weight\" is missing"));
}

// A GPT-NeoX layer of two heads of four. Each row's numbers are its place in the file.
class FusedWeightsTest : public testing::Test {
 protected:
  FusedWeightsTest() {
    const std::string layer = "gpt_neox.layers.0.";
    Add("embed_out.weight", {2, 8});
    Add("gpt_neox.embed_in.weight", {2, 8});
    for (const char* norm : {"final_layer_norm", "layers.0.input_layernorm",
                             "layers.0.post_attention_layernorm"}) {
      Add(std::string("gpt_neox.") + norm + ".weight", {8});
      Add(std::string("gpt_neox.") + norm + ".bias", {8});
    }
    AddLinear(layer + "attention.query_key_value", 24, 8);
    AddLinear(layer + "attention.dense", 8, 8);
    AddLinear(layer + "mlp.dense_h_to_4h", 3, 8);
    AddLinear(layer + "mlp.dense_4h_to_h", 8, 3);
    tensors_.push_back({layer + "attention.bias", "U8", {1, 1, 2, 2}, "abcd"});
    tensors_.push_back({layer + "attention.masked_bias", "F32", {}, "abcd"});
  }

  void Add(const std::string& name, const std::vector<int64_t>& shape) {
    std::string bytes;
    for (int64_t row = 0; row < shape[0]; ++row) {
      const auto value = static_cast<float>(row);
      for (int64_t i = 0; i < (shape.size() > 1 ? shape[1] : 1); ++i) {
        bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
      }
    }
    tensors_.push_back({name, "F32", shape, bytes});
  }
  void AddLinear(const std::string& name, int64_t rows, int64_t columns) {
    Add(name + ".weight", {rows, columns});
    Add(name + ".bias", {rows});
  }

  static std::vector<int> RowsOf(const TensorView& tensor) {
    std::vector<int> rows;
    for (const TensorView& run : DenseRuns(tensor, 0, tensor.shape[0])) {
      const int64_t width = run.NumElements() / run.shape[0];
      std::vector<float> values(run.NumElements());
      ConvertToF32(run, 0, values);
      for (size_t i = 0; i < values.size(); i += width) rows.push_back(static_cast<int>(values[i]));
    }
    return rows;
  }

  const ModelConfig config_{.architecture = "GPTNeoXForCausalLM",
                            .vocab_size = 2,
                            .hidden_size = 8,
                            .embedding_dim = 8,
                            .num_layers = 1,
                            .num_heads = 2,
                            .num_kv_heads = 2,
                            .head_dim = 4,
                            .ffn_size = 3,
                            .norm = NormKind::kLayer,
                            .gated_mlp = false,
                            .qkv_bias = true,
                            .o_bias = true,
                            .mlp_bias = true};
  std::vector<TestTensor> tensors_;
};

TEST_F(FusedWeightsTest, RowsOfEachHeadsQueriesKeysAndValuesLieInTurn) {
  for (const char* head : {"embed_out.weight", "lm_head.weight"}) {
    tensors_[0].name = head;
    const ModelDir dir;
    dir.Write("model.safetensors", SafetensorsBytes(tensors_));
    const auto files = *SafetensorsFiles::Open(dir.path());
    const auto weights = MapWeights(config_, files);
    ASSERT_TRUE(weights.ok()) << weights.status();
    const LayerWeights& w = weights->layers[0];
    EXPECT_THAT(RowsOf(w.q_proj), testing::ElementsAre(0, 1, 2, 3, 12, 13, 14, 15));
    EXPECT_THAT(RowsOf(w.k_proj), testing::ElementsAre(4, 5, 6, 7, 16, 17, 18, 19));
    EXPECT_THAT(RowsOf(w.v_proj), testing::ElementsAre(8, 9, 10, 11, 20, 21, 22, 23));
    EXPECT_THAT(RowsOf(w.v_bias), testing::ElementsAre(8, 9, 10, 11, 20, 21, 22, 23));
    EXPECT_TRUE(w.ffn_norm.bias.present() && weights->final_norm.bias.present());
  }
}

TEST_F(WeightsTest, Phi3sFusedMatricesAreCutIntoTheirRoles) {
  config_.architecture = "Phi3ForCausalLM";
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
    Remove(kAttention + std::string(name) + ".weight");
  }
  Remove("model.layers.0.mlp.gate_proj.weight");
  Remove("model.layers.0.mlp.up_proj.weight");
  Add(kAttention + std::string("qkv_proj.weight"), {24, 8});
  Add("model.layers.0.mlp.gate_up_proj.weight", {10, 8});
  std::string& qkv = Find(kAttention + std::string("qkv_proj.weight")).bytes;
  std::string& gate_up = Find("model.layers.0.mlp.gate_up_proj.weight").bytes;
  qkv = std::string(12 * 16, 'q') + std::string(6 * 16, 'k') + std::string(6 * 16, 'v');
  gate_up = std::string(5 * 16, 'g') + std::string(5 * 16, 'u');
  const auto weights = Map();
  ASSERT_TRUE(weights.ok()) << weights.status();
  const LayerWeights& layer = weights->layers[0];
  const struct {
    const TensorView& tensor;
    int64_t rows;
    char fill;
  } parts[] = {{layer.q_proj, 12, 'q'},   {layer.k_proj, 6, 'k'}, {layer.v_proj, 6, 'v'},
               {layer.gate_proj, 5, 'g'}, {layer.up_proj, 5, 'u'}};
  for (const auto& part : parts) {
    EXPECT_EQ(part.tensor.shape, (std::vector<int64_t>{part.rows, 8}));
    ASSERT_EQ(std::ssize(part.tensor.bytes), part.rows * 16);
    for (const std::byte byte : part.tensor.bytes) EXPECT_EQ(static_cast<char>(byte), part.fill);
  }
}

TEST_F(WeightsTest, NormsOfOutputsComeWithTheirFeature) {
  config_.architecture = "Gemma2ForCausalLM";
  config_.output_norms = true;
  EXPECT_THAT(Error(), HasSubstr("pre_feedforward_layernorm"));
  Add("model.layers.0.pre_feedforward_layernorm.weight", {8});
  EXPECT_THAT(Error(), HasSubstr("post_feedforward_layernorm"));
  Add("model.layers.0.post_feedforward_layernorm.weight", {8});
  const auto weights = Map();
  ASSERT_TRUE(weights.ok()) << weights.status();
  const LayerWeights& layer = weights->layers[0];
  // As they were added: the norm behind attention has the name of another's before the MLP.
  EXPECT_EQ(static_cast<char>(layer.attention_output_norm.bytes[0]), 'e');
  EXPECT_EQ(static_cast<char>(layer.ffn_norm.weight.bytes[0]), 'm');
  EXPECT_EQ(static_cast<char>(layer.ffn_output_norm.bytes[0]), 'n');
}

TEST_F(WeightsTest, LayersOfExpertsHaveARouterAndNoMlp) {
  config_.architecture = "Qwen2MoeForCausalLM";
  config_.experts = {.count = 2, .top_k = 1, .ffn_size = 3, .shared_ffn_size = 4,
                     .layers = {true}};
  const std::string mlp = "model.layers.0.mlp.";
  for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
    EXPECT_THAT(Error(), HasSubstr("is missing"));
    Remove(mlp + name + ".weight");
  }
  Add(mlp + "gate.weight", {2, 8});
  Add(mlp + "shared_expert_gate.weight", {1, 8});
  for (const std::string expert : {"experts.0.", "experts.1.", "shared_expert."}) {
    EXPECT_THAT(Error(), HasSubstr(expert + "gate_proj"));
    const int64_t ffn = expert == "shared_expert." ? 4 : 3;
    Add(mlp + expert + "gate_proj.weight", {ffn, 8});
    Add(mlp + expert + "up_proj.weight", {ffn, 8});
    Add(mlp + expert + "down_proj.weight", {8, ffn});
  }
  const auto weights = Map();
  ASSERT_TRUE(weights.ok()) << weights.status();
  const LayerWeights& layer = weights->layers[0];
  EXPECT_EQ(layer.experts.size(), 2u);
  EXPECT_EQ(layer.experts[1].down_proj.shape, (std::vector<int64_t>{8, 3}));
  EXPECT_EQ(layer.down_proj.shape, (std::vector<int64_t>{8, 4}));
  EXPECT_TRUE(layer.router.present() && layer.shared_gate.present());
}

}  // namespace
}  // namespace baton
