#include "common/checkpoint/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/golden/golden_file.h"

namespace baton {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json Small(const std::string& architecture) {
  return {{"architectures", {architecture}}, {"vocab_size", 64},         {"hidden_size", 32},
          {"intermediate_size", 48},         {"num_hidden_layers", 2},   {"num_attention_heads", 4},
          {"num_key_value_heads", 2},        {"sliding_window", nullptr}};
}

absl::StatusOr<ModelConfig> ParseWith(json config, const json& changes) {
  config.update(changes);
  return ParseModelConfig(config.dump());
}

std::string Error(const std::string& architecture, const json& changes) {
  return std::string(ParseWith(Small(architecture), changes).status().message());
}

std::string TypeOf(const RopeScaling& scaling) {
  constexpr const char* kNames[] = {"default", "linear", "dynamic", "yarn", "llama3"};
  return kNames[scaling.index()];
}

TEST(ModelConfigTest, DefaultsOfSparseFilesAreThoseOfTransformers) {
  const json golden = ReadGoldenJson("config.json");
  ASSERT_EQ(golden.at("cases").size(), 27u);
  for (const auto& c : golden.at("cases")) {
    SCOPED_TRACE(c.at("config").dump());
    const auto got = ParseModelConfig(c.at("config").dump());
    ASSERT_TRUE(got.ok()) << got.status();
    const json& want = c.at("expect");
    EXPECT_EQ(got->vocab_size, want.at("vocab_size"));
    EXPECT_EQ(got->hidden_size, want.at("hidden_size"));
    EXPECT_EQ(got->ffn_size, want.at("ffn_size"));
    EXPECT_EQ(got->num_layers, want.at("num_layers"));
    EXPECT_EQ(got->num_heads, want.at("num_heads"));
    EXPECT_EQ(got->num_kv_heads, want.at("num_kv_heads"));
    EXPECT_EQ(got->head_dim, want.at("head_dim"));
    EXPECT_FLOAT_EQ(got->norm_eps, want.at("norm_eps").get<float>());
    EXPECT_EQ(got->tied_embeddings, want.at("tied"));
    EXPECT_EQ(got->max_position_embeddings, want.at("max_position_embeddings"));
    EXPECT_EQ(got->rope.theta, want.at("rope_theta"));
    EXPECT_EQ(TypeOf(got->rope.scaling), want.at("rope_type"));
    if (const auto* linear = std::get_if<RopeLinear>(&got->rope.scaling)) {
      EXPECT_EQ(linear->factor, want.at("rope_factor"));
    }
    if (const auto* yarn = std::get_if<RopeYarn>(&got->rope.scaling)) {
      EXPECT_EQ(yarn->factor, want.at("rope_factor"));
      EXPECT_EQ(yarn->original_max_positions, want.at("rope_original"));
    }
    const std::string dtype = want.at("dtype") == "None" ? "float32" : want.at("dtype");
    EXPECT_EQ(got->dtype, dtype == "float16"    ? DType::kF16
                          : dtype == "bfloat16" ? DType::kBF16
                                                : DType::kF32);
    EXPECT_EQ(got->bos_token_id.value_or(-1), want.at("bos").is_null() ? json(-1) : want.at("bos"));
    json eos = want.at("eos").is_null() ? json::array() : want.at("eos");
    if (!eos.is_array()) eos = json::array({eos});
    std::sort(eos.begin(), eos.end());
    EXPECT_EQ(json(got->eos_token_ids), eos);
  }
}

TEST(ModelConfigTest, OldAndNewFormsOfAFileAreOneConfig) {
  for (const std::string& name : GoldenModels()) {
    SCOPED_TRACE(name);
    const auto saved = LoadModelConfig(GoldenModelDir(name));
    ASSERT_TRUE(saved.ok()) << saved.status();
    int others = 0;
    for (const char* form : {"old", "new"}) {
      std::ifstream in(GoldenModelDir(name) + "/config." + form + ".json");
      if (!in) continue;
      const auto other = ParseModelConfig(std::string(std::istreambuf_iterator<char>(in), {}));
      ASSERT_TRUE(other.ok()) << other.status();
      EXPECT_TRUE(*saved == *other);
      ++others;
    }
    EXPECT_EQ(others, 1);
  }
}

TEST(ModelConfigTest, FamiliesDifferInBiasesAndNorms) {
  const auto llama =
      *ParseWith(Small("LlamaForCausalLM"), {{"attention_bias", true}, {"mlp_bias", true}});
  EXPECT_TRUE(llama.qkv_bias && llama.o_bias && llama.mlp_bias && !llama.qk_norm);
  const auto mistral = *ParseWith(Small("MistralForCausalLM"), json::object());
  EXPECT_TRUE(!mistral.qkv_bias && !mistral.o_bias && !mistral.mlp_bias && !mistral.qk_norm);
  const auto qwen2 = *ParseWith(Small("Qwen2ForCausalLM"), json::object());
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.o_bias && !qwen2.mlp_bias && !qwen2.qk_norm);
  const auto qwen3 = *ParseWith(Small("Qwen3ForCausalLM"), {{"attention_bias", true}});
  EXPECT_TRUE(qwen3.qkv_bias && qwen3.o_bias && !qwen3.mlp_bias && qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 128);
}

