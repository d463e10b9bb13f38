#include "common/checkpoint/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/config_support.h"
#include "common/checkpoint/expert_config.h"
#include "common/checkpoint/families.h"
#include "common/checkpoint/json_fields.h"
#include "common/checkpoint/rope_config.h"
#include "common/checkpoint/window_config.h"

namespace baton {
namespace {

using nlohmann::json;

constexpr int64_t kMaxConfigBytes = 4 << 20;
constexpr int kMaxConfigDepth = 32;

constexpr int64_t kMaxVocab = 1 << 19;  // RowMath sums as many weights exactly.
constexpr int64_t kMaxHidden = 1 << 18;
constexpr int64_t kMaxFfn = 1 << 20;
constexpr int64_t kMaxLayers = 1 << 12;
constexpr int64_t kMaxHeads = 1 << 12;
constexpr int64_t kMaxHeadDim = 1 << 12;
constexpr int64_t kMaxPositions = 1 << 27;
constexpr double kMaxSoftcap = 1e6;
constexpr double kMaxQueryScalar = 1e6;

void ReadSizes(JsonFields& fields, const Family& family, ModelConfig& config) {
  const auto size = [&](const std::string& name, int64_t fallback, int64_t max) {
    return static_cast<int32_t>(fields.Int(name, fallback, 1, max));
  };
  config.vocab_size = size("vocab_size", family.vocab_size, kMaxVocab);
  config.hidden_size = size("hidden_size", family.hidden_size, kMaxHidden);
  config.embedding_dim = config.hidden_size;
  if (const char* const field = family.embedding_dim_field; field != nullptr) {
    config.embedding_dim = size(field, config.hidden_size, kMaxHidden);
  }
  config.ffn_size = family.ffn_size > 0 ? size("intermediate_size", family.ffn_size, kMaxFfn)
                                        : 4 * config.hidden_size;
  config.num_layers = size("num_hidden_layers", family.num_layers, kMaxLayers);
  config.num_heads = size("num_attention_heads", family.num_heads, kMaxHeads);
  config.max_position_embeddings =
      size("max_position_embeddings", family.max_positions, kMaxPositions);
}

// Heads and their size. An explicit null for num_key_value_heads means "as many as heads" in every
// family; only its absence means the family's own number.
void ReadHeads(JsonFields& fields, const Family& family, bool kv_heads_absent,
               ModelConfig& config) {
  const bool own_number = kv_heads_absent && family.num_kv_heads != 0;
  config.num_kv_heads = static_cast<int32_t>(fields.Int(
      "num_key_value_heads", own_number ? family.num_kv_heads : config.num_heads, 1, kMaxHeads));
  if (config.num_heads % config.num_kv_heads != 0) {
    fields.Refuse("num_key_value_heads", config.num_kv_heads,
                  absl::StrCat("it must divide num_attention_heads = ", config.num_heads));
  }
  const json* head_dim = fields.Find("head_dim");
  if (head_dim == nullptr && family.head_dim == 0) {
    if (family.needs_divisible_hidden && config.hidden_size % config.num_heads != 0) {
      fields.Refuse("hidden_size", config.hidden_size,
                    absl::StrCat("without head_dim it must be a multiple of num_attention_heads = ",
                                 config.num_heads));
    }
    config.head_dim = config.hidden_size / config.num_heads;
  } else {
    config.head_dim = static_cast<int32_t>(fields.Int("head_dim", family.head_dim, 1, kMaxHeadDim));
  }
  const int32_t kv_heads = config.num_kv_heads, own_dim = config.hidden_size / config.num_heads;
  if (family.plain_heads && kv_heads != config.num_heads) {
    fields.Refuse("num_key_value_heads", kv_heads,
                  absl::StrCat("for ", family.architecture, " only num_attention_heads = ",
                               config.num_heads, " is allowed"));
  }
  if (family.plain_heads && config.head_dim != own_dim) {
    fields.Refuse("head_dim", config.head_dim,
                  absl::StrCat("for ", family.architecture, " only hidden_size / "
                               "num_attention_heads = ", own_dim, " is allowed"));
  }
  // The rotation is of pairs.
  const bool even = family.rotary && !family.rotary_factor_field;
  const int32_t least = even ? 2 : 1;
  if (config.head_dim < least || config.head_dim > kMaxHeadDim || config.head_dim % least != 0) {
    fields.Refuse("head_dim", config.head_dim,
                  absl::StrCat(even ? "an even" : "a", " number from ", least, " to ", kMaxHeadDim,
                               " is allowed"));
  }
}

// A field that only some families have.
bool Flag(JsonFields& fields, const char* name, bool fallback) {
  return name == nullptr ? fallback : fields.Bool(name, fallback);
}

void ReadNorms(JsonFields& fields, const Family& family, ModelConfig& config) {
  config.norm = family.norm;
  config.norm_eps = static_cast<float>(family.norm_eps);
  if (const char* const field = family.norm_eps_field; field != nullptr) {
    config.norm_eps = static_cast<float>(fields.Number(field, family.norm_eps, 0, 1));
  }
  config.qk_norm = family.qk_norm;
  config.embedding_norm = family.embedding_norm;
  config.post_norm = !Flag(fields, family.pre_norm_field, true);
  config.final_norm = !Flag(fields, family.no_final_norm_field, false) && !config.post_norm;
  config.normed_residual = Flag(fields, family.normed_residual_field, config.post_norm);
  config.parallel_residual = family.parallel_residual_field != nullptr &&
                             fields.Bool(family.parallel_residual_field, true);
}

// Biases that the family has or not, whatever a field that it does not know says.
bool ReadBias(JsonFields& fields, const Family& family, const char* name, bool fallback,
              bool has_field) {
  const bool bias = fields.Bool(name, fallback);
  if (!has_field && bias != fallback) {
    fields.Refuse(name, bias,
                  absl::StrCat("for ", family.architecture, " only ", fallback ? "true" : "false",
                               " is allowed"));
  }
  return bias;
}

void ReadActivation(JsonFields& fields, const Family& family, ModelConfig& config) {
  constexpr struct {
    const char* name;
    Activation activation;
  } kKnown[] = {{"silu", Activation::kSilu},          {"swish", Activation::kSilu},
                {"gelu", Activation::kGelu},          {"gelu_new", Activation::kGeluTanh},
                {"gelu_fast", Activation::kGeluTanh}, {"gelu_pytorch_tanh", Activation::kGeluTanh},
                {"relu", Activation::kRelu}};
  const std::string name =
      family.activation_field ? fields.String("hidden_act", family.activation) : family.activation;
  std::string names;
  for (const auto& known : kKnown) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", known.name);
    if (name != known.name) continue;
    config.activation = known.activation;
    return;
  }
  if (const json* value = fields.Find("hidden_act"); value != nullptr) {
    fields.Refuse("hidden_act", *value, absl::StrCat(names, " are supported"));
  }
}

// 0: none, as an explicit null is.
float ReadSoftcap(JsonFields& fields, const char* name, std::optional<double> fallback) {
  if (!fallback.has_value()) return 0;  // The family does not read it.
  const double cap = fields.Number(name, fields.Has(name) ? 0 : *fallback, 0, kMaxSoftcap);
  return static_cast<float>(cap);
}

void ReadFeatures(JsonFields& fields, const Family& family, ModelConfig& config) {
  ReadNorms(fields, family, config);
  ReadActivation(fields, family, config);
  config.gated_mlp = family.gated_mlp;
  config.tied_embeddings = fields.Bool("tie_word_embeddings", family.tied_embeddings);
  config.qkv_bias = ReadBias(fields, family, "attention_bias", family.attention_bias,
                             family.attention_bias_field);
  config.o_bias = config.qkv_bias && family.o_bias;
  config.mlp_bias =
      ReadBias(fields, family, "mlp_bias", family.mlp_bias, family.mlp_bias_field);
  config.learned_positions = family.learned_positions;
  config.position_offset = family.position_offset;
  config.alibi = family.alibi;
  config.output_norms = !family.names.attention_output_norm.empty();
  config.norm_one_plus_weight = family.norm_one_plus_weight;
  if (family.scaled_embedding) {
    config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  }
  config.attention_softcap =
      ReadSoftcap(fields, "attn_logit_softcapping", family.attention_softcap);
  config.logits_softcap = ReadSoftcap(fields, "final_logit_softcapping", family.logits_softcap);
}

void ReadDType(JsonFields& fields, ModelConfig& config) {
  const std::string old_name = fields.String("torch_dtype", "float32");
  const std::string dtype = fields.String("dtype", old_name);
  if (dtype == "float32" || dtype == "float") {
    config.dtype = DType::kF32;
  } else if (dtype == "float16" || dtype == "half") {
    config.dtype = DType::kF16;
  } else if (dtype == "bfloat16") {
    config.dtype = DType::kBF16;
  } else {
    fields.Fail(absl::UnimplementedError(
        absl::StrCat(fields.where(), ": field \"dtype\" is ", ShowJson(dtype),
                     "; float32, float16 and bfloat16 are supported")));
  }
}

void ReadTokenIds(JsonFields& fields, const Family& family, const json& object,
                  ModelConfig& config) {
  const bool eos_default = !object.contains("eos_token_id") && family.eos >= 0;
  config.eos_token_ids = fields.TokenIds(
      "eos_token_id", eos_default ? std::vector<int32_t>{family.eos} : std::vector<int32_t>{});
  const bool bos_default = !object.contains("bos_token_id") && family.bos >= 0;
  const int64_t bos = fields.Int("bos_token_id", bos_default ? family.bos : -1, -1,
                                 std::numeric_limits<int32_t>::max());
  if (bos >= 0) config.bos_token_id = static_cast<int32_t>(bos);
}

absl::Status ReadRope(JsonFields& fields, const Family& family, ModelConfig& config) {
  RopeContext context{.max_position_embeddings = config.max_position_embeddings,
                      .rotary_dim = config.rotary_dim,
                      .theta = family.rope_theta,
                      .original_positions = family.original_positions,
                      .only_longrope = family.only_longrope};
  if (family.local_rope_theta > 0) context.layer_type = "full_attention";
  ASSIGN_OR_RETURN(config.rope, ParseRopeForm(fields, context));
  config.max_model_len = MaxModelLen(config.rope, config.max_position_embeddings);
  if (family.local_rope_theta == 0) return absl::OkStatus();
  context.layer_type = "sliding_attention";
  context.theta = family.local_rope_theta;
  context.theta_field = "rope_local_base_freq";
  context.scaled = false;
  ASSIGN_OR_RETURN(config.local_rope, ParseRopeForm(fields, context));
  const int32_t local_len = MaxModelLen(*config.local_rope, config.max_position_embeddings);
  config.max_model_len = std::min(config.max_model_len, local_len);
  // A sequence is short or long for all layers.
  const int32_t original = OriginalLen(config.rope), local = OriginalLen(*config.local_rope);
  if (original > 0 && local > 0 && original != local) {
    return absl::UnimplementedError(
        absl::StrCat(fields.where(), ": field \"rope_parameters\" has longrope for both types of ",
                     "layers, with original_max_position_embeddings ", original, " and ", local,
                     "; only the same for both is supported"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ParseConfig(std::string where, const std::string& json_text) {
  ASSIGN_OR_RETURN(const json object, ParseBoundedJson(where, json_text, kMaxConfigDepth));
  JsonFields fields(std::move(where), object);
  RETURN_IF_ERROR(fields.status());
  ASSIGN_OR_RETURN(const Family* family, FindFamily(fields));
  fields.SetAliases(family->aliases);

  ModelConfig config{.architecture = std::string(family->architecture)};
  ReadSizes(fields, *family, config);
  RETURN_IF_ERROR(fields.status());
  ReadHeads(fields, *family, !object.contains("num_key_value_heads"), config);
  RETURN_IF_ERROR(fields.status());
  const double scalar = family->query_scalar > 0
                            ? fields.Number("query_pre_attn_scalar", family->query_scalar,
                                            1 / kMaxQueryScalar, kMaxQueryScalar)
                            : config.head_dim;
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(scalar));
  config.max_model_len = std::min(config.max_position_embeddings, kMaxModelLen);
  if (family->rotary) {
    ASSIGN_OR_RETURN(config.rotary_dim,
                     ParseRotaryDim(fields, config.head_dim,
                                    {.factor = family->rotary_factor,
                                     .fixed = !family->rotary_factor_field}));
    RETURN_IF_ERROR(ReadRope(fields, *family, config));
  }
  ReadFeatures(fields, *family, config);
  ReadExperts(fields, *family, config);
  std::vector<bool> windowed =
      ReadWindows(fields, *family, !object.contains("sliding_window"), config);
  if (config.local_rope.has_value()) config.local_rope_layers = std::move(windowed);
  ReadDType(fields, config);
  ReadTokenIds(fields, *family, object, config);
  RefuseUnsupportedFields(fields);
  RETURN_IF_ERROR(fields.status());
  return config;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json_text) {
  return ParseConfig("config.json", json_text);
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_dir) {
  const std::string path = absl::StrCat(model_dir, "/config.json");
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kMaxConfigBytes));
  return ParseConfig(path, text);
}

int32_t OriginalLen(const ModelConfig& config) {
  if (config.rotary_dim == 0) return 0;
  int32_t original = OriginalLen(config.rope);
  if (config.local_rope.has_value()) original = std::max(original, OriginalLen(*config.local_rope));
  return original < config.max_model_len ? original : 0;
}

}  // namespace baton
