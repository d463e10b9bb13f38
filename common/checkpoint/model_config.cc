#include "common/checkpoint/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/config_support.h"
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

// What the architectures differ in: their features, and transformers' defaults for absent fields.
struct Family {
  const char* architecture;
  const char* model_type;
  int64_t vocab_size;
  int64_t ffn_size;
  int64_t num_kv_heads;  // 0: as many as heads.
  int64_t head_dim;      // 0: hidden_size / num_heads.
  int64_t max_positions;
  int64_t sliding_window;     // 0: none.
  int32_t bos;                // -1: none.
  int32_t eos;                // -1: none.
  bool attention_bias_field;  // q, k, v and o have biases if "attention_bias" says so.
  bool mlp_bias_field;
  bool always_qkv_bias;
  bool qk_norm;
  bool window_switch;  // The window needs "use_sliding_window" and spares the first layers.
  bool needs_divisible_hidden;  // hidden_size % num_heads == 0 unless head_dim is given.
};

constexpr Family kFamilies[] = {
    {.architecture = "LlamaForCausalLM",
     .model_type = "llama",
     .vocab_size = 32000,
     .ffn_size = 11008,
     .max_positions = 2048,
     .bos = 1,
     .eos = 2,
     .attention_bias_field = true,
     .mlp_bias_field = true,
     .needs_divisible_hidden = true},
    {.architecture = "MistralForCausalLM",
     .model_type = "mistral",
     .vocab_size = 32000,
     .ffn_size = 14336,
     .num_kv_heads = 8,
     .max_positions = 4096 * 32,
     .sliding_window = 4096,
     .bos = 1,
     .eos = 2},
    {.architecture = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .vocab_size = 151936,
     .ffn_size = 22016,
     .num_kv_heads = 32,
     .max_positions = 32768,
     .sliding_window = 4096,
     .bos = -1,
     .eos = -1,
     .always_qkv_bias = true,
     .window_switch = true},
    {.architecture = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .vocab_size = 151936,
     .ffn_size = 22016,
     .num_kv_heads = 32,
     .head_dim = 128,
     .max_positions = 32768,
     .sliding_window = 4096,
     .bos = -1,
     .eos = -1,
     .attention_bias_field = true,
     .qk_norm = true,
     .window_switch = true},
};

absl::StatusOr<const Family*> FindFamily(JsonFields& config) {
  const std::string model_type = config.String("model_type", "");
  std::string architecture;
  if (const json* list = config.Find("architectures"); list != nullptr) {
    if (!list->is_array() || list->size() != 1 || !list->front().is_string()) {
      config.Refuse("architectures", *list, "a list of one name is needed");
    } else {
      architecture = list->front().get<std::string>();
    }
  }
  RETURN_IF_ERROR(config.status());
  std::string known;
  for (const Family& family : kFamilies) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", family.architecture);
    const bool matches = architecture.empty() ? family.model_type == model_type
                                              : family.architecture == architecture;
    if (!matches) continue;
    if (!model_type.empty() && family.model_type != model_type) {
      config.Refuse(
          "model_type", model_type,
          absl::StrCat("with ", family.architecture, " it must be \"", family.model_type, "\""));
      return config.status();
    }
    return &family;
  }
  const bool by_type = architecture.empty();
  return absl::UnimplementedError(absl::StrCat(
      config.where(), ": field \"", by_type ? "model_type" : "architectures", "\" is ",
      ShowJson(by_type ? model_type : architecture), "; supported architectures: ", known));
}

void ReadSizes(JsonFields& fields, const Family& family, ModelConfig& config) {
  const auto size = [&](const std::string& name, int64_t fallback, int64_t max) {
    return static_cast<int32_t>(fields.Int(name, fallback, 1, max));
  };
  config.vocab_size = size("vocab_size", family.vocab_size, kMaxVocab);
  config.hidden_size = size("hidden_size", 4096, kMaxHidden);
  config.ffn_size = size("intermediate_size", family.ffn_size, kMaxFfn);
  config.num_layers = size("num_hidden_layers", 32, kMaxLayers);
  config.num_heads = size("num_attention_heads", 32, kMaxHeads);
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
  if (config.head_dim < 2 || config.head_dim > kMaxHeadDim || config.head_dim % 2 != 0) {
    fields.Refuse("head_dim", config.head_dim,
                  absl::StrCat("an even number from 2 to ", kMaxHeadDim, " is allowed"));
  }
}

void ReadFeatures(JsonFields& fields, const Family& family, ModelConfig& config) {
  config.norm_eps = static_cast<float>(fields.Number("rms_norm_eps", 1e-6, 0, 1));
  config.qk_norm = family.qk_norm;
  config.tied_embeddings = fields.Bool("tie_word_embeddings", false);

  const bool attention_bias = fields.Bool("attention_bias", family.always_qkv_bias);
  if (!family.attention_bias_field && attention_bias != family.always_qkv_bias) {
    fields.Refuse("attention_bias", attention_bias,
                  absl::StrCat("for ", family.architecture, " only ",
                               family.always_qkv_bias ? "true" : "false", " is allowed"));
  }
  config.qkv_bias = attention_bias;
  config.o_bias = attention_bias && family.attention_bias_field;
  config.mlp_bias = fields.Bool("mlp_bias", false);
  if (config.mlp_bias && !family.mlp_bias_field) {
    fields.Refuse("mlp_bias", true,
                  absl::StrCat("for ", family.architecture, " only false is allowed"));
  }

  const std::string activation = fields.String("hidden_act", "silu");
  if (activation == "silu" || activation == "swish") {
    config.activation = Activation::kSilu;
  } else if (activation == "gelu_pytorch_tanh" || activation == "gelu_new") {
    config.activation = Activation::kGeluTanh;
  } else {
    fields.Fail(absl::UnimplementedError(
        absl::StrCat(fields.where(), ": field \"hidden_act\" is ", ShowJson(activation),
                     "; silu, swish, gelu_pytorch_tanh and gelu_new are supported")));
  }
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

  ModelConfig config{.architecture = std::string(family->architecture)};
  ReadSizes(fields, *family, config);
  RETURN_IF_ERROR(fields.status());
  ReadHeads(fields, *family, !object.contains("num_key_value_heads"), config);
  RETURN_IF_ERROR(fields.status());
  config.rotary_dim = config.head_dim;
  config.attention_scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  ASSIGN_OR_RETURN(config.rope,
                   ParseRopeForm(fields, {.max_position_embeddings = config.max_position_embeddings,
                                          .rotary_dim = config.rotary_dim,
                                          .max_model_len = max_model_len}));
  config.max_model_len = MaxModelLen(config.rope, config.max_position_embeddings);
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
