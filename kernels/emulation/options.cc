#include "kernels/emulation/options.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "kernels/emulation/option_words.h"

namespace baton::emulation {
namespace {

constexpr GpuModel kModels[] = {
    {"sm75", 7, 5, Architecture::kAmpere, 64 << 10},  // Which Baton does not take.
    {"sm80", 8, 0, Architecture::kAmpere, 163 << 10},
    {"sm86", 8, 6, Architecture::kAmpere, 99 << 10},
    {"sm89", 8, 9, Architecture::kAmpere, 99 << 10},
    {"sm90", 9, 0, Architecture::kHopper, 227 << 10},
    {"sm100", 10, 0, Architecture::kHopper, 227 << 10},
    {"sm120", 12, 0, Architecture::kHopper, 99 << 10},
};

struct NamedDeviation {
  std::string_view name;
  Deviation deviation;
};
constexpr NamedDeviation kDeviations[] = {
    {"as-mma", Deviation::kNone},        {"fewer-bits", Deviation::kFewerBits},
    {"more-bits", Deviation::kMoreBits}, {"nearest", Deviation::kNearest},
    {"halves", Deviation::kHalves},      {"swapped-halves", Deviation::kSwappedHalves},
    {"flushes", Deviation::kFlushes},
};

bool ParseWgmma(std::string_view name, WgmmaSums& sums) {
  const auto* found = std::ranges::find(kDeviations, name, &NamedDeviation::name);
  if (found == std::end(kDeviations)) return false;
  sums = {found->deviation, found->deviation};
  return true;
}

bool ParseModels(std::string_view names, std::vector<const GpuModel*>& models) {
  models.clear();
  for (;;) {
    const size_t end = names.find(',');
    models.push_back(FindGpuModel(names.substr(0, end)));
    if (models.back() == nullptr) return false;
    if (end == std::string_view::npos) return true;
    names.remove_prefix(end + 1);
  }
}

bool ParseSwitch(std::string_view text, bool& value) {
  value = text == "on";
  return value || text == "off";
}

template <typename T>
bool ParseNumber(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool ParseWord(std::string_view key, std::string_view value, Options& options) {
  if (key == "seed") return ParseNumber(value, options.seed);
  if (key == "memory") return ParseNumber(value, options.memory);
  if (key == "taken") return ParseNumber(value, options.taken);
  if (key == "shared") {
    options.shared = value;
    return !value.empty();
  }
  if (key == "lose") return ParseNumber(value, options.lose);
  if (key == "hang") return ParseNumber(value, options.hang);
  if (key == "devices") {
    return ParseNumber(value, options.devices) && options.devices >= 0 &&
           options.devices <= kMostDevices;
  }
  if (key == "driver") return ParseNumber(value, options.driver);
  if (key == "arch") return ParseModels(value, options.models);
  if (key == "detector") return ParseSwitch(value, options.detects);
  if (key == "wgmma") return ParseWgmma(value, options.wgmma);
  if (key == "peers") return ParseSwitch(value, options.peers);
  return false;
}

}  // namespace

const GpuModel* FindGpuModel(std::string_view name) {
  const auto* model = std::ranges::find(kModels, name, &GpuModel::name);
  return model == std::end(kModels) ? nullptr : model;
}

std::optional<Options> ParseOptions(std::string_view text) {
  Options options;
  const bool is_good = ParseWords(text, [&](std::string_view key, std::string_view value) {
    return ParseWord(key, value, options);
  });
  return is_good ? std::optional(options) : std::nullopt;
}

const Options& OptionsOfEnvironment() {
  static const Options* const options = [] {
    const char* text = std::getenv("BATON_EMULATED_GPU");
    const std::optional<Options> parsed = ParseOptions(text == nullptr ? "" : text);
    if (!parsed.has_value()) {
      std::fprintf(stderr, "BATON_EMULATED_GPU=%s: see kernels/emulation/options.h\n", text);
      std::exit(2);
    }
    return new Options(*parsed);
  }();
  return *options;
}

}  // namespace baton::emulation
