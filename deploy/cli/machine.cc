#include "deploy/cli/machine.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
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

int64_t KibField(absl::string_view text, absl::string_view key) {
  int64_t kib = 0;
  const absl::string_view number = absl::StripSuffix(FieldOf(text, key), " kB");
  return absl::SimpleAtoi(number, &kib) ? kib * 1024 : 0;
}

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  if (const int quota = CoresOfQuota(ReadSmallFile("/sys/fs/cgroup/cpu.max")); quota > 0) {
    cores = std::min(cores, quota);
  }
  return std::max(cores, 1);
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

int CoresOfQuota(absl::string_view cpu_max) {
  const std::vector<absl::string_view> parts =
      absl::StrSplit(absl::StripAsciiWhitespace(cpu_max), ' ');
  int64_t quota = 0;
  int64_t period = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &quota) ||
      !absl::SimpleAtoi(parts[1], &period) || quota <= 0 || period <= 0) {
    return 0;
  }
  return static_cast<int>(std::min<int64_t>((quota + period - 1) / period, 1 << 16));
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
  machine.cores = UsableCores();
  const std::string meminfo = ReadSmallFile("/proc/meminfo");
  machine.memory_bytes = KibField(meminfo, "MemTotal");
  machine.available_bytes = KibField(meminfo, "MemAvailable");
  int64_t limit = 0;
  int64_t used = 0;
  if (absl::SimpleAtoi(ReadSmallFile("/sys/fs/cgroup/memory.max"), &limit) &&
      limit < machine.memory_bytes) {
    machine.memory_bytes = limit;
    if (absl::SimpleAtoi(ReadSmallFile("/sys/fs/cgroup/memory.current"), &used)) {
      machine.available_bytes =
          std::min(machine.available_bytes, std::max<int64_t>(0, limit - used));
    }
  }
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