TEST(ModelConfigTest, UnknownArchitecturesAreRefusedWithTheListOfKnownOnes) {
  EXPECT_THAT(Error("GemmaForCausalLM", json::object()),
              AllOf(HasSubstr("\"architectures\""), HasSubstr("GemmaForCausalLM"),
                    HasSubstr("Qwen3ForCausalLM")));
  EXPECT_THAT(Error("LlamaForCausalLM", {{"model_type", "gemma"}}),
              AllOf(HasSubstr("model_type"), HasSubstr("gemma"), HasSubstr("llama")));
  EXPECT_THAT(Error("LlamaForCausalLM", {{"architectures", json::array()}}),
              HasSubstr("architectures"));
  EXPECT_THAT(Error("LlamaForCausalLM", {{"architectures", nullptr}}), HasSubstr("model_type"));
}

TEST(ModelConfigTest, Phi3SmallIsRefusedForItsBlockSparseAttention) {
  EXPECT_THAT(Error("Phi3SmallForCausalLM", {{"model_type", "phi3small"},
                                             {"blocksparse_block_size", 64},
                                             {"dense_attention_every_n_layers", 2}}),
              AllOf(HasSubstr("\"architectures\" is \"Phi3SmallForCausalLM\""),
                    HasSubstr("block-sparse attention (\"blocksparse_block_size\""),
                    HasSubstr("Phi3ForCausalLM")));
  EXPECT_THAT(
      Error("Phi3SmallForCausalLM", {{"architectures", nullptr}, {"model_type", "phi3small"}}),
      AllOf(HasSubstr("\"model_type\" is \"phi3small\""), HasSubstr("block-sparse")));
}

TEST(ModelConfigTest, SizesAreCheckedForTypeRangeAndRatio) {
  const std::string llama = "LlamaForCausalLM";
  EXPECT_THAT(Error(llama, {{"hidden_size", "32"}}),
              HasSubstr("\"hidden_size\" is \"32\"; an integer is needed"));
  EXPECT_THAT(Error(llama, {{"hidden_size", 32.0}}), HasSubstr("an integer is needed"));
  for (const char* name :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (const json& bad : {json(0), json(-4), json(1ll << 40), json(true), json::array({1})}) {
      EXPECT_THAT(Error(llama, {{name, bad}}), HasSubstr(name)) << bad;
    }
  }
  EXPECT_THAT(Error(llama, {{"num_key_value_heads", 3}}),
              HasSubstr("must divide num_attention_heads = 4"));
  EXPECT_THAT(Error(llama, {{"hidden_size", 34}}), HasSubstr("multiple of num_attention_heads"));
  EXPECT_TRUE(ParseWith(Small(llama), {{"hidden_size", 34}, {"head_dim", 8}}).ok());
  EXPECT_THAT(Error(llama, {{"head_dim", 7}}), HasSubstr("an even number"));
  EXPECT_THAT(Error(llama, {{"rms_norm_eps", -1}}), HasSubstr("rms_norm_eps"));
}

std::vector<int32_t> Windows(const std::string& architecture, const json& changes) {
  const auto config = ParseWith(Small(architecture), changes);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? config->windows : std::vector<int32_t>{};
}

