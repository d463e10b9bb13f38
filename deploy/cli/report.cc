#include "deploy/cli/report.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/process/command_line.h"
#include "deploy/cli/child_process.h"

namespace baton::cli {
namespace {

// The pipe from the detached supervisor carries lines; the first byte says what a line is.
constexpr char kProgressMark = 'P';
constexpr char kReadyMark = 'R';
constexpr char kFailedMark = 'F';
constexpr char kRefusedMark = 'X';

class ForegroundReport : public Report {
 public:
  void Progress(absl::string_view line) override { Print(absl::StrCat("[baton] ", line, "\n")); }

  void LogLine(const std::string& server, absl::string_view line) override {
    pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
    if (poll(&out, 1, 0) == 1 && (out.revents & POLLOUT) != 0) {
      Print(absl::StrCat("[", server, "] ", line, "\n"));
    }
  }

  void Ready(const std::string& text) override {
    Print(absl::StrCat(text, "Press Ctrl-C to drain and stop.\n"));
  }

  void Failed(const std::string& text) override { std::fprintf(stderr, "%s\n", text.c_str()); }
  void Refused(const std::string& line) override { Failed(line); }

 private:
  static void Print(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
};

class DetachedReport : public Report {
 public:
  DetachedReport(int pipe_fd, const std::string& log_path)
      : pipe_fd_(pipe_fd), log_(log_path, /*keep=*/true) {}
  ~DetachedReport() override { ClosePipe(); }

  void Progress(absl::string_view line) override {
    log_.WriteLine(line);
    Tell(kProgressMark, line);
  }
  void LogLine(const std::string&, absl::string_view) override {}  // In the server's own log file.
  void Ready(const std::string& text) override { End(kReadyMark, text); }
  void Failed(const std::string& text) override { End(kFailedMark, text); }
  void Refused(const std::string& line) override { End(kRefusedMark, line); }
  bool IsHeard() const override {
    if (pipe_fd_ < 0) return true;
    pollfd state{.fd = pipe_fd_, .events = 0, .revents = 0};
    return poll(&state, 1, 0) <= 0 || (state.revents & POLLERR) == 0;
  }

 private:
  void End(char mark, const std::string& text) {
    log_.WriteLine(text);
    Tell(mark, text);
    ClosePipe();
  }
  void Tell(char mark, absl::string_view text) {
    if (pipe_fd_ < 0) return;
    std::string message;
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      absl::StrAppend(&message, absl::string_view(&mark, 1), line, "\n");
    }
    (void)!write(pipe_fd_, message.data(), message.size());
  }
  void ClosePipe() {
    if (pipe_fd_ >= 0) close(pipe_fd_);
    pipe_fd_ = -1;
  }

  int pipe_fd_;
  LogFile log_;
};

// Prints the child's messages until the pipe closes; the exit code of `baton up --detach`.
int Relay(int pipe_fd) {
  FILE* in = fdopen(pipe_fd, "r");
  char end = 0;  // The mark of the last lines.
  char* line = nullptr;
  size_t capacity = 0;
  for (ssize_t n = 0; (n = getline(&line, &capacity, in)) > 0;) {
    if (line[0] != kProgressMark) end = line[0];
    FILE* out = line[0] == kFailedMark || line[0] == kRefusedMark ? stderr : stdout;
    std::fwrite(line + 1, 1, static_cast<size_t>(n) - 1, out);
    std::fflush(out);
  }
  free(line);
  fclose(in);
  if (end == 0) {
    std::fprintf(stderr, "baton up: the supervisor died while starting; see the logs\n");
  }
  return end == kReadyMark ? 0 : end == kRefusedMark ? kStartErrorExit : 1;
}

}  // namespace

std::unique_ptr<Report> MakeForegroundReport() { return std::make_unique<ForegroundReport>(); }

absl::StatusOr<DetachResult> Detach(const std::string& log_path) {
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("pipe: ", strerror(errno)));
  }
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid < 0) return absl::ResourceExhaustedError(absl::StrCat("fork: ", strerror(errno)));
  DetachResult result;
  if (pid > 0) {
    close(pipe_fds[1]);
    result.exit_code = Relay(pipe_fds[0]);
    return result;
  }
  close(pipe_fds[0]);
  setsid();
  signal(SIGPIPE, SIG_IGN);
  const int null_fd = open("/dev/null", O_RDWR);
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null_fd, fd);
  if (null_fd > STDERR_FILENO) close(null_fd);
  result.is_supervisor = true;
  result.report = std::make_unique<DetachedReport>(pipe_fds[1], log_path);
  return result;
}

}  // namespace baton::cli
