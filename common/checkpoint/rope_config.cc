#include "common/checkpoint/rope_config.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton {
namespace {

// No frequency exceeds 1, so that angles stay small enough to be rounded well.
constexpr double kMinTheta = 1;
constexpr double kMaxTheta = 1e15;
constexpr double kMinFactor = 1;
constexpr double kMaxFactor = 1e6;
constexpr double kLeastFactor = 1e-6;
constexpr double kMinListedFactor = 1e-3;
constexpr int32_t kMostPositions = 1 << 27;

// Known names that another rope type reads and this one ignores, as transformers does (it warns).
constexpr const char* kOtherTypesFields[] = {"factor",
                                             "attention_factor",
                                             "beta_fast",
                                             "beta_slow",
                                             "mscale",
                                             "truncate",
                                             "mscale_all_dim",
                                             "low_freq_factor",
                                             "high_freq_factor",
                                             "short_factor",
                                             "long_factor",
                                             "finetuned",
                                             "original_max_position_embeddings"};

constexpr char kGlobalLayers[] = "full_attention";
constexpr char kLocalLayers[] = "sliding_attention";
constexpr char kPartial[] = "partial_rotary_factor";  // ParseRotaryDim reads it.

void RequireField(JsonFields& rope, const std::string& name, const std::string& type) {
  if (rope.Find(name) == nullptr) {
    rope.Fail(absl::InvalidArgumentError(absl::StrCat(
        rope.where(), ": field \"", name, "\" is missing; rope type \"", type, "\" needs it")));
  }
}

double Factor(JsonFields& rope, const std::string& type) {
  RequireField(rope, "factor", type);
  return rope.Number("factor", 1, kMinFactor, kMaxFactor);
}

// 0.1 * mscale * ln(scale) + 1, of the yarn paper.
double YarnScale(double scale, double mscale) {
  return scale <= 1 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0;
}

RopeYarn ParseYarn(JsonFields& rope, int32_t original, const RopeContext& context) {
  RopeYarn yarn{.original_max_positions = original};
  const double ratio = static_cast<double>(context.max_position_embeddings) / original;
  yarn.factor = rope.Number("factor", ratio, kMinFactor, kMaxFactor);
  // Zero means "not given" for these four, as in transformers.
  const double beta_fast = rope.Number("beta_fast", 0, 0, kMaxFactor);
  const double beta_slow = rope.Number("beta_slow", 0, 0, kMaxFactor);
  const double mscale = rope.Number("mscale", 0, 0, kMaxFactor);
  const double mscale_all_dim = rope.Number("mscale_all_dim", 0, 0, kMaxFactor);
  yarn.beta_fast = beta_fast == 0 ? 32 : beta_fast;
  yarn.beta_slow = beta_slow == 0 ? 1 : beta_slow;
  const double computed =
      mscale != 0 && mscale_all_dim != 0
          ? YarnScale(yarn.factor, mscale) / YarnScale(yarn.factor, mscale_all_dim)
          : YarnScale(yarn.factor, 1);
  yarn.attention_factor = rope.Number("attention_factor", computed, kLeastFactor, kMaxFactor);
  yarn.truncate = rope.Bool("truncate", true);
  return yarn;
}

RopeLlama3 ParseLlama3(JsonFields& rope, int32_t original) {
  RopeLlama3 llama3{.factor = Factor(rope, "llama3"), .original_max_positions = original};
  RequireField(rope, "low_freq_factor", "llama3");
  RequireField(rope, "high_freq_factor", "llama3");
  llama3.low_freq_factor = rope.Number("low_freq_factor", 1, kLeastFactor, kMaxFactor);
  llama3.high_freq_factor = rope.Number("high_freq_factor", 4, kLeastFactor, kMaxFactor);
  if (const auto* high = rope.Find("high_freq_factor");
      high != nullptr && llama3.high_freq_factor <= llama3.low_freq_factor) {
    rope.Refuse("high_freq_factor", *high, "it must be greater than low_freq_factor");
  }
  return llama3;
}

// A list of longrope: one factor for each frequency.
std::vector<double> ListedFactors(JsonFields& rope, const std::string& name, size_t count) {
  RequireField(rope, name, "longrope");
  const nlohmann::json* list = rope.Find(name);
  if (list == nullptr) return {};
  if (!list->is_array() || list->size() != count) {
    rope.Refuse(name, *list,
                absl::StrCat("a list of ", count, " numbers, head_dim / 2, is needed"));
    return {};
  }
  std::vector<double> factors;
  for (size_t i = 0; i < count; ++i) {
    const nlohmann::json& item = (*list)[i];
    const double factor = item.is_number() ? item.get<double>() : 0;
    if (!(factor >= kMinListedFactor && factor <= kMaxFactor)) {
      rope.Refuse(
          absl::StrCat(name, "[", i, "]"), item,
          absl::StrCat("a number from ", kMinListedFactor, " to ", kMaxFactor, " is allowed"));
    }
    factors.push_back(factor);
  }
  return factors;
}

RopeLongrope ParseLongrope(JsonFields& rope, int32_t original, const RopeContext& context) {
  const auto count = static_cast<size_t>(context.rotary_dim / 2);
  std::vector<double> short_factors = ListedFactors(rope, "short_factor", count);
  std::vector<double> long_factors = ListedFactors(rope, "long_factor", count);
  const double ratio = static_cast<double>(context.max_position_embeddings) / original;
  const double factor = rope.Number("factor", ratio, kLeastFactor, kMaxFactor);
  const bool stretched = factor > 1 && original > 1;
  const double computed = stretched ? std::sqrt(1 + std::log(factor) / std::log(original)) : 1.0;
  if (factor > 1 && original == 1 && rope.Find("attention_factor") == nullptr) {
    rope.Refuse("original_max_position_embeddings", original,
                "rope type \"longrope\" without attention_factor needs more than 1");
  }
  return {.short_factors = std::move(short_factors),
          .long_factors = std::move(long_factors),
          .attention_factor = rope.Number("attention_factor", computed, kLeastFactor, kMaxFactor),
          .original_max_positions = original};
}

RopeScaling ParseScaling(JsonFields& rope, int32_t original, const RopeContext& context) {
  const std::string old_name = rope.String("type", "default");
  const std::string type = rope.String("rope_type", old_name);
  if (type == "default") return RopeDefault{};
  if (context.only_longrope && type != "longrope" && type != "su") {
    rope.Fail(absl::UnimplementedError(
        absl::StrCat(rope.where(), ": field \"rope_type\" is ", ShowJson(type),
                     "; of this architecture default and longrope are supported")));
    return RopeDefault{};
  }
  if (type == "linear") return RopeLinear{.factor = Factor(rope, type)};
  if (type != "llama3" && type != "dynamic" && context.rotary_dim % 2 != 0) {
    rope.Refuse("rope_type", type,
                absl::StrCat("an even number of rotated elements is needed, not ",
                             context.rotary_dim));
  }
  if (type == "yarn") return ParseYarn(rope, original, context);
  if (type == "llama3") return ParseLlama3(rope, original);
  // "su" is what the first Phi-3 files call it.
  if (type == "longrope" || type == "su") return ParseLongrope(rope, original, context);
  if (type == "dynamic") {
    if (context.rotary_dim <= 2) {
      rope.Refuse("rope_type", type, "it needs a head_dim of at least 4");
    }
    return RopeDynamic{.factor = Factor(rope, type),
                       .original_max_positions = context.max_position_embeddings};
  }
  rope.Fail(absl::UnimplementedError(
      absl::StrCat(rope.where(), ": field \"rope_type\" is ", ShowJson(type),
                   "; default, linear, dynamic, yarn, llama3 and longrope are supported")));
  return RopeDefault{};
}

void RefuseUnknownFields(JsonFields& rope, const nlohmann::json& object, bool has_partial) {
  for (const char* name : kOtherTypesFields) rope.Find(name);
  if (has_partial) rope.Find(kPartial);
  for (const std::string& name : rope.Untaken()) {
    if (const auto& value = object.at(name); !value.is_null()) {
      rope.Fail(absl::UnimplementedError(
          absl::StrCat(rope.where(), ": field \"", name, "\" is ", ShowJson(value),
                       "; it is not supported, only null is allowed")));
    }
  }
}

// rope_scaling or rope_parameters, and which of them.
struct RopeObject {
  const char* name;
  nlohmann::json object;
};

RopeObject FindRopeObject(JsonFields& config, const RopeContext& context) {
  const nlohmann::json* scaling = config.Find("rope_scaling");
  const nlohmann::json* parameters = config.Find("rope_parameters");
  if (context.layer_type != nullptr && parameters != nullptr && parameters->is_object()) {
    for (const auto& [name, value] : parameters->items()) {
      if (name == kGlobalLayers || name == kLocalLayers) continue;
      config.Refuse("rope_parameters", name,
                    absl::StrCat("only ", kGlobalLayers, " and ", kLocalLayers, " are allowed"));
    }
    const auto own = parameters->find(context.layer_type);
    parameters = own == parameters->end() || own->is_null() ? nullptr : &*own;
  }
  if (!context.scaled) scaling = nullptr;
  RopeObject found{"rope_parameters", nlohmann::json::object()};
  if (parameters != nullptr) found.object = *parameters;
  if (scaling == nullptr || (scaling->is_object() && scaling->empty())) return found;
  found.name = "rope_scaling";
  // Of a type of layers it changes what that has.
  if (context.layer_type != nullptr && found.object.is_object() && scaling->is_object()) {
    found.object.update(*scaling);
  } else {
    found.object = *scaling;
  }
  return found;
}

}  // namespace

