#include "tests/planted/planted.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <new>
#include <string>
#include <string_view>

#include "gtest/gtest.h"
#include "tests/planted/child_end.h"
#include "tests/sim/cluster.h"

namespace baton::sim {
namespace {

constexpr const char* kNames[] = {
#include "planted_names.inc"
};
constexpr uint64_t kMaxSeeds = 10000;
// How a child ends that found a violation, and one whose memory is at its end: by itself that would
// look like a failed CHECK.
constexpr int kViolated = 3;
constexpr int kOutOfMemory = 4;

// What a child tells of its search, also when the bug ends it.
struct Progress {
  uint64_t seed = 0;
  char violation[256] = {};
};

// For a node that never returns, or that takes all memory before it does.
void LimitChild() {
  const rlimit seconds{.rlim_cur = 120, .rlim_max = 120};
  const rlimit bytes{.rlim_cur = 2ull << 30, .rlim_max = 2ull << 30};
  setrlimit(RLIMIT_CPU, &seconds);
  setrlimit(RLIMIT_AS, &bytes);
  std::set_new_handler([] { _exit(kOutOfMemory); });
}

// Runs seeds with the bug until one is violated; the process ends with kViolated then.
void Search(int bug, uint64_t first_seed, uint64_t num_seeds, Progress* progress) {
  planted_bug = bug;
  LimitChild();
  // Of K/V over NCCL; the other worlds have nothing of it.
  const bool needs_nccl = bug >= 0 && kNames[bug][0] == 'n';
  for (uint64_t seed = first_seed; seed < first_seed + num_seeds; ++seed) {
    progress->seed = seed;
    const Scenario scenario = DrawScenario(seed);
    if (needs_nccl && !scenario.nccl) continue;
    Cluster cluster(seed, scenario);
    const std::string violation = cluster.Run();
    if (violation.empty()) continue;
    std::strncpy(progress->violation, violation.c_str(), sizeof(progress->violation) - 1);
    _exit(kViolated);
  }
  _exit(0);
}

// A violation counts only if it was told.
bool IsCatch(int status, const Progress& progress) {
  return baton::IsCatch(status, kViolated) && !(WIFEXITED(status) && progress.violation[0] == 0);
}

bool Nightly() { return std::getenv("BATON_NIGHTLY") != nullptr; }

// By planted_bugs.md, the seed that found each bug when it was last printed. A seed that still does
// spares the search; the nightly form searches anew.
std::map<std::string, uint64_t> SeedsOfTheTable() {
  std::map<std::string, uint64_t> seeds;
  std::ifstream table(BATON_SOURCE_DIR "/tests/sim/planted_bugs.md");
  for (std::string line; std::getline(table, line);) {  // | name | seed | what was violated |
    const size_t name_end = line.find(" | ", 2);
    uint64_t seed = 0;
    if (!line.starts_with("| ") || name_end == std::string::npos) continue;
    const std::string_view rest = std::string_view(line).substr(name_end + 3);
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), seed);
    if (error == std::errc() && seed >= 1 && seed <= kMaxSeeds) {
      seeds[line.substr(2, name_end - 2)] = seed;
    }
  }
  return seeds;
}

class PlantedBugTest : public testing::TestWithParam<int> {
 protected:
  // In a process of its own: a bug may fail a CHECK, throw or never return. Returns what it ended
  // with; progress_->violation says why if that is not 0.
  int RunChild(int bug, uint64_t first_seed, uint64_t num_seeds) {
    void* shared =
        mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    progress_ = new (shared) Progress;
    const pid_t child = fork();
    if (child == 0) {
      if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(1);
      Search(bug, first_seed, num_seeds, progress_);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) std::strcpy(progress_->violation, strsignal(WTERMSIG(status)));
    return status;
  }
  static void TearDownTestSuite() {
    if (most_seeds_ == 0) return;
    std::printf("seeds that the rarest of these bugs took: %llu\n",
                static_cast<unsigned long long>(most_seeds_));
  }
  Progress* progress_ = nullptr;
  static inline uint64_t most_seeds_ = 0;  // Up to the first that caught one, or that of the table.
};

TEST_F(PlantedBugTest, TheCopiesPassWithoutABug) {
  EXPECT_EQ(RunChild(-1, 1, 200), 0) << "seed " << progress_->seed << ": " << progress_->violation;
}

TEST_F(PlantedBugTest, OnlyAViolationOrACrashOfTheNodesIsACatch) {
  Progress told, silent;
  std::strcpy(told.violation, "I1");
  const auto exited = [](int code) { return code << 8; };
  EXPECT_TRUE(IsCatch(exited(kViolated), told));
  EXPECT_FALSE(IsCatch(exited(kViolated), silent));
  for (int code : {0, 1, 2, 127}) EXPECT_FALSE(IsCatch(exited(code), told)) << code;
  for (int signal : {SIGABRT, SIGSEGV}) EXPECT_TRUE(IsCatch(signal, told)) << signal;
  for (int signal : {SIGXCPU, SIGKILL, SIGTERM, SIGALRM, SIGBUS, SIGPIPE}) {
    EXPECT_FALSE(IsCatch(signal, told)) << signal;
  }
}

TEST_F(PlantedBugTest, AChildThatTakesAllMemoryHasCaughtNothing) {
  Progress told;
  std::strcpy(told.violation, "I1");
  const pid_t child = fork();
  if (child == 0) {
    LimitChild();
    const std::string all(size_t{4} << 30, 'x');
    _exit(all.back() == 'x' ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, kOutOfMemory << 8);
  EXPECT_FALSE(IsCatch(status, told));
}

TEST_F(PlantedBugTest, TheTableIsRead) {
  EXPECT_EQ(SeedsOfTheTable().count(kNames[0]), 1u);
}

TEST_P(PlantedBugTest, IsCaught) {
  static const std::map<std::string, uint64_t> seeds = SeedsOfTheTable();
  const auto known = seeds.find(kNames[GetParam()]);
  int status = 0;
  if (known != seeds.end() && !Nightly()) status = RunChild(GetParam(), known->second, 1);
  if (status == 0) status = RunChild(GetParam(), 1, kMaxSeeds);
  ASSERT_NE(status, 0) << kNames[GetParam()] << " is not caught by " << kMaxSeeds << " seeds";
  ASSERT_TRUE(IsCatch(status, *progress_))
      << kNames[GetParam()] << ": seed " << progress_->seed
      << " broke the search off and violated nothing: " << progress_->violation;
  most_seeds_ = std::max(most_seeds_, progress_->seed);
  std::printf("| %s | %llu | %s |\n", kNames[GetParam()],
              static_cast<unsigned long long>(progress_->seed), progress_->violation);
}

INSTANTIATE_TEST_SUITE_P(All, PlantedBugTest, testing::Range(0, int(std::size(kNames))),
                         [](const auto& info) { return std::string(kNames[info.param]); });

}  // namespace
}  // namespace baton::sim
