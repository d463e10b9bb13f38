// How soon the death of a process is noticed, and that life is not mistaken for death. The worker
// is another process: this program again, started with --serve.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "baton/v1/decode.grpc.pb.h"
#include "common/rpc/connection.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"
#include "common/rpc/worker_links.h"
#include "common/rpc/worker_server.h"
#include "tests/unit/common/rpc/eager_server.h"
#include "tests/unit/common/rpc/fake_inbox.h"
#include "tests/unit/common/rpc/wire_samples.h"

namespace baton {
namespace {

// Some ms by the closed socket, and 2 s by pings, on an idle machine. What is judged is by which of
// them: without the first a kill takes as long as a hang, without pings a hang is never noticed.
const absl::Duration kKillNoticed = absl::Milliseconds(1500);
const absl::Duration kHangNoticed = absl::Seconds(20);

WorkerServerOptions ServerOptions() {
  return {.hello = {.role = Role::kDecode,
                    .incarnation = 7,
                    .numerics_id = "test",
                    .block_size = 16,
                    .num_blocks = 100,
                    .max_model_len = kLimits.max_model_len,
                    .vocab_size = kLimits.vocab_size},
          .status = [] {
            WorkerStatus status;
            status.incarnation = 7;
            return status;
          }};
}

// Serves until killed; says its port on standard output.
int Serve() {
  FakeInbox<DecodeMail> inbox;
  EagerServer server(ServerOptions(), &inbox);
  if (!server.Start().ok()) return 1;
  std::printf("%d\n", server.port());
  std::fflush(stdout);
  for (;;) pause();
}

// Opens a Decode call to the worker at `address` and holds it until killed.
int HoldCall(const std::string& address) {
  FakeInbox<RouterMail> inbox;
  WorkerLinks links({.workers = {{Role::kDecode, address}}}, &inbox);
  links.Start();
  if (!inbox.Next<WorkerUp>().has_value()) return 1;
  DecodeRequest request = WireSamples(1).Decode();
  request.worker = 7;
  request.timeout = std::chrono::seconds(60);
  links.OpenDecode(1, 0, request);
  std::printf("0\n");
  std::fflush(stdout);
  for (;;) pause();
}

// This program as a child: it says a number on its standard output once it has begun.
class ChildProcess {
 public:
  explicit ChildProcess(std::string mode, std::string argument = "") {
    int out[2];
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::string self = "/proc/self/exe";
    char* argv[] = {self.data(), mode.data(), argument.data(), nullptr};
    EXPECT_EQ(posix_spawn(&pid_, self.c_str(), &actions, nullptr, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    FILE* in = fdopen(out[0], "r");
    EXPECT_EQ(std::fscanf(in, "%d", &port_), 1);
    std::fclose(in);
  }
  ~ChildProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  void Signal(int signal) { kill(pid_, signal); }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  pid_t pid_ = 0;
  int port_ = 0;
};

class LivenessTest : public ::testing::Test {
 protected:
  LivenessTest() : links_({.workers = {{Role::kDecode, worker_.address()}}}, &inbox_) {
    links_.Start();
    EXPECT_TRUE(inbox_.Next<WorkerUp>().has_value());
    DecodeRequest request = WireSamples(1).Decode();
    request.worker = 7;
    request.timeout = std::chrono::seconds(60);
    links_.OpenDecode(1, 0, request);
    // So that the call is on the wire.
    EXPECT_TRUE(inbox_.Next<WorkerStatusChanged>().has_value());
    EXPECT_TRUE(inbox_.Next<WorkerStatusChanged>().has_value());
  }

  ChildProcess worker_{"--serve"};
  FakeInbox<RouterMail> inbox_;
  WorkerLinks links_;
};

TEST_F(LivenessTest, AKilledWorkerIsDownAndItsCallsEndWithinTheBound) {
  worker_.Signal(SIGKILL);
  EXPECT_TRUE(inbox_.Next<WorkerDown>(kKillNoticed).has_value());
  const auto closed = inbox_.Next<CallClosed>(kKillNoticed);
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(LivenessTest, AStoppedWorkerIsDownAndItsCallsEndWithinTheBound) {
  worker_.Signal(SIGSTOP);
  EXPECT_TRUE(inbox_.Next<WorkerDown>(kHangNoticed).has_value());
  EXPECT_TRUE(inbox_.Next<CallClosed>(kHangNoticed).has_value());
}

TEST_F(LivenessTest, AStoppedWorkerThatWakesIsUpAgain) {
  worker_.Signal(SIGSTOP);
  ASSERT_TRUE(inbox_.Next<WorkerDown>().has_value());
  worker_.Signal(SIGCONT);
  EXPECT_TRUE(inbox_.Next<WorkerUp>().has_value());
}

TEST(RouterLivenessTest, AStoppedRoutersCallsBreakWithinTheBound) {
  FakeInbox<DecodeMail> inbox;
  EagerServer server(ServerOptions(), &inbox);
  ASSERT_TRUE(server.Start().ok());
  ChildProcess router("--hold-call", absl::StrCat("127.0.0.1:", server.port()));
  ASSERT_TRUE(inbox.Next<DecodeOpened>().has_value());
  router.Signal(SIGSTOP);
  EXPECT_TRUE(inbox.Next<CallBroken>(kHangNoticed).has_value());
}

TEST(RouterLivenessTest, AKilledRoutersCallsBreakWithinTheBound) {
  FakeInbox<DecodeMail> inbox;
  EagerServer server(ServerOptions(), &inbox);
  ASSERT_TRUE(server.Start().ok());
  ChildProcess router("--hold-call", absl::StrCat("127.0.0.1:", server.port()));
  ASSERT_TRUE(inbox.Next<DecodeOpened>().has_value());
  router.Signal(SIGKILL);
  EXPECT_TRUE(inbox.Next<CallBroken>(kKillNoticed).has_value());
}

// Without data, only the pings keep the connection busy: one each second on both sides. A server
// that counted them as abuse would answer too_many_pings.
TEST(KeepaliveTest, AnIdleStreamOutlivesMoreThanTenPings) {
  FakeInbox<DecodeMail> inbox;
  EagerServer server(ServerOptions(), &inbox);
  ASSERT_TRUE(server.Start().ok());
  auto stub = v1::Decode::NewStub(
      grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server.port()),
                                grpc::InsecureChannelCredentials(), ClusterChannelArguments()));
  grpc::ClientContext context;
  v1::DecodeRequest request;
  ToProto(WireSamples(1).Decode(), &request);
  request.set_timeout_us(60'000'000);
  request.set_expected_incarnation(7);
  Seal(&request);
  auto reader = stub->Decode(&context, request);
  const auto opened = inbox.Next<DecodeOpened>();
  ASSERT_TRUE(opened.has_value());
  // The wait is the subject here: 12 seconds are 12 pings.
  EXPECT_FALSE(inbox.Next<CallBroken>(absl::Seconds(12)).has_value());
  server.Close(opened->call, absl::OkStatus());
  v1::DecodeEvent event;
  while (reader->Read(&event)) EXPECT_TRUE(event.has_alive());
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  const std::string mode = argc == 3 ? argv[1] : "";
  if (mode == "--serve") return baton::Serve();
  if (mode == "--hold-call") return baton::HoldCall(argv[2]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