absl::StatusOr<int32_t> ParseRotaryDim(JsonFields& config, int32_t head_dim,
                                       const RotaryShare& share) {
  const RopeObject found = FindRopeObject(config, {});
  JsonFields rope(absl::StrCat(config.where(), ": ", found.name), found.object);
  RETURN_IF_ERROR(rope.status());
  const double beside = config.Number(kPartial, share.factor, 0, 1);
  const double factor = rope.Number(kPartial, beside, 0, 1);
  JsonFields& holder = rope.Find(kPartial) != nullptr ? rope : config;
  if (share.fixed && factor != share.factor) {
    holder.Fail(absl::UnimplementedError(absl::StrCat(holder.where(), ": field \"", kPartial,
                                                      "\" is ", factor, "; only ", share.factor,
                                                      " is supported")));
  }
  const auto dim = static_cast<int32_t>(head_dim * factor);
  if (dim < 1 || RotatedElements(dim) > head_dim) {
    holder.Refuse(kPartial, factor,
                  absl::StrCat("of head_dim = ", head_dim, " it must leave 1 to ",
                               head_dim - head_dim % 2, " elements, rounded down"));
  }
  RETURN_IF_ERROR(config.status());
  RETURN_IF_ERROR(rope.status());
  return dim;
}

absl::StatusOr<RopeForm> ParseRopeForm(JsonFields& config, const RopeContext& context) {
  const RopeObject found = FindRopeObject(config, context);
  RETURN_IF_ERROR(config.status());
  const nlohmann::json& object = found.object;
  JsonFields rope(absl::StrCat(config.where(), ": ", found.name), object);
  RETURN_IF_ERROR(rope.status());

  RopeForm form;
  form.theta = config.Number(context.theta_field, context.theta, kMinTheta, kMaxTheta);
  form.theta = rope.Number("rope_theta", form.theta, kMinTheta, kMaxTheta);
  const int32_t known = context.original_positions > 0 ? context.original_positions
                                                       : context.max_position_embeddings;
  const auto inner = static_cast<int32_t>(
      rope.Int("original_max_position_embeddings", known, 1, kMostPositions));
  // A family's own default stands beside, and so comes before what is inside.
  const int32_t beside = context.original_positions > 0 ? known : inner;
  const auto original = static_cast<int32_t>(
      config.Int("original_max_position_embeddings", beside, 1, kMostPositions));
  form.scaling = ParseScaling(rope, original, context);
  RefuseUnknownFields(rope, object, context.layer_type == nullptr);
  if (std::holds_alternative<RopeYarn>(form.scaling) && form.theta <= 1) {
    rope.Refuse("rope_theta", form.theta, "rope type \"yarn\" needs more than 1");
  }
  RETURN_IF_ERROR(config.status());
  RETURN_IF_ERROR(rope.status());
  return form;
}

int32_t MaxModelLen(const RopeForm& form, int32_t max_position_embeddings) {
  double length = max_position_embeddings;
  double limit = kMaxModelLen;
  if (const auto* yarn = std::get_if<RopeYarn>(&form.scaling); yarn != nullptr) {
    length = std::max(length, std::floor(yarn->factor * yarn->original_max_positions));
  }
  if (const auto* longrope = std::get_if<RopeLongrope>(&form.scaling); longrope != nullptr) {
    limit *= std::min(
        {1.0, std::ranges::min(longrope->short_factors), std::ranges::min(longrope->long_factors)});
  }
  return static_cast<int32_t>(std::min(length, std::floor(limit)));
}

}  // namespace baton
