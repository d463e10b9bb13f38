// Runs test programs that were linked with copies of sources in which bugs can be switched on: each
// bug must be caught by the tests that its entry names, and without a bug those must pass.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/planted/child_end.h"

namespace baton {
namespace {

constexpr int kFailedTests = 1;  // How GoogleTest's main ends then.
constexpr int kAtOnce = 8;       // Suites; they wait more than they compute.

struct Bug {
  std::string suite;
  int number = 0;
  std::string name;
  std::string by;  // A filter of tests.
};

const std::string kNone = "none";

std::vector<std::string> Suites() {
  std::istringstream list(BATON_PLANTED_SUITES);
  std::vector<std::string> suites;
  for (std::string suite; std::getline(list, suite, ',');) suites.push_back(suite);
  return suites;
}

std::string FolderOf(const std::string& suite) { return BATON_PLANTED_DIR "/" + suite; }

std::vector<Bug> BugsOf(const std::string& suite) {
  std::ifstream list(FolderOf(suite) + "/planted_bugs.list");
  std::vector<Bug> bugs;
  Bug bug{.suite = suite};
  for (; list >> bug.name >> bug.by; ++bug.number) bugs.push_back(bug);
  EXPECT_FALSE(bugs.empty()) << suite;
  return bugs;
}

// All that its bugs' tests hold without one.
Bug NoneOf(const std::string& suite) {
  Bug none{.suite = suite, .number = -1, .name = kNone};
  for (const Bug& bug : BugsOf(suite)) none.by += bug.by + ":";
  return none;
}

std::vector<Bug> AllBugs() {
  std::vector<Bug> all;
  for (const std::string& suite : Suites()) {
    for (const Bug& bug : BugsOf(suite)) all.push_back(bug);
  }
  return all;
}

struct Ending {
  int status = 0;  // As waitpid tells it.
  std::string output;
};

// Runs the suite's tests with a bug, in limits that no healthy run comes near. From any thread: the
// child allocates nothing.
Ending RunSuite(const std::string& suite, int bug, const std::string& filter) {
  const std::string log = FolderOf(suite) + "/suite." + std::to_string(bug) + ".log";
  const std::string program = FolderOf(suite) + "/suite";
  const std::string tests = "--gtest_filter=" + filter;
  const std::string number = "BATON_PLANTED_BUG=" + std::to_string(bug);
  std::vector<const char*> environment = {number.c_str()};
  for (char** one = environ; *one != nullptr; ++one) environment.push_back(*one);
  environment.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const int out = ::open(log.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    const rlimit seconds{.rlim_cur = 120, .rlim_max = 120};
    ::setrlimit(RLIMIT_CPU, &seconds);
    const rlimit no_core{};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::alarm(480);
    ::execle(program.c_str(), program.c_str(), tests.c_str(), "--gtest_fail_fast",
             static_cast<char*>(nullptr), environment.data());
    ::_exit(127);
  }
  Ending run;
  ::waitpid(child, &run.status, 0);
  std::ostringstream text;
  text << std::ifstream(log).rdbuf();
  run.output = text.str();
  return run;
}

// How the suites end with those bugs whose tests are to run, and without one, several at once.
class Endings : public testing::Environment {
 public:
  void SetUp() override {
    std::vector<Bug> bugs;
    for (const std::string& suite : Suites()) {  // The longest first.
      if (IsWanted("PassesWithoutABug/" + suite)) bugs.push_back(NoneOf(suite));
    }
    for (const Bug& bug : AllBugs()) {
      if (IsWanted("IsCaught/" + bug.name)) bugs.push_back(bug);
    }
    for (const Bug& bug : bugs) of_[{bug.suite, bug.name}];
    std::atomic<size_t> next = 0;
    std::vector<std::jthread> threads;
    for (int i = 0; i < kAtOnce; ++i) {
      threads.emplace_back([&] {
        for (size_t at; (at = next++) < bugs.size();) {
          const Bug& bug = bugs[at];
          of_.at({bug.suite, bug.name}) = RunSuite(bug.suite, bug.number, bug.by);
        }
      });
    }
  }
  const Ending& Of(const std::string& suite, const std::string& bug) const {
    return of_.at({suite, bug});
  }

 private:
  static bool IsWanted(const std::string& name) {
    const testing::UnitTest& all = *testing::UnitTest::GetInstance();
    for (int s = 0; s < all.total_test_suite_count(); ++s) {
      const testing::TestSuite& suite = *all.GetTestSuite(s);
      for (int t = 0; t < suite.total_test_count(); ++t) {
        const testing::TestInfo& test = *suite.GetTestInfo(t);
        if (test.name() == name) return test.should_run();
      }
    }
    return false;
  }

  std::map<std::pair<std::string, std::string>, Ending> of_;
};
const auto* const endings =
    static_cast<Endings*>(testing::AddGlobalTestEnvironment(new Endings));

class PlantedSuiteTest : public testing::TestWithParam<std::string> {};

TEST_P(PlantedSuiteTest, PassesWithoutABug) {
  const Ending& run = endings->Of(GetParam(), kNone);
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_EQ(run.output.find("[  PASSED  ] 0 tests"), std::string::npos) << run.output;
}

INSTANTIATE_TEST_SUITE_P(All, PlantedSuiteTest, testing::ValuesIn(Suites()),
                         [](const auto& info) { return info.param; });

class PlantedSuiteBugTest : public testing::TestWithParam<Bug> {};

TEST_P(PlantedSuiteBugTest, IsCaught) {
  const Bug& bug = GetParam();
  const Ending& run = endings->Of(bug.suite, bug.name);
  EXPECT_TRUE(IsCatch(run.status, kFailedTests))
      << bug.name << " ends " << bug.suite << " with status " << run.status << ":\n"
      << run.output;
  if (WIFEXITED(run.status)) {
    EXPECT_NE(run.output.find("[  FAILED  ]"), std::string::npos) << run.output;
  }
}

INSTANTIATE_TEST_SUITE_P(All, PlantedSuiteBugTest, testing::ValuesIn(AllBugs()),
                         [](const auto& info) { return info.param.name; });

TEST(ChildEndTest, OnlyAFailedExpectationOrACrashIsACatch) {
  const auto exited = [](int code) { return code << 8; };
  EXPECT_TRUE(IsCatch(exited(kFailedTests), kFailedTests));
  for (int code : {0, 2, 3, 127}) EXPECT_FALSE(IsCatch(exited(code), kFailedTests)) << code;
  for (int signal : {SIGABRT, SIGSEGV}) EXPECT_TRUE(IsCatch(signal, kFailedTests)) << signal;
  for (int signal : {SIGXCPU, SIGKILL, SIGTERM, SIGALRM, SIGBUS, SIGFPE}) {
    EXPECT_FALSE(IsCatch(signal, kFailedTests)) << signal;
  }
}

}  // namespace
}  // namespace baton
