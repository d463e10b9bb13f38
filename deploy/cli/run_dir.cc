#include "deploy/cli/run_dir.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "deploy/cli/json_fields.h"
#include "deploy/cli/machine.h"

namespace baton::cli {
namespace {

using nlohmann::json;

json IdentityJson(const ProcessIdentity& id) {
  return {{"pid", id.pid}, {"start_ticks", id.start_ticks}, {"boot_id", id.boot_id}};
}

int64_t IntegerOr(const json& object, const char* key, int64_t fallback) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_integer() ? it->get<int64_t>() : fallback;
}

absl::StatusOr<ProcessIdentity> IdentityFromJson(const json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_object() || !it->contains("pid") ||
      !(*it)["pid"].is_number_integer() || !it->contains("start_ticks") ||
      !(*it)["start_ticks"].is_number_integer()) {
    return absl::InvalidArgumentError(absl::StrCat("state.json: ", key, " has no pid"));
  }
  ProcessIdentity identity;
  identity.pid = (*it)["pid"].get<pid_t>();
  identity.start_ticks = (*it)["start_ticks"].get<int64_t>();
  identity.boot_id = StringOr(*it, "boot_id");
  return identity;
}

std::string BootId() {
  return std::string(
      absl::StripAsciiWhitespace(ReadSmallFile("/proc/sys/kernel/random/boot_id", 64)));
}

}  // namespace

absl::StatusOr<ProcessIdentity> IdentifyProcess(pid_t pid) {
  const std::string stat = ReadSmallFile(absl::StrCat("/proc/", pid, "/stat"), 4096);
  // The second field is the program's name in parentheses and may itself hold spaces and ")".
  const size_t end = stat.rfind(") ");
  const std::vector<absl::string_view> fields =
      end == std::string::npos ? std::vector<absl::string_view>()
                               : absl::StrSplit(absl::string_view(stat).substr(end + 2), ' ');
  ProcessIdentity identity{.pid = pid, .boot_id = BootId()};
  // Field 3 (state) is fields[0], so field 22 (start time) is fields[19].
  if (fields.size() < 20 || fields[0] == "Z" || fields[0] == "X" ||
      !absl::SimpleAtoi(fields[19], &identity.start_ticks)) {
    return absl::NotFoundError(absl::StrCat("no process ", pid));
  }
  return identity;
}

bool IsRunning(const ProcessIdentity& identity) {
  if (identity.pid <= 0) return false;
  const absl::StatusOr<ProcessIdentity> now = IdentifyProcess(identity.pid);
  return now.ok() && *now == identity;
}

bool SignalAndWait(const ProcessIdentity& identity, int signal, int limit_ms) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, identity.pid, 0));
  if (fd < 0) return !IsRunning(identity);
  // The descriptor names one process; what runs under the number was checked after it was opened.
  bool ended = !IsRunning(identity);
  if (!ended) {
    syscall(SYS_pidfd_send_signal, fd, signal, nullptr, 0);
    pollfd state{.fd = fd, .events = POLLIN, .revents = 0};
    ended = poll(&state, 1, limit_ms) == 1;
  }
  close(fd);
  return ended;
}

const ServerRecord* RunState::Router() const {
  for (const ServerRecord& server : servers) {
    if (server.role == "router") return &server;
  }
  return nullptr;
}

json ToJson(const RunState& state) {
  json servers = json::array();
  for (const ServerRecord& s : state.servers) {
    servers.push_back({{"name", s.name},
                       {"role", s.role},
                       {"process", IdentityJson(s.process)},
                       {"address", s.address},
                       {"data_addresses", s.data_addresses},
                       {"http_url", s.http_url},
                       {"metrics_url", s.metrics_url},
                       {"incarnation", s.incarnation},
                       {"exited", s.exited},
                       {"given_up", s.given_up},
                       {"restarts", s.restarts},
                       {"crashes", s.crashes},
                       {"last_exit", s.last_exit},
                       {"start_at_ns", s.start_at.time_since_epoch().count()}});
  }
  return {{"version", 1},         {"supervisor", IdentityJson(state.supervisor)},
          {"ready", state.ready}, {"restarts", state.restarts},
          {"model", state.model}, {"servers", std::move(servers)}};
}

