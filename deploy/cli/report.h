#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::cli {

// Where the supervisor tells how the start goes and, in the foreground, what the servers log.
class Report {
 public:
  virtual ~Report() = default;
  // One step of the start, or something the operator should see later (a crashed child).
  virtual void Progress(absl::string_view line) = 0;
  // One line of a server's log.
  virtual void LogLine(const std::string& server, absl::string_view line) = 0;
  // The cluster serves; `text` says where. Called at most once.
  virtual void Ready(const std::string& text) = 0;
  // The start failed; `text` says why. Called at most once, and never after Ready.
  virtual void Failed(const std::string& text) = 0;
  // As Failed: what was asked for does not start, however often. One line.
  virtual void Refused(const std::string& line) = 0;
  // False when nobody waits for this start any more, so it should be abandoned.
  virtual bool IsHeard() const { return true; }
};

// Prints to the terminal, each server's line behind its name. A terminal that does not take the
// text (a stalled pager) loses log lines instead of holding up the cluster.
std::unique_ptr<Report> MakeForegroundReport();

// What the launching process learnt from a detached supervisor.
struct DetachResult {
  bool is_supervisor = false;      // This is the background process: run the supervisor.
  std::unique_ptr<Report> report;  // For the background process.
  int exit_code = 0;               // For the launching process, which is to end with it.
};

// Forks. The parent prints what the child reports and returns once the child is ready (exit code
// 0), has failed or died (1), or has refused (kStartErrorExit). The child has its own session and
// no terminal; what it reports after the start goes to `log_path`. A parent that is killed while it
// waits unsets IsHeard.
absl::StatusOr<DetachResult> Detach(const std::string& log_path);

}  // namespace baton::cli
