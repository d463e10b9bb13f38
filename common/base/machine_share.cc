#include "common/base/machine_share.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace baton {
namespace {

constexpr int64_t kMaxCores = 1 << 16;

// Also of a file that opens and whose reading fails, which the buffer alone would throw.
std::string TextOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// The number after `key` in lines of "key number ..."; 0 if there is none.
int64_t NumberAfter(absl::string_view text, absl::string_view key) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    int64_t number = 0;
    if (words.size() >= 2 && words[0] == key && absl::SimpleAtoi(words[1], &number)) return number;
  }
  return 0;
}

// The number that is all of a file; 0 if it is another text, as "max" is.
int64_t NumberIn(const std::string& path) {
  int64_t number = 0;
  return absl::SimpleAtoi(absl::StripAsciiWhitespace(TextOf(path)), &number) ? number : 0;
}

// How the files of a version are called.
struct GroupFiles {
  const char* memory_limit;
  const char* memory_used;
  const char* idle_cache;  // In memory.stat: pages of files that are given back when needed.
};
constexpr GroupFiles kV2 = {"memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles kV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                            "total_inactive_file"};

void NarrowCores(const std::string& folder, bool is_v2, MachineShare* share) {
  const std::string quota =
      is_v2 ? TextOf(absl::StrCat(folder, "/cpu.max"))
            : absl::StrCat(absl::StripAsciiWhitespace(TextOf(folder + "/cpu.cfs_quota_us")), " ",
                           TextOf(folder + "/cpu.cfs_period_us"));
  const int cores = CoresOfQuota(quota);
  if (cores == 0) return;
  share->quota_cores = share->quota_cores == 0 ? cores : std::min(share->quota_cores, cores);
}

void NarrowMemory(const std::string& folder, const GroupFiles& files, MachineShare* share) {
  const int64_t limit = NumberIn(absl::StrCat(folder, "/", files.memory_limit));
  if (limit <= 0 || limit >= share->physical_bytes) return;  // v1 says "none" by 2^63.
  share->limit_bytes = share->limit_bytes == 0 ? limit : std::min(share->limit_bytes, limit);
  const int64_t used =
      NumberIn(absl::StrCat(folder, "/", files.memory_used)) -
      NumberAfter(TextOf(absl::StrCat(folder, "/memory.stat")), files.idle_cache);
  share->available_bytes =
      std::min(share->available_bytes, std::max<int64_t>(limit - std::max<int64_t>(used, 0), 0));
}

// A group and all above it: each limits what is below. In a container the own group may be what is
// mounted, whatever path the kernel names; then only that is there.
template <typename Narrow>
void ForEachLevel(const std::string& mount, absl::string_view group, Narrow narrow) {
  std::string path(absl::StripSuffix(group, "/"));
  for (;;) {
    narrow(mount + path);
    if (path.empty()) return;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

int MachineShare::cores() const {
  return std::max(1, quota_cores > 0 ? std::min(quota_cores, allowed_cores) : allowed_cores);
}

int CoresOfQuota(absl::string_view quota_and_period) {
  const std::vector<absl::string_view> parts =
      absl::StrSplit(absl::StripAsciiWhitespace(quota_and_period), ' ');
  int64_t quota = 0;
  int64_t period = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &quota) ||
      !absl::SimpleAtoi(parts[1], &period) || quota <= 0 || period <= 0) {
    return 0;
  }
  return static_cast<int>(
      std::min<int64_t>(quota / period + (quota % period == 0 ? 0 : 1), kMaxCores));
}

MachineShare ReadMachineShareAt(const std::string& root, int allowed_cores) {
  MachineShare share{.allowed_cores = std::max(allowed_cores, 1)};
  const std::string meminfo = TextOf(root + "/proc/meminfo");
  share.physical_bytes = NumberAfter(meminfo, "MemTotal:") * 1024;
  share.available_bytes = NumberAfter(meminfo, "MemAvailable:") * 1024;
  const std::string groups = TextOf(root + "/proc/self/cgroup");
  for (const absl::string_view line : absl::StrSplit(groups, '\n', absl::SkipEmpty())) {
    // "HIERARCHY:CONTROLLERS:PATH"; of v2 without controllers.
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::string mounts = root + "/sys/fs/cgroup";
    if (parts[1].empty()) {
      ForEachLevel(mounts, parts[2], [&](const std::string& folder) {
        NarrowCores(folder, /*is_v2=*/true, &share);
        NarrowMemory(folder, kV2, &share);
      });
    }
    for (const absl::string_view controller : absl::StrSplit(parts[1], ',')) {
      if (controller != "cpu" && controller != "memory") continue;
      ForEachLevel(absl::StrCat(mounts, "/", controller), parts[2],
                   [&](const std::string& folder) {
                     if (controller == "memory") return NarrowMemory(folder, kV1, &share);
                     NarrowCores(folder, /*is_v2=*/false, &share);
                   });
    }
  }
  return share;
}

int AllowedCores(absl::FunctionRef<int(size_t bytes, cpu_set_t* set)> read) {
  for (size_t sets = 1; sets * CPU_SETSIZE <= kMaxCores; sets *= 2) {
    std::vector<cpu_set_t> mask(sets);
    const size_t bytes = sets * sizeof(cpu_set_t);
    if (read(bytes, mask.data()) == 0) return CPU_COUNT_S(bytes, mask.data());
    if (errno != EINVAL) break;
  }
  return 1;
}

MachineShare ReadMachineShare() {
  return ReadMachineShareAt("", AllowedCores([](size_t bytes, cpu_set_t* set) {
    return sched_getaffinity(0, bytes, set);
  }));
}

}  // namespace baton
