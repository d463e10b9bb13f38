#include "kernels/emulation/shared_use.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace baton::emulation {
namespace {

constexpr size_t kCapacity = 1000;

// Another process, which does what it is told with the file and stays until it is killed.
class Other {
 public:
  Other(const std::string& file, const std::function<bool(SharedUse&)>& act) {
    int done[2];
    EXPECT_EQ(pipe(done), 0);
    pid_ = fork();
    if (pid_ == 0) {
      SharedUse use(file);
      const char answer = act(use) ? 'y' : 'n';
      (void)!write(done[1], &answer, 1);
      for (;;) pause();
    }
    close(done[1]);
    EXPECT_EQ(read(done[0], &answer_, 1), 1);
    close(done[0]);
  }
  ~Other() { Kill(); }
  bool answer() const { return answer_ == 'y'; }
  void Kill() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
  char answer_ = 0;
};

class SharedUseTest : public testing::Test {
 protected:
  void SetUp() override { unlink(file_.c_str()); }
  void TearDown() override { unlink(file_.c_str()); }
  const std::string file_ = testing::TempDir() + "/shared_use_test." + std::to_string(getpid());
};

TEST_F(SharedUseTest, ProcessesTakeOfOneMemoryAndOneThatIsKilledHasNone) {
  Other first(file_, [](SharedUse& use) { return use.Take(0, 600, kCapacity); });
  EXPECT_TRUE(first.answer());
  SharedUse use(file_);
  EXPECT_EQ(use.OfOthers(0), 600u);
  EXPECT_EQ(use.OfOthers(1), 0u);
  EXPECT_FALSE(use.Take(0, 401, kCapacity));
  EXPECT_TRUE(use.Take(0, 400, kCapacity));
  EXPECT_TRUE(use.Take(1, 1000, kCapacity));
  EXPECT_EQ(use.OfOthers(0), 600u);  // Not its own.
  Other second(file_, [](SharedUse& other) { return other.Take(0, 1, kCapacity); });
  EXPECT_FALSE(second.answer());
  first.Kill();
  EXPECT_EQ(use.OfOthers(0), 0u);
  EXPECT_TRUE(use.Take(0, 600, kCapacity));
  // The next has its place, and nothing of what was its.
  Other third(file_, [](SharedUse& other) { return other.Take(0, 1, kCapacity); });
  EXPECT_FALSE(third.answer());
  use.GiveBack(0, 1);
  Other fourth(file_, [](SharedUse& other) { return other.Take(0, 1, kCapacity); });
  EXPECT_TRUE(fourth.answer());
  EXPECT_FALSE(use.Take(0, 1, kCapacity));
}

TEST_F(SharedUseTest, AFileThatCannotBeMadeEndsTheProcess) {
  EXPECT_EXIT(SharedUse(file_ + "/none"), testing::ExitedWithCode(2), "shared=.*/none: Not a dir|"
              "shared=.*/none: No such file");
}

}  // namespace
}  // namespace baton::emulation
