#include "common/checkpoint/generation_config.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/json_fields.h"

namespace baton {
namespace {

constexpr int64_t kMaxFileBytes = 4 << 20;
constexpr int kMaxDepth = 32;
constexpr double kTiny = 1e-6;
constexpr double kLarge = 1e6;

std::optional<float> OptionalNumber(JsonFields& fields, const std::string& name, double min,
                                    double max) {
  if (fields.Find(name) == nullptr) return std::nullopt;
  return static_cast<float>(fields.Number(name, min, min, max));
}

std::optional<int32_t> OptionalInt(JsonFields& fields, const std::string& name) {
  if (fields.Find(name) == nullptr) return std::nullopt;
  return static_cast<int32_t>(fields.Int(name, 0, 0, std::numeric_limits<int32_t>::max()));
}

absl::StatusOr<GenerationConfig> Parse(std::string where, const std::string& json_text) {
  ASSIGN_OR_RETURN(const nlohmann::json object, ParseBoundedJson(where, json_text, kMaxDepth));
  JsonFields fields(std::move(where), object);
  GenerationConfig config;
  config.eos_token_ids = fields.TokenIds("eos_token_id", {});
  config.bos_token_id = OptionalInt(fields, "bos_token_id");
  if (fields.Find("do_sample") != nullptr) config.do_sample = fields.Bool("do_sample", false);
  config.temperature = OptionalNumber(fields, "temperature", 0, kLarge);
  config.top_k = OptionalInt(fields, "top_k");
  config.top_p = OptionalNumber(fields, "top_p", kTiny, 1);
  config.min_p = OptionalNumber(fields, "min_p", 0, 1);
  config.repetition_penalty = OptionalNumber(fields, "repetition_penalty", kTiny, kLarge);
  RETURN_IF_ERROR(fields.status());
  return config;
}

}  // namespace

absl::StatusOr<GenerationConfig> ParseGenerationConfig(const std::string& json_text) {
  return Parse("generation_config.json", json_text);
}

absl::StatusOr<GenerationConfig> LoadGenerationConfig(const std::string& model_dir) {
  const std::string path = absl::StrCat(model_dir, "/generation_config.json");
  absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxFileBytes);
  if (absl::IsNotFound(text.status())) return GenerationConfig{};
  if (!text.ok()) return text.status();
  return Parse(path, *text);
}

}  // namespace baton