absl::StatusOr<RunState> StateFromJson(const json& object) {
  if (!object.is_object() || object.value("version", json()) != json(1)) {
    return absl::InvalidArgumentError("state.json: not a state of this version of baton");
  }
  RunState state;
  ASSIGN_OR_RETURN(state.supervisor, IdentityFromJson(object, "supervisor"));
  state.ready = object.value("ready", json(false)) == json(true);
  state.restarts = object.value("restarts", json(false)) == json(true);
  state.model = StringOr(object, "model");
  for (const json& entry : object.value("servers", json::array())) {
    if (!entry.is_object()) return absl::InvalidArgumentError("state.json: bad entry in servers");
    ServerRecord server;
    ASSIGN_OR_RETURN(server.process, IdentityFromJson(entry, "process"));
    server.name = StringOr(entry, "name");
    server.role = StringOr(entry, "role");
    server.address = StringOr(entry, "address");
    server.data_addresses = StringsOf(entry, "data_addresses");
    server.http_url = StringOr(entry, "http_url");
    server.metrics_url = StringOr(entry, "metrics_url");
    server.exited = StringOr(entry, "exited");
    server.given_up = entry.value("given_up", json(false)) == json(true);
    server.restarts = static_cast<int>(IntegerOr(entry, "restarts", 0));
    server.crashes = static_cast<int>(IntegerOr(entry, "crashes", 0));
    server.last_exit = StringOr(entry, "last_exit");
    server.start_at =
        Time(Duration(IntegerOr(entry, "start_at_ns", kNever.time_since_epoch().count())));
    server.incarnation = entry.value("incarnation", json());
    state.servers.push_back(std::move(server));
  }
  return state;
}

absl::Status RunDir::Create() const {
  std::error_code error;
  for (const char* folder : {"/logs", "/ready"}) {
    std::filesystem::create_directories(path_ + folder, error);
    if (error) {
      return absl::PermissionDeniedError(absl::StrCat("cannot make ", path_, folder, ": ",
                                                      error.message(),
                                                      "; choose another folder with --dir"));
    }
  }
  std::ofstream(path_ + "/.gitignore") << "*\n";
  return absl::OkStatus();
}

absl::StatusOr<int> RunDir::Lock() const {
  const std::string file = path_ + "/lock";
  const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("cannot open ", file, ": ", strerror(errno), "; check --dir"));
  }
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  close(fd);
  const absl::StatusOr<RunState> state = Load();
  return absl::AlreadyExistsError(
      absl::StrCat("a cluster is already running in ", path_,
                   state.ok() ? absl::StrCat(" (supervisor pid ", state->supervisor.pid, ")") : "",
                   "; stop it with `baton down --dir ", path_, "` or give another --dir"));
}

absl::Status RunDir::Save(const RunState& state) const {
  const std::string file = path_ + "/state.json";
  const std::string fresh = file + ".new";
  {
    std::ofstream out(fresh, std::ios::trunc);
    out << ToJson(state).dump(2) << "\n";
    out.flush();
    if (!out) return absl::UnavailableError(absl::StrCat("cannot write ", fresh));
  }
  if (std::rename(fresh.c_str(), file.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot rename ", fresh, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<RunState> RunDir::Load() const {
  const std::string file = path_ + "/state.json";
  if (access(file.c_str(), F_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("no cluster is running in ", path_,
                                            "; start one with `baton up --dir ", path_,
                                            "` or name its folder with --dir"));
  }
  return StateFromJson(json::parse(ReadSmallFile(file), nullptr, /*allow_exceptions=*/false));
}

absl::StatusOr<RunState> RunDir::LoadRunning() const {
  ASSIGN_OR_RETURN(RunState state, Load());
  if (!IsRunning(state.supervisor)) {
    return absl::NotFoundError(absl::StrCat(
        "the cluster in ", path_, " is gone (its supervisor, pid ", state.supervisor.pid,
        ", no longer runs); start a new one with `baton up --dir ", path_, "`"));
  }
  return state;
}

void RunDir::RemoveState() const { unlink((path_ + "/state.json").c_str()); }

}  // namespace baton::cli
