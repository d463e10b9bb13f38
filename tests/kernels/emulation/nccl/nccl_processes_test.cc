// Pairs of real processes over the emulated NCCL.

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/api/device.h"

namespace baton::emulation::nccl {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A process of nccl_rank.cc.
class RankProcess {
 public:
  explicit RankProcess(const std::string& options) {
    int in[2];
    int out[2];
    EXPECT_EQ(pipe2(in, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    setenv("BATON_EMULATED_NCCL", options.c_str(), 1);
    char program[] = BATON_NCCL_RANK;
    char* const argv[] = {program, nullptr};
    EXPECT_EQ(posix_spawn(&pid_, program, &actions, nullptr, argv, environ), 0);
    unsetenv("BATON_EMULATED_NCCL");
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    to_ = in[1];
    from_ = fdopen(out[0], "r");
  }

  ~RankProcess() {
    if (pid_ != 0) kill(pid_, SIGKILL);
    Await();
    close(to_);
    fclose(from_);
  }

  void Tell(const std::string& line) {
    const std::string text = line + "\n";
    // One that was killed does not read it.
    (void)!write(to_, text.data(), text.size());
  }

  // The next answer; empty: it is dead.
  std::string Hear() {
    char line[1024];
    if (fgets(line, sizeof(line), from_) == nullptr) return "";
    return std::string(line).substr(0, std::string(line).find('\n'));
  }

  std::string Ask(const std::string& line) {
    Tell(line);
    return Hear();
  }

  void AwaitStop() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  void Continue() { kill(pid_, SIGCONT); }

  // How it ended: the signal, or 0.
  int Await() {
    int status = 0;
    if (pid_ != 0) waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }

 private:
  pid_t pid_ = 0;
  int to_ = -1;
  FILE* from_ = nullptr;
};

// A thread that was joined may be counted a moment longer.
void ExpectLeft(RankProcess& rank, const std::string& left) {
  const absl::Status status = WaitUntil("the end of threads", std::chrono::seconds(60),
                                        [&] { return rank.Ask("left") == left; });
  EXPECT_TRUE(status.ok()) << rank.Ask("left") << ", expected " << left;
}

class NcclProcessesTest : public testing::Test {
 protected:
  NcclProcessesTest() { signal(SIGPIPE, SIG_IGN); }

  // Both begin; rank 0 has the id, as the receiving side has.
  static void Init(RankProcess& receiver, RankProcess& sender) {
    const std::string id = receiver.Ask("id");
    EXPECT_EQ(receiver.Ask("init " + id + " 0"), "ok");
    EXPECT_EQ(sender.Ask("init " + id + " 1"), "ok");
  }

  // The connection is made at the first calls of both: by a byte that goes the other way, so that
  // what is to happen to a sender or a receiver waits for the test's own bytes.
  static void Connect(RankProcess& receiver, RankProcess& sender) {
    Init(receiver, sender);
    EXPECT_EQ(receiver.Ask("ready"), "ready");
    EXPECT_EQ(sender.Ask("ready"), "ready");
    sender.Tell("receive 1 1");
    receiver.Tell("send 1 1");
    for (RankProcess* rank : {&receiver, &sender}) {
      EXPECT_EQ(rank->Hear(), "ok");
      EXPECT_EQ(rank->Ask("done"), "right");
    }
  }
};

TEST_F(NcclProcessesTest, BytesArriveInOrderWhateverTheSeed) {
  for (int seed = 1; seed <= 8; ++seed) {
    const std::string options = "delay_us=2000 seed=" + std::to_string(seed);
    RankProcess receiver(options);
    RankProcess sender(options);
    Connect(receiver, sender);
    for (int i = 0; i < 4; ++i) {
      const std::string bytes = std::to_string(1 + i * 70000) + " " + std::to_string(i);
      receiver.Tell("receive " + bytes);
      sender.Tell("send " + bytes);
      EXPECT_EQ(receiver.Hear(), "ok");
      EXPECT_EQ(sender.Hear(), "ok");
      EXPECT_EQ(receiver.Ask("done"), "right");
      EXPECT_EQ(sender.Ask("done"), "right");
    }
  }
}

TEST_F(NcclProcessesTest, NothingIsLeftAfterAbort) {
  RankProcess receiver("");
  RankProcess sender("");
  const std::string left = receiver.Ask("left");
  for (int i = 0; i < 3; ++i) {
    Connect(receiver, sender);
    EXPECT_EQ(receiver.Ask("receive 100 1"), "ok");
    EXPECT_EQ(receiver.Ask("abort"), "ok");
    EXPECT_EQ(sender.Ask("abort"), "ok");
    ExpectLeft(receiver, left);
    ExpectLeft(sender, left);
  }
}

// Whoever dies at whatever moment, the other one hears of it or has what it asked for, can abort,
// and keeps nothing.
void KillAt(const std::string& moment, bool kills_sender) {
  SCOPED_TRACE(moment + (kills_sender ? " of the sender" : " of the receiver"));
  RankProcess receiver(kills_sender ? "" : "kill=" + moment);
  RankProcess sender(kills_sender ? "kill=" + moment : "");
  RankProcess& victim = kills_sender ? sender : receiver;
  RankProcess& other = kills_sender ? receiver : sender;
  const std::string left = other.Ask("left");
  const std::string id = receiver.Ask("id");
  if (moment == "id") {
    EXPECT_EQ(id, "");
    EXPECT_EQ(victim.Await(), SIGKILL);
    return;
  }
  victim.Tell("init " + id + (kills_sender ? " 1" : " 0"));
  for (const char* line : {"ready", kills_sender ? "send 300000 5" : "receive 300000 5", "done",
                           "abort"}) {
    victim.Tell(line);
  }
  other.Tell("init " + id + (kills_sender ? " 0" : " 1"));
  EXPECT_EQ(other.Hear(), "ok");
  std::string heard = other.Ask("ready");
  if (heard == "ready") heard = other.Ask(kills_sender ? "receive 300000 5" : "send 300000 5");
  if (heard == "ok") heard = other.Ask("done");
  EXPECT_TRUE(heard == "right" || absl::StartsWith(heard, "UNAVAILABLE")) << heard;
  EXPECT_EQ(victim.Await(), SIGKILL);
  EXPECT_EQ(other.Ask("abort"), "ok");
  ExpectLeft(other, left);
}

TEST_F(NcclProcessesTest, ReceiverThatIsKilledAtAnyMomentIsHeardOf) {
  for (const char* moment : {"id", "ready", "receive", "landed", "taken", "abort"}) {
    KillAt(moment, /*kills_sender=*/false);
  }
}

TEST_F(NcclProcessesTest, SenderThatIsKilledOnceThereIsAPairIsHeardOf) {
  for (const char* moment : {"ready", "send", "sending", "abort"}) {
    KillAt(moment, /*kills_sender=*/true);
  }
}

// Nobody can tell a peer that died before it came from one that has not come yet.
TEST_F(NcclProcessesTest, WhoWaitsForOneThatDiedOnItsWayCanAbort) {
  for (const char* moment : {"connect", "init"}) {
    RankProcess receiver("");
    RankProcess sender(std::string("kill=") + moment);
    const std::string left = receiver.Ask("left");
    const std::string id = receiver.Ask("id");
    EXPECT_EQ(receiver.Ask("init " + id + " 0"), "ok");
    sender.Tell("init " + id + " 1");
    EXPECT_EQ(sender.Await(), SIGKILL);
    EXPECT_EQ(receiver.Ask("abort"), "ok");
    ExpectLeft(receiver, left);
  }
}

TEST_F(NcclProcessesTest, IdOfADeadProcessIsAnError) {
  RankProcess sender("");
  std::string id;
  {
    RankProcess receiver("");
    id = receiver.Ask("id");
  }
  EXPECT_EQ(sender.Ask("init " + id + " 1"), "ok");
  EXPECT_THAT(sender.Ask("ready"), HasSubstr("the process of the id is gone"));
  EXPECT_EQ(sender.Ask("abort"), "ok");
}

TEST_F(NcclProcessesTest, SilentDeathIsNotHeardOfAndAbortEndsTheWork) {
  RankProcess receiver("silent=1");
  RankProcess sender("kill=send");
  const std::string left = receiver.Ask("left");
  Connect(receiver, sender);
  EXPECT_EQ(receiver.Ask("receive 100 1"), "ok");
  sender.Tell("send 100 1");
  EXPECT_EQ(sender.Await(), SIGKILL);
  EXPECT_EQ(receiver.Ask("ready"), "ready");
  EXPECT_EQ(receiver.Ask("abort"), "ok");
  ExpectLeft(receiver, left);
}

TEST_F(NcclProcessesTest, StoppedPeerIsNoErrorAndGoesOn) {
  RankProcess receiver("");
  RankProcess sender("stop=sending");
  Connect(receiver, sender);
  EXPECT_EQ(receiver.Ask("receive 300000 1"), "ok");
  sender.Tell("send 300000 1");
  sender.Tell("done");
  sender.AwaitStop();
  EXPECT_EQ(receiver.Ask("ready"), "ready");
  sender.Continue();
  EXPECT_EQ(sender.Hear(), "ok");
  EXPECT_EQ(sender.Hear(), "right");
  EXPECT_EQ(receiver.Ask("done"), "right");
}

TEST_F(NcclProcessesTest, DifferentVersionsAreRefusedByBoth) {
  RankProcess receiver("version=21800");
  RankProcess sender("version=22304");
  Init(receiver, sender);
  for (RankProcess* rank : {&receiver, &sender}) {
    EXPECT_THAT(rank->Ask("ready"), AllOf(HasSubstr("21800"), HasSubstr("22304")));
  }
}

TEST_F(NcclProcessesTest, TwoOfOneRankAreRefused) {
  RankProcess receiver("");
  RankProcess sender("");
  const std::string id = receiver.Ask("id");
  EXPECT_EQ(receiver.Ask("init " + id + " 0"), "ok");
  EXPECT_EQ(sender.Ask("init " + id + " 0"), "ok");
  EXPECT_THAT(receiver.Ask("ready"), HasSubstr("two ranks 0"));
  EXPECT_THAT(sender.Ask("ready"), HasSubstr("two ranks 0"));
}

TEST_F(NcclProcessesTest, CutConnectionIsHeardOfByBoth) {
  RankProcess receiver("cut=2");  // Behind that of Connect.
  RankProcess sender("");
  Connect(receiver, sender);
  receiver.Ask("receive 100 1");
  EXPECT_THAT(receiver.Ask("done"), HasSubstr("has closed the connection"));
  sender.Ask("send 100 1");
  EXPECT_THAT(sender.Ask("done"), HasSubstr("has closed the connection"));
}

TEST_F(NcclProcessesTest, FaultsOfBytesAreDoneToTheAskedWorkOnly) {
  RankProcess receiver("spoil=3");
  RankProcess sender("");
  Connect(receiver, sender);
  for (const char* expected : {"right", "wrong", "right"}) {
    receiver.Tell("receive 1000 1");
    sender.Tell("send 1000 1");
    EXPECT_EQ(receiver.Hear(), "ok");
    EXPECT_EQ(sender.Hear(), "ok");
    EXPECT_EQ(receiver.Ask("done"), expected);
    EXPECT_EQ(sender.Ask("done"), "right");
  }
}

TEST_F(NcclProcessesTest, DifferentSizesFailWithBothCalls) {
  RankProcess receiver("");
  RankProcess sender("");
  Connect(receiver, sender);
  EXPECT_EQ(receiver.Ask("receive 64 1"), "ok");
  sender.Tell("send 32 1");
  sender.Hear();
  for (RankProcess* rank : {&receiver, &sender}) {
    EXPECT_THAT(rank->Ask("done"), AllOf(HasSubstr("rank 1's ncclSend of 32 bytes"),
                                         HasSubstr("rank 0's ncclRecv of 64 bytes")));
  }
}

TEST_F(NcclProcessesTest, RanksThatBothSendOrBothReceiveFailWithBothCalls) {
  for (const std::string verb : {"send", "receive"}) {
    RankProcess receiver("");
    RankProcess sender("");
    Connect(receiver, sender);
    receiver.Tell(verb + " 64 1");
    sender.Tell(verb + " 32 1");
    receiver.Hear();
    sender.Hear();
    const std::string call = verb == "send" ? "ncclSend" : "ncclRecv";
    for (RankProcess* rank : {&receiver, &sender}) {
      EXPECT_THAT(rank->Ask("done"), AllOf(HasSubstr("rank 0's " + call + " of 64 bytes"),
                                           HasSubstr("rank 1's " + call + " of 32 bytes")));
    }
  }
}

}  // namespace
}  // namespace baton::emulation::nccl
