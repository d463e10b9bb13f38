#include "common/checkpoint/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/config_support.h"
#include "common/checkpoint/families.h"
#include "common/checkpoint/json_fields.h"
#include "common/checkpoint/rope_config.h"

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
}

// Which layers have the window by "layer_types": [num_layers], or empty when the field is absent.
std::vector<bool> ReadLayerTypes(JsonFields& fields, const ModelConfig& config) {
  const json* types = fields.Find("layer_types");
  if (types == nullptr) return {};
  if (!types->is_array() || types->size() != static_cast<size_t>(config.num_layers)) {
    fields.Refuse(
        "layer_types", *types,
        absl::StrCat("a list of num_hidden_layers = ", config.num_layers, " names is needed"));
    return {};
  }
  std::vector<bool> windowed;
  for (const json& type : *types) {
    windowed.push_back(type == "sliding_attention");
    if (windowed.back() || type == "full_attention" || type == "attention") continue;
    fields.Fail(absl::UnimplementedError(
        absl::StrCat(fields.where(), ": field \"layer_types\" has ", ShowJson(type),
                     "; only \"full_attention\" and \"sliding_attention\" are supported")));
  }
  return windowed;
}

constexpr int64_t kNoWindow = std::numeric_limits<int64_t>::max();

// The window of the layers that have one.
int64_t ReadWindowSize(JsonFields& fields, const Family& family, bool window_absent) {
  const int64_t fallback =
      window_absent && family.sliding_window != 0 ? family.sliding_window : kNoWindow;
  const int64_t window = fields.Int("sliding_window", fallback, 1, kNoWindow);
  // Only the families with the switch obey it.
  const bool on = fields.Bool("use_sliding_window", false) || !family.window_switch;
  return on ? window : kNoWindow;
}

// What transformers makes of the fields; an error where it would ignore one that matters.
void ReadWindows(JsonFields& fields, const Family& family, bool window_absent,
                 ModelConfig& config) {
  const std::vector<bool> types = ReadLayerTypes(fields, config);
  const int64_t window = ReadWindowSize(fields, family, window_absent);
  const int64_t first_layer = fields.Int("max_window_layers", 28, 0, kNoWindow);
  const auto refuse = [&](const std::string& what, const std::string& why) {
    fields.Fail(
        absl::UnimplementedError(absl::StrCat(fields.where(), ": field \"", what, "; ", why)));
  };
  const bool any_typed = std::ranges::count(types, true) > 0;
  const bool all_typed = std::ranges::count(types, false) == 0;
  if (any_typed && window == kNoWindow) {
    refuse("layer_types\" has \"sliding_attention\"",
           absl::StrCat("it needs a number in sliding_window",
                        family.window_switch ? " and use_sliding_window = true" : "",
                        "; only \"full_attention\" is allowed without"));
  }
  // A window that hides no key from any query is none.
  config.windows.assign(config.num_layers, 0);
  if (window >= config.max_model_len) return;
  if (family.sliding_window == 0) {
    refuse(absl::StrCat("sliding_window\" is ", window),
           absl::StrCat(family.architecture, " has no sliding window: null is allowed"));
  } else if (!family.window_switch && !all_typed) {
    refuse("layer_types\" has \"full_attention\"",
           absl::StrCat("for ", family.architecture, " sliding_window = ", window,
                        " holds for every layer: only \"sliding_attention\" is allowed with it"));
  }
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const bool by_depth = !family.window_switch || layer >= first_layer;
    const bool windowed = types.empty() ? by_depth : types[layer];
    if (windowed) config.windows[layer] = static_cast<int32_t>(window);
  }
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

absl::StatusOr<ModelConfig> Parse(std::string where, const std::string& json_text,
                                  int32_t max_model_len) {
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
  config.attention_scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  config.max_model_len = std::min(config.max_position_embeddings, kMaxModelLen);
  if (family->rotary) {
    ASSIGN_OR_RETURN(config.rotary_dim,
                     ParseRotaryDim(fields, config.head_dim,
                                    {.factor = family->rotary_factor,
                                     .fixed = !family->rotary_factor_field}));
    ASSIGN_OR_RETURN(
        config.rope,
        ParseRopeForm(fields, {.max_position_embeddings = config.max_position_embeddings,
                               .rotary_dim = config.rotary_dim,
                               .max_model_len = max_model_len}));
    config.max_model_len = MaxModelLen(config.rope, config.max_position_embeddings);
  }
  ReadFeatures(fields, *family, config);
  ReadWindows(fields, *family, !object.contains("sliding_window"), config);
  ReadDType(fields, config);
  ReadTokenIds(fields, *family, object, config);
  RefuseUnsupportedFields(fields);
  RETURN_IF_ERROR(fields.status());
  return config;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json_text, int32_t max_model_len) {
  return Parse("config.json", json_text, max_model_len);
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_dir, int32_t max_model_len) {
  const std::string path = absl::StrCat(model_dir, "/config.json");
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kMaxConfigBytes));
  return Parse(path, text, max_model_len);
}

}  // namespace baton