TEST(ModelConfigTest, MistralsWindowHoldsForEveryLayerWhateverTheSwitchSays) {
  const std::string mistral = "MistralForCausalLM";
  EXPECT_THAT(Windows(mistral, {{"sliding_window", 512}}), ElementsAre(512, 512));
  EXPECT_THAT(Windows(mistral, {{"sliding_window", 512}, {"use_sliding_window", false}}),
              ElementsAre(512, 512));
  EXPECT_THAT(Windows(mistral, {{"sliding_window", 512}, {"max_window_layers", 1}}),
              ElementsAre(512, 512));
  EXPECT_THAT(Windows(mistral, {{"sliding_window", nullptr}}), ElementsAre(0, 0));
  json absent = Small(mistral);
  absent.erase("sliding_window");
  EXPECT_THAT(ParseModelConfig(absent.dump())->windows, ElementsAre(4096, 4096));
}

TEST(ModelConfigTest, AWindowThatHidesNothingIsNone) {
  const json at_most = {{"sliding_window", 512}, {"max_position_embeddings", 512}};
  EXPECT_THAT(Windows("MistralForCausalLM", at_most), ElementsAre(0, 0));
  const json one_less = {{"sliding_window", 511}, {"max_position_embeddings", 512}};
  EXPECT_THAT(Windows("MistralForCausalLM", one_less), ElementsAre(511, 511));
}

