#include "common/process/lost_device.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(LostDeviceDeathTest, EndsWithItsOwnCodeAfterItsLastWords) {
  EXPECT_EXIT(EndForLostDevice([] { (void)!::write(STDERR_FILENO, "it is gone\n", 11); }),
              testing::ExitedWithCode(70), "it is gone");
}

TEST(LostDeviceTest, PeersSeeTheEndEvenIfTheProcessHangs) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto hang = [] {
      for (;;) ::pause();
    };
    EndForLostDevice(hang, /*seconds=*/1000);
  }
  ::close(fds[1]);
  pollfd wait{fds[0], POLLIN, 0};
  EXPECT_EQ(::poll(&wait, 1, 20000), 1);
  char byte = 0;
  EXPECT_EQ(::read(fds[0], &byte, 1), 0);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, WNOHANG), 0);  // It lives.
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  ::close(fds[0]);
}

// As where standard error is a full pipe that nobody reads; the program blocks the signal.
TEST(LostDeviceDeathTest, EndsWithItsOwnCodeIfItsLastWordsHang) {
  const auto end = [] {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
    const auto hang = [] {
      for (;;) ::pause();
    };
    EndForLostDevice(hang, /*seconds=*/1);
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(70), "");
}

TEST(LostDeviceTest, OfTwoThreadsOneSpeaks) {
  int words[2];
  ASSERT_EQ(::pipe(words), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto end = [&] {
      EndForLostDevice([&] {
        (void)!::write(words[1], "x", 1);
        ::usleep(50000);  // The other one has its chance.
      });
    };
    std::jthread other(end);
    end();
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 70);
  ::close(words[1]);
  char bytes[4];
  EXPECT_EQ(::read(words[0], bytes, sizeof(bytes)), 1);
  ::close(words[0]);
}

}  // namespace
}  // namespace baton
