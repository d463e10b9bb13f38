#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "nlohmann/json.hpp"

namespace baton::cli {

// A process that cannot be confused with a later one of the same number: pid, start time in clock
// ticks since boot, and the boot it belongs to.
struct ProcessIdentity {
  pid_t pid = 0;
  int64_t start_ticks = 0;
  std::string boot_id;
  bool operator==(const ProcessIdentity&) const = default;
};

// NOT_FOUND when no such process runs (a zombie does not run).
absl::StatusOr<ProcessIdentity> IdentifyProcess(pid_t pid);

// True while exactly this process runs.
bool IsRunning(const ProcessIdentity& identity);

// Sends `signal` to exactly this process and waits for its end; true if it has ended.
bool SignalAndWait(const ProcessIdentity& identity, int signal, int limit_ms);

// One server of a cluster as `baton up` recorded it.
struct ServerRecord {
  std::string name;  // "router", "prefill-0", "decode-1": also the log file's stem.
  std::string role;  // "router", "prefill" or "decode".
  ProcessIdentity process;
  std::string address;       // gRPC host:port; kept by a restart, as all addresses are.
  std::vector<std::string> data_addresses;  // KV transport host:port of each rank; workers only.
  std::string http_url;      // Router only.
  std::string metrics_url;
  nlohmann::json incarnation;  // As the server wrote it; null until it is ready.
  std::string exited;          // How the process ended, or empty while it runs.
  bool given_up = false;       // It ended and is not started again.
  int restarts = 0;            // How often it was started again.
  int crashes = 0;             // In a row, see RestartPolicy.
  std::string last_exit;       // How the latest process that ended did, or why none could start.
  Time start_at = kNever;  // It has ended and is started again then, by the clock of SteadyNow().
};

// What RUN/state.json holds: who runs here. Written by the supervisor alone, whole or not at all.
struct RunState {
  ProcessIdentity supervisor;
  bool ready = false;     // A token has gone end to end.
  bool restarts = false;  // A server that ended is started again.
  std::string model;
  std::vector<ServerRecord> servers;

  const ServerRecord* Router() const;
};

nlohmann::json ToJson(const RunState& state);

// INVALID_ARGUMENT when `json` is not a state that ToJson writes.
absl::StatusOr<RunState> StateFromJson(const nlohmann::json& json);

// The folder of one cluster: state.json, lock, logs/, ready/. Holds no open files of its own.
class RunDir {
 public:
  explicit RunDir(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string LogFile(const std::string& name) const { return path_ + "/logs/" + name + ".log"; }
  std::string ReadyFile(const std::string& name) const {
    return path_ + "/ready/" + name + ".json";
  }

  // Makes the folders. The folder ignores itself in git, as it may stand in a checkout.
  absl::Status Create() const;

  // Takes the lock that says "a supervisor lives here", for as long as the process lives or the
  // returned descriptor is open. ALREADY_EXISTS while another holds it.
  absl::StatusOr<int> Lock() const;

  // Replaces state.json in one rename.
  absl::Status Save(const RunState& state) const;

  // NOT_FOUND without a state.json; INVALID_ARGUMENT when it is not one of ours.
  absl::StatusOr<RunState> Load() const;

  // Load() of a cluster whose supervisor runs; otherwise NOT_FOUND with cause and cure.
  absl::StatusOr<RunState> LoadRunning() const;

  void RemoveState() const;

 private:
  std::string path_;
};

}  // namespace baton::cli
