#include "kernels/emulation/options.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>

namespace baton::emulation {
namespace {

template <typename T>
bool ParseNumber(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool ParseWord(std::string_view key, std::string_view value, Options& options) {
  if (key == "seed") return ParseNumber(value, options.seed);
  if (key == "memory") return ParseNumber(value, options.memory);
  if (key == "lose") return ParseNumber(value, options.lose);
  if (key == "devices") return ParseNumber(value, options.devices) && options.devices <= 1;
  if (key == "driver") return ParseNumber(value, options.driver);
  if (key == "arch") {
    options.architecture = value == "sm90" ? Architecture::kHopper : Architecture::kAmpere;
    options.too_old = value == "sm75";
    return value == "sm75" || value == "sm80" || value == "sm90";
  }
  if (key == "detector") {
    options.detects = value == "on";
    return value == "on" || value == "off";
  }
  return false;
}

}  // namespace

std::optional<Options> ParseOptions(std::string_view text) {
  Options options;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(word.size() < text.size() ? word.size() + 1 : word.size());
    if (word.empty()) continue;
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos) return std::nullopt;
    if (!ParseWord(word.substr(0, equals), word.substr(equals + 1), options)) return std::nullopt;
  }
  return options;
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