TEST(ModelConfigTest, QwensWindowNeedsTheSwitchAndSparesTheFirstLayers) {
  for (const std::string qwen : {"Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    json window = {{"sliding_window", 512}, {"max_window_layers", 1}};
    EXPECT_THAT(Windows(qwen, window), ElementsAre(0, 0));
    window["use_sliding_window"] = true;
    EXPECT_THAT(Windows(qwen, window), ElementsAre(0, 512));
    window["max_window_layers"] = 0;
    EXPECT_THAT(Windows(qwen, window), ElementsAre(512, 512));
    window["max_window_layers"] = 2;
    EXPECT_THAT(Windows(qwen, window), ElementsAre(0, 0));
    window["layer_types"] = {"sliding_attention", "full_attention"};
    EXPECT_THAT(Windows(qwen, window), ElementsAre(512, 0));
  }
}

TEST(ModelConfigTest, WindowsThatMeanNothingAreRefusedByName) {
  EXPECT_THAT(Error("MistralForCausalLM", {{"sliding_window", 0}}), HasSubstr("sliding_window"));
  EXPECT_THAT(Error("MistralForCausalLM", {{"sliding_window", "16"}}), HasSubstr("sliding_window"));
  EXPECT_THAT(Error("LlamaForCausalLM", {{"sliding_window", 512}}),
              AllOf(HasSubstr("\"sliding_window\" is 512"), HasSubstr("null is allowed")));
}

TEST(ModelConfigTest, LayerTypesThatContradictTheWindowAreRefused) {
  const json full = {{"layer_types", {"full_attention", "full_attention"}}};
  EXPECT_THAT(Windows("Qwen3ForCausalLM", full), ElementsAre(0, 0));
  const json mixed = {{"layer_types", {"full_attention", "sliding_attention"}}};
  EXPECT_THAT(Error("Qwen3ForCausalLM", mixed),
              AllOf(HasSubstr("\"layer_types\" has \"sliding_attention\""),
                    HasSubstr("use_sliding_window = true")));
  json mistral = mixed;
  EXPECT_THAT(Error("MistralForCausalLM", mistral), HasSubstr("needs a number in sliding_window"));
  mistral["sliding_window"] = 512;
  EXPECT_THAT(Error("MistralForCausalLM", mistral),
              AllOf(HasSubstr("\"layer_types\" has \"full_attention\""),
                    HasSubstr("holds for every layer")));
  mistral["layer_types"] = {"sliding_attention", "sliding_attention"};
  EXPECT_THAT(Windows("MistralForCausalLM", mistral), ElementsAre(512, 512));
}

TEST(ModelConfigTest, LayerTypesNameEachLayerInWordsThatAreKnown) {
  EXPECT_THAT(Error("Qwen3ForCausalLM", {{"layer_types", {"full_attention"}}}),
              HasSubstr("num_hidden_layers = 2"));
  EXPECT_THAT(
      Error("Qwen3ForCausalLM", {{"layer_types", {"full_attention", "chunked_attention"}}}),
      AllOf(HasSubstr("chunked_attention"), HasSubstr("\"sliding_attention\" are supported")));
}

TEST(ModelConfigTest, FeaturesThatDoNotExistAreRefusedByName) {
  EXPECT_THAT(Error("LlamaForCausalLM", {{"hidden_act", "quick_gelu"}}),
              AllOf(HasSubstr("hidden_act"), HasSubstr("quick_gelu"), HasSubstr("silu")));
  EXPECT_THAT(Error("MistralForCausalLM", {{"attention_bias", true}}), HasSubstr("attention_bias"));
  EXPECT_THAT(Error("Qwen2ForCausalLM", {{"mlp_bias", true}}), HasSubstr("mlp_bias"));
  EXPECT_THAT(Error("LlamaForCausalLM", {{"torch_dtype", "float8_e4m3fn"}}), HasSubstr("float8"));
  EXPECT_THAT(Error("LlamaForCausalLM", {{"quantization_config", {{"bits", 4}}}}),
              HasSubstr("quantization_config"));
}

TEST(ModelConfigTest, EndTokensAreOneOrAList) {
  EXPECT_THAT(ParseWith(Small("LlamaForCausalLM"), {{"eos_token_id", {7, 3}}})->eos_token_ids,
              ElementsAre(3, 7));
  EXPECT_THAT(ParseWith(Small("LlamaForCausalLM"), json::object())->eos_token_ids, ElementsAre(2));
  EXPECT_THAT(ParseWith(Small("LlamaForCausalLM"), {{"eos_token_id", nullptr}})->eos_token_ids,
              ElementsAre());
  EXPECT_THAT(Error("LlamaForCausalLM", {{"eos_token_id", "2"}}), HasSubstr("eos_token_id"));
}

ModelConfig Sparse(const std::string& model_type, const json& changes = json::object()) {
  json config = {{"model_type", model_type}};
  config.update(changes);
  const auto parsed = ParseModelConfig(config.dump());
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.value_or(ModelConfig());
}

std::string SparseError(const std::string& model_type, const json& changes) {
  json config = {{"model_type", model_type}};
  config.update(changes);
  return std::string(ParseModelConfig(config.dump()).status().message());
}

TEST(ModelConfigTest, AnEmptyOptFileIsTheSmallestOpt) {
  const ModelConfig opt = Sparse("opt");
  EXPECT_EQ(opt.vocab_size, 50272);
  EXPECT_EQ(opt.ffn_size, 3072);
  EXPECT_EQ(opt.head_dim, 64);
  EXPECT_EQ(opt.embedding_dim, 768);
  EXPECT_EQ(opt.max_model_len, 2048);
  EXPECT_EQ(opt.rotary_dim, 0);
  EXPECT_FLOAT_EQ(opt.norm_eps, 1e-5f);
  EXPECT_TRUE(opt.learned_positions && opt.position_offset == 2 && opt.tied_embeddings);
  EXPECT_TRUE(opt.norm == NormKind::kLayer && !opt.gated_mlp);
  EXPECT_EQ(opt.activation, Activation::kRelu);
  EXPECT_TRUE(opt.qkv_bias && opt.o_bias && opt.mlp_bias && opt.final_norm && !opt.post_norm);
}

TEST(ModelConfigTest, OptsFieldsTurnItsFeatures) {
  const ModelConfig post = Sparse("opt", {{"do_layer_norm_before", false}});
  EXPECT_TRUE(post.post_norm && post.normed_residual && !post.final_norm);
  EXPECT_FALSE(Sparse("opt", {{"_remove_final_layer_norm", true}}).final_norm);
  const ModelConfig bare = Sparse("opt", {{"enable_bias", false}, {"word_embed_proj_dim", 512}});
  EXPECT_TRUE(!bare.qkv_bias && !bare.o_bias && !bare.mlp_bias && bare.embedding_dim == 512);
  EXPECT_THAT(SparseError("opt", {{"layer_norm_elementwise_affine", false}}),
              AllOf(HasSubstr("layer_norm_elementwise_affine"), HasSubstr("allowed: null, true")));
  EXPECT_THAT(SparseError("opt", {{"ffn_dim", -1}}), HasSubstr("\"ffn_dim\" is -1"));
  EXPECT_THAT(SparseError("opt", {{"num_key_value_heads", 4}}), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(SparseError("opt", {{"head_dim", 32}}), HasSubstr("\"head_dim\" is 32"));
  EXPECT_THAT(SparseError("opt", {{"activation_function", "gelu_10"}}),
              AllOf(HasSubstr("activation_function"), HasSubstr("gelu_10"), HasSubstr("relu")));
  // Names that transformers does not read.
  EXPECT_THAT(SparseError("opt", {{"hidden_act", "gelu"}}),
              HasSubstr("\"hidden_act\" is \"gelu\""));
  // Other families do not know these fields.
  EXPECT_THAT(Error("LlamaForCausalLM", {{"do_layer_norm_before", true}}),
              HasSubstr("do_layer_norm_before"));
}

TEST(ModelConfigTest, NeoXRotatesAQuarterOfEachHeadAndRunsItsBlocksSideBySide) {
  const ModelConfig neox = Sparse("gpt_neox");
  EXPECT_EQ(neox.num_layers, 44);
  EXPECT_EQ(neox.head_dim, 96);
  EXPECT_EQ(neox.rotary_dim, 24);
  EXPECT_EQ(neox.rope.theta, 10000);
  EXPECT_TRUE(neox.parallel_residual && neox.qkv_bias && neox.o_bias && neox.mlp_bias);
  EXPECT_TRUE(neox.activation == Activation::kGelu && !neox.tied_embeddings);
  const ModelConfig other = Sparse("gpt_neox", {{"rotary_pct", 1.0},
                                                {"rotary_emb_base", 5e4},
                                                {"use_parallel_residual", false},
                                                {"attention_bias", false},
                                                {"layer_norm_eps", 1e-3}});
  EXPECT_EQ(other.rotary_dim, 96);
  EXPECT_EQ(other.rope.theta, 5e4);
  EXPECT_FLOAT_EQ(other.norm_eps, 1e-3f);
  EXPECT_TRUE(!other.parallel_residual && !other.qkv_bias && !other.o_bias && other.mlp_bias);
  EXPECT_THAT(SparseError("gpt_neox", {{"rotary_pct", 0.01}}), HasSubstr("\"rotary_pct\" is 0.01"));
  // Names that transformers does not read.
  EXPECT_THAT(SparseError("gpt_neox", {{"rope_theta", 5e4}}), HasSubstr("\"rope_theta\" is 50000"));
  EXPECT_THAT(SparseError("gpt_neox", {{"partial_rotary_factor", 0.5}}),
              HasSubstr("\"partial_rotary_factor\" is 0.5"));
}

TEST(ModelConfigTest, GemmasActivationGoesByItsOwnName) {
  EXPECT_THAT(SparseError("gemma2", {{"hidden_act", "gelu"}}),
              HasSubstr("\"hidden_act\" is \"gelu\""));
  EXPECT_EQ(Sparse("gemma2", {{"hidden_act", "gelu_pytorch_tanh"}}).activation,
            Activation::kGeluTanh);
  EXPECT_EQ(Sparse("gemma2", {{"hidden_activation", "gelu"}}).activation, Activation::kGelu);
}

TEST(ModelConfigTest, BloomHasSlopesForPositionsAndNamesOfItsOwn) {
  const ModelConfig bloom = Sparse("bloom", {{"n_embed", 1024}, {"n_layer", 24}, {"n_head", 16}});
  EXPECT_EQ(bloom.hidden_size, 1024);
  EXPECT_EQ(bloom.ffn_size, 4096);
  EXPECT_EQ(bloom.num_layers, 24);
  EXPECT_EQ(bloom.num_heads, 16);
  EXPECT_EQ(bloom.max_model_len, 2048);
  EXPECT_TRUE(bloom.alibi && bloom.embedding_norm && bloom.rotary_dim == 0);
  EXPECT_TRUE(bloom.activation == Activation::kGeluTanh && !bloom.normed_residual);
  EXPECT_TRUE(
      Sparse("bloom", {{"apply_residual_connection_post_layernorm", true}}).normed_residual);
  EXPECT_EQ(Sparse("bloom", {{"seq_length", 512}}).max_model_len, 512);
  EXPECT_THAT(SparseError("bloom", {{"n_inner", 512}}), HasSubstr("n_inner"));
  EXPECT_THAT(SparseError("bloom", {{"n_embed", 64}, {"hidden_size", 32}}),
              HasSubstr("\"n_embed\" is 64; but \"hidden_size\" is 32"));
}

}  // namespace
}  // namespace baton
