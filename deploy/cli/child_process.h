#pragma once

#include <sys/types.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "deploy/cli/run_dir.h"

namespace baton::cli {

struct ProcessSpec {
  std::string name;                    // Log prefix and log file stem.
  std::string role;                    // "router", "prefill" or "decode".
  std::string program;                 // Path of the executable.
  std::vector<std::string> arguments;  // Without argv[0].
};

// A log file that is turned over to FILE.1 at `max_bytes`. A full disk drops lines.
class LogFile {
 public:
  // Starts the file anew, or goes on at its end with `keep`.
  explicit LogFile(std::string path, bool keep = false, int64_t max_bytes = int64_t{64} << 20);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  void WriteLine(absl::string_view line);

 private:
  void Open(bool truncate);

  const std::string path_;
  const int64_t max_bytes_;
  int fd_ = -1;
  int64_t bytes_ = 0;
};

// One child of the supervisor: the process, the pipe that carries its stdout and stderr, and the
// last lines of it. The child dies with the thread that started it (PR_SET_PDEATHSIG), sits in a
// process group of its own (the router in a session) so that a Ctrl-C on the terminal reaches the
// supervisor alone, and starts with no inherited descriptor but stdin (/dev/null), stdout and
// stderr.
class ChildProcess {
 public:
  using LineSink = std::function<void(const std::string& name, absl::string_view line)>;

  // Starts `spec`. `sink` sees each line after it was written to the log.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(ProcessSpec spec,
                                                             std::unique_ptr<LogFile> log,
                                                             LineSink sink);
  // Kills what still runs, and waits a second for its end: nobody else would.
  ~ChildProcess();

  // Reads what is in the pipe, without waiting. False once the pipe is at its end.
  bool Pump();

  // Collects the exit status if the process ended, without waiting, and reads its last output.
  void Reap();

  void Signal(int signal);

  const ProcessSpec& spec() const { return spec_; }
  const ProcessIdentity& identity() const { return identity_; }
  int output_fd() const { return output_fd_; }
  bool running() const { return running_; }
  // "exit code 3", "killed by signal 9 (Killed)"; empty while it runs.
  const std::string& how_it_ended() const { return how_it_ended_; }
  bool ended_cleanly() const { return !running_ && exit_status_ == 0; }
  // What to change it has said in its last line.
  bool refused_to_start() const;
  const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  ChildProcess(ProcessSpec spec, std::unique_ptr<LogFile> log, LineSink sink);
  void TakeLine(absl::string_view line);

  const ProcessSpec spec_;
  const std::unique_ptr<LogFile> log_;
  LineSink sink_;
  ProcessIdentity identity_;
  int output_fd_ = -1;
  bool running_ = false;
  int exit_status_ = 0;
  std::string how_it_ended_;
  std::string partial_;  // The line that has no end yet.
  std::deque<std::string> last_lines_;
};

// "exit code 1" or "killed by signal 9 (Killed)" for a wait status.
std::string DescribeWaitStatus(int wait_status);

}  // namespace baton::cli
