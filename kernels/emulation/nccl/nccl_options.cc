#include "kernels/emulation/nccl/nccl_options.h"

#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "kernels/emulation/option_words.h"

namespace baton::emulation::nccl {
namespace {

struct Current {
  std::mutex mutex;
  std::condition_variable changed;
  Options options;
  int64_t works = 0;
  int64_t passings = 0;
};

template <typename T>
bool ParseNumber(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0;
}

bool ParseFlag(std::string_view text, bool& value) {
  value = text == "1";
  return text == "0" || text == "1";
}

bool ParseMoment(std::string_view text, int signal, Options& options) {
  const size_t colon = text.find(':');
  options.moment = text.substr(0, colon);
  options.passing = 1;
  options.signal = signal;
  return !options.moment.empty() && (colon == std::string_view::npos ||
                                     ParseNumber(text.substr(colon + 1), options.passing));
}

bool ParseInit(std::string_view text, Options::Init& init) {
  init = text == "hang" ? Options::Init::kHang
                        : (text == "fail" ? Options::Init::kFail : Options::Init::kOk);
  return text == "ok" || init != Options::Init::kOk;
}

bool ParseAbort(std::string_view text, Options::Abort& abort) {
  abort = text == "hang" ? Options::Abort::kHang
                         : (text == "slow" ? Options::Abort::kSlow : Options::Abort::kOk);
  return text == "ok" || abort != Options::Abort::kOk;
}

bool ParseWord(std::string_view key, std::string_view value, Options& options) {
  if (key == "seed") return ParseNumber(value, options.seed);
  if (key == "delay_us") return ParseNumber(value, options.delay_us);
  if (key == "version") return ParseNumber(value, options.version);
  if (key == "init") return ParseInit(value, options.init);
  if (key == "abort") return ParseAbort(value, options.abort);
  if (key == "abort_ms") return ParseNumber(value, options.abort_ms);
  if (key == "silent") return ParseFlag(value, options.silent);
  if (key == "one_device") return ParseFlag(value, options.one_device);
  if (key == "fail") return ParseNumber(value, options.fail);
  if (key == "cut") return ParseNumber(value, options.cut);
  if (key == "lose") return ParseNumber(value, options.lose);
  if (key == "spoil") return ParseNumber(value, options.spoil);
  if (key == "kill") return ParseMoment(value, SIGKILL, options);
  if (key == "stop") return ParseMoment(value, SIGSTOP, options);
  return false;
}

Current& TheCurrent() {
  static Current* const current = [] {
    auto* made = new Current;
    const char* text = std::getenv("BATON_EMULATED_NCCL");
    const std::optional<Options> parsed = ParseOptions(text == nullptr ? "" : text);
    if (!parsed.has_value()) {
      std::fprintf(stderr, "BATON_EMULATED_NCCL=%s: see kernels/emulation/nccl/nccl_options.h\n",
                   text);
      std::exit(2);
    }
    made->options = *parsed;
    return made;
  }();
  return *current;
}

}  // namespace

std::optional<Options> ParseOptions(std::string_view text) {
  Options options;
  const bool is_good = ParseWords(text, [&](std::string_view key, std::string_view value) {
    return ParseWord(key, value, options);
  });
  return is_good ? std::optional(options) : std::nullopt;
}

Options CurrentOptions() {
  const std::lock_guard lock(TheCurrent().mutex);
  return TheCurrent().options;
}

bool Configure(std::string_view text) {
  const std::optional<Options> parsed = ParseOptions(text);
  if (!parsed.has_value()) return false;
  Current& current = TheCurrent();
  const std::lock_guard lock(current.mutex);
  current.options = *parsed;
  current.works = current.passings = 0;
  current.changed.notify_all();
  return true;
}

void WaitWhileAbortsHang() {
  Current& current = TheCurrent();
  std::unique_lock lock(current.mutex);
  current.changed.wait(lock, [&] { return current.options.abort != Options::Abort::kHang; });
}

int64_t NextWork() {
  const std::lock_guard lock(TheCurrent().mutex);
  return ++TheCurrent().works;
}

void Pass(std::string_view moment) {
  Current& current = TheCurrent();
  const std::lock_guard lock(current.mutex);
  if (moment != current.options.moment) return;
  if (++current.passings == current.options.passing) kill(getpid(), current.options.signal);
}

}  // namespace baton::emulation::nccl
