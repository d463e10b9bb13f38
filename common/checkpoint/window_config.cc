#include "common/checkpoint/window_config.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

using nlohmann::json;

constexpr int64_t kNoWindow = std::numeric_limits<int64_t>::max();

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

// The window of the layers that have one.
int64_t ReadWindowSize(JsonFields& fields, const Family& family, bool window_absent) {
  const int64_t fallback =
      window_absent && family.sliding_window > 0 ? family.sliding_window : kNoWindow;
  // Only the families with the switch obey it; where it is off some of them write a window of 0.
  const bool on = fields.Bool("use_sliding_window", false) || !family.window_switch;
  const int64_t window = fields.Int("sliding_window", fallback, on ? 1 : 0, kNoWindow);
  return on ? window : kNoWindow;
}

// Without "layer_types".
std::vector<bool> ByPattern(JsonFields& fields, const Family& family, const ModelConfig& config) {
  const int64_t edge = fields.Int("max_window_layers", 28, 0, kNoWindow);
  int64_t full_every = family.full_attention_every;
  if (family.full_attention_field != nullptr) {
    full_every = fields.Int(family.full_attention_field, full_every, 1, kNoWindow);
  }
  std::vector<bool> windowed;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool in_depth =
        family.window_depth == WindowDepth::kAll ||
        (layer < edge) == (family.window_depth == WindowDepth::kBelowMaxWindowLayers);
    windowed.push_back(in_depth && (full_every == 0 || (layer + 1) % full_every != 0));
  }
  return windowed;
}

}  // namespace

std::vector<bool> ReadWindows(JsonFields& fields, const Family& family, bool window_absent,
                              ModelConfig& config) {
  const std::vector<bool> types = ReadLayerTypes(fields, config);
  const std::vector<bool> pattern = ByPattern(fields, family, config);
  const int64_t window = ReadWindowSize(fields, family, window_absent);
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
  const std::vector<bool>& windowed = types.empty() || !family.layer_types ? pattern : types;
  // A window that hides no key from any query is none.
  config.windows.assign(config.num_layers, 0);
  if (window >= config.max_model_len) return windowed;
  if (family.sliding_window == 0) {
    refuse(absl::StrCat("sliding_window\" is ", window),
           absl::StrCat(family.architecture, " has no sliding window: null is allowed"));
  } else if (!family.layer_types && !all_typed) {
    refuse("layer_types\" has \"full_attention\"",
           absl::StrCat("for ", family.architecture, " sliding_window = ", window,
                        " holds for every layer: only \"sliding_attention\" is allowed with it"));
  }
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    if (windowed[layer]) config.windows[layer] = static_cast<int32_t>(window);
  }
  return windowed;
}

}  // namespace baton
