#include "deploy/cli/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/process/command_line.h"

namespace baton::cli {
namespace {

constexpr size_t kMaxLineBytes = 16 * 1024;
constexpr size_t kLastLines = 15;

// The part of a start between fork and exec: async-signal-safe calls only.
[[noreturn]] void BecomeProgram(char* const* argv, int output_fd, pid_t parent, bool is_router) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // The parent died before the request above was made.
  // Linux schedules sessions against each other ("autogroup"): in one with workers that compute,
  // the router would wait for their share of the cores with each answer, 100 ms and more.
  is_router ? (void)setsid() : (void)setpgid(0, 0);
  const int null_fd = open("/dev/null", O_RDONLY);
  if (null_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0 || dup2(output_fd, STDOUT_FILENO) < 0 ||
      dup2(output_fd, STDERR_FILENO) < 0) {
    _exit(127);
  }
  if (null_fd > STDERR_FILENO) close(null_fd);
  signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execv(argv[0], argv);
  constexpr char kMessage[] = "cannot be executed\n";
  (void)!write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  _exit(127);
}

}  // namespace

LogFile::LogFile(std::string path, bool keep, int64_t max_bytes)
    : path_(std::move(path)), max_bytes_(max_bytes) {
  Open(/*truncate=*/!keep);
}

LogFile::~LogFile() {
  if (fd_ >= 0) close(fd_);
}

void LogFile::Open(bool truncate) {
  fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (truncate ? O_TRUNC : 0),
             0644);
  bytes_ = fd_ < 0 ? 0 : lseek(fd_, 0, SEEK_END);
}

void LogFile::WriteLine(absl::string_view line) {
  if (bytes_ > max_bytes_ && fd_ >= 0) {
    close(fd_);
    std::rename(path_.c_str(), (path_ + ".1").c_str());
    Open(/*truncate=*/true);
  }
  const std::string text = absl::StrCat(line, "\n");
  const ssize_t written = fd_ < 0 ? -1 : write(fd_, text.data(), text.size());
  if (written > 0) bytes_ += written;
}

std::string DescribeWaitStatus(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    return absl::StrCat("killed by signal ", signal, " (", strsignal(signal), ")");
  }
  return absl::StrCat("exit code ", WEXITSTATUS(wait_status));
}

ChildProcess::ChildProcess(ProcessSpec spec, std::unique_ptr<LogFile> log, LineSink sink)
    : spec_(std::move(spec)), log_(std::move(log)), sink_(std::move(sink)) {}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(ProcessSpec spec,
                                                                  std::unique_ptr<LogFile> log,
                                                                  LineSink sink) {
  if (access(spec.program.c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(spec.program, ": ", strerror(errno),
                                            "; build it with `ninja -C build/release`"));
  }
  std::unique_ptr<ChildProcess> child(
      new ChildProcess(std::move(spec), std::move(log), std::move(sink)));
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("pipe: ", strerror(errno)));
  }
  std::vector<char*> argv;
  argv.push_back(const_cast<char*>(child->spec_.program.c_str()));
  for (const std::string& argument : child->spec_.arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) BecomeProgram(argv.data(), pipe_fds[1], parent, child->spec_.role == "router");
  close(pipe_fds[1]);
  child->output_fd_ = pipe_fds[0];
  if (pid < 0) return absl::ResourceExhaustedError(absl::StrCat("fork: ", strerror(errno)));
  fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK);
  child->running_ = true;
  child->identity_.pid = pid;
  if (absl::StatusOr<ProcessIdentity> id = IdentifyProcess(pid); id.ok()) child->identity_ = *id;
  return child;
}

// One that hangs in a driver ends when the driver lets it, if ever: it is left to init.
ChildProcess::~ChildProcess() {
  if (running_) {
    kill(identity_.pid, SIGKILL);
    for (int waits = 0; waits < 100 && waitpid(identity_.pid, nullptr, WNOHANG) == 0; ++waits) {
      poll(nullptr, 0, 10);
    }
  }
  if (output_fd_ >= 0) close(output_fd_);
}

void ChildProcess::TakeLine(absl::string_view line) {
  log_->WriteLine(line);
  last_lines_.emplace_back(line);
  if (last_lines_.size() > kLastLines) last_lines_.pop_front();
  if (sink_) sink_(spec_.name, line);
}

bool ChildProcess::Pump() {
  // At most 64 reads, so that a child that never stops writing cannot hold the supervisor.
  for (int reads = 0; output_fd_ >= 0 && reads < 64; ++reads) {
    char buffer[8192];
    const ssize_t n = read(output_fd_, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return true;
    if (n == 0) {
      close(output_fd_);
      output_fd_ = -1;
      if (!partial_.empty()) TakeLine(partial_);
      partial_.clear();
      return false;
    }
    partial_.append(buffer, static_cast<size_t>(n));
    size_t begin = 0;
    for (size_t end = 0; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      TakeLine(absl::string_view(partial_).substr(begin, end - begin));
    }
    partial_.erase(0, begin);
    if (partial_.size() > kMaxLineBytes) {
      TakeLine(partial_);
      partial_.clear();
    }
  }
  return output_fd_ >= 0;
}

bool ChildProcess::refused_to_start() const {
  return !running_ && WIFEXITED(exit_status_) && WEXITSTATUS(exit_status_) == kStartErrorExit &&
         !last_lines_.empty();
}

void ChildProcess::Reap() {
  if (!running_) return;
  int wait_status = 0;
  if (waitpid(identity_.pid, &wait_status, WNOHANG) != identity_.pid) return;
  running_ = false;
  exit_status_ = wait_status;
  how_it_ended_ = DescribeWaitStatus(wait_status);
  Pump();
}

void ChildProcess::Signal(int signal) {
  if (running_) kill(identity_.pid, signal);
}

}  // namespace baton::cli
