#include "deploy/cli/machine.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace baton::cli {
namespace {

// The value of the first "key : value" line of a /proc file, or "".
absl::string_view FieldOf(absl::string_view text, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, key)) continue;
    line = absl::StripLeadingAsciiWhitespace(line);
    if (absl::ConsumePrefix(&line, ":")) return absl::StripAsciiWhitespace(line);
  }
  return "";
}

}  // namespace

std::string ReadSmallFile(const std::string& path, int64_t max_bytes) {
  std::ifstream in(path, std::ios::binary);
  std::string text;
  char buffer[4096];
  while (in && static_cast<int64_t>(text.size()) < max_bytes) {
    in.read(buffer, sizeof(buffer));
    text.append(buffer, static_cast<size_t>(in.gcount()));
  }
  if (static_cast<int64_t>(text.size()) > max_bytes) text.resize(static_cast<size_t>(max_bytes));
  return text;
}

std::string IsaOfFlags(absl::string_view flags) {
  const std::vector<absl::string_view> words = absl::StrSplit(flags, ' ');
  const auto has = [&](absl::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (!has("avx2") || !has("fma")) return "portable";
  return has("avx512f") && has("avx512bw") && has("avx512vl") ? "AVX-512" : "AVX2";
}

int ThreadsPerWorker(int cores, int num_workers) {
  return std::max(1, cores / std::max(1, num_workers));
}

Machine ReadMachine() {
  Machine machine;
  const std::string cpuinfo = ReadSmallFile("/proc/cpuinfo", 1 << 16);
  machine.cpu_model = std::string(FieldOf(cpuinfo, "model name"));
  machine.isa = IsaOfFlags(FieldOf(cpuinfo, "flags"));
  machine.share = ReadMachineShare();
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    machine.open_files = static_cast<int64_t>(std::min<rlim_t>(files.rlim_cur, INT64_MAX));
  }
  const std::string driver = ReadSmallFile("/proc/driver/nvidia/version", 4096);
  machine.gpu = driver.substr(0, driver.find('\n'));
  return machine;
}

std::string HumanBytes(int64_t bytes) {
  if (bytes >= (int64_t{1} << 30)) {
    return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / (1 << 30));
  }
  if (bytes >= (1 << 20)) {
    return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  }
  return absl::StrFormat("%.1f KiB", static_cast<double>(bytes) / 1024);
}

}  // namespace baton::cli
