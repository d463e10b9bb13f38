#include "deploy/cli/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/process/command_line.h"
#include "deploy/cli/http_client.h"
#include "deploy/cli/machine.h"

namespace baton::cli {
namespace {

constexpr Duration kDrainLimit = std::chrono::seconds(10);  // Per stage: router, then workers.
constexpr Duration kKillLimit = std::chrono::seconds(5);    // SIGKILL to the end of a process.
constexpr Duration kPollInterval = std::chrono::milliseconds(50);
constexpr Duration kReadyProbeLimit = std::chrono::seconds(2);

int OpenSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
}

// How a child ended and what it said last, for people.
std::string Obituary(const ChildProcess& child, const std::string& log) {
  std::string text = absl::StrCat(child.spec().name, " (pid ", child.identity().pid,
                                  ") ended: ", child.how_it_ended());
  if (child.last_lines().empty()) return absl::StrCat(text, ", without a word");
  return absl::StrCat(text, "; its last lines (all of them in ", log, "):\n    ",
                      absl::StrJoin(child.last_lines(), "\n    "));
}

// What a child said last, in one line, if it refused to start.
std::string Refusal(const ChildProcess& child, const UpOptions& options, const std::string& log) {
  absl::string_view said = child.last_lines().back();
  absl::ConsumePrefix(&said,
                      absl::StrCat(std::filesystem::path(child.spec().program).filename().string(),
                                   ": "));
  std::string text = absl::StrCat(child.spec().name, ": ", said);
  if (absl::StrContains(said, "--gpu-memory-fraction")) {
    absl::StrAppend(&text, " (the ", options.prefill + options.decode,
                    " workers have equal shares of --gpu-memory-fraction ",
                    options.gpu_memory_fraction, ")");
  }
  return absl::StrCat(text, "; see ", log);
}

}  // namespace

Supervisor::Supervisor(UpOptions options, RunDir dir, Report& report)
    : options_(std::move(options)),
      dir_(std::move(dir)),
      bin_(ProgramFolder()),
      report_(report),
      signal_fd_(OpenSignals()) {
  state_.model = options_.model;
  state_.restarts = options_.restart;
  if (absl::StatusOr<ProcessIdentity> self = IdentifyProcess(getpid()); self.ok()) {
    state_.supervisor = *self;
  }
}

Supervisor::~Supervisor() {
  if (signal_fd_ >= 0) close(signal_fd_);
}

int Supervisor::Run() {
  const Time begin = SteadyNow();
  SaveState();
  const absl::Status started = Start();
  if (!started.ok()) {
    Stop();
    const std::string text = absl::StrCat("baton up: ", started.message());
    const bool refused = absl::IsFailedPrecondition(started);
    refused ? report_.Refused(text) : report_.Failed(text);
    return refused ? kStartErrorExit : 1;
  }
  started_ = true;
  state_.ready = true;
  SaveState();
  report_.Ready(ReadyText(SteadyNow() - begin));
  while (stop_signals_ == 0 && AnyAlive()) {
    Pump(TimeToTend());
    if (stop_signals_ == 0) TendServers();
  }
  const bool was_asked = stop_signals_ > 0;
  if (!was_asked) report_.Progress("no server is left; the supervisor ends");
  Stop();
  return was_asked ? 0 : 1;
}

absl::Status Supervisor::Start() {
  RETURN_IF_ERROR(StartWorkers());
  RETURN_IF_ERROR(StartRouter());
  return AwaitFirstToken();
}

absl::Status Supervisor::StartWorkers() {
  const std::vector<ProcessSpec> specs =
      PlanWorkers(options_, bin_, dir_, ReadMachineShare().cores());
  report_.Progress(absl::StrFormat("starting %d prefill and %d decode workers on %s",
                                   options_.prefill, options_.decode, options_.model));
  for (const ProcessSpec& spec : specs) RETURN_IF_ERROR(Spawn(spec));
  for (size_t i = 0; i < specs.size(); ++i) RETURN_IF_ERROR(AwaitReadyFile(i));
  return absl::OkStatus();
}

absl::Status Supervisor::StartRouter() {
  report_.Progress("starting the router");
  RETURN_IF_ERROR(Spawn(PlanRouter(options_, bin_, dir_, state_.servers)));
  return AwaitReadyFile(servers_.size() - 1);
}

absl::Status Supervisor::AwaitFirstToken() {
  report_.Progress("waiting for the first token end to end");
  const HttpRequest probe{
      .url = state_.Router()->http_url, .target = "/ready", .idle_timeout = kReadyProbeLimit};
  std::string last = "no answer";
  const auto is_ready = [&] {
    const absl::StatusOr<HttpResult> answer = HttpCall(probe);
    if (answer.ok() && answer->code == 200) return true;
    last = answer.ok() ? ErrorMessageOf(*answer) : std::string(answer.status().message());
    return false;
  };
  const Time deadline = SteadyNow() + std::chrono::seconds(options_.start_timeout_s);
  const absl::Status status = PumpUntil(is_ready, deadline);
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(absl::StrCat(
        "no token came end to end within ", options_.start_timeout_s, " s (/ready says: ", last,
        "); see ", dir_.path(), "/logs, or raise --start-timeout-s"));
  }
  return status;
}

absl::Status Supervisor::Spawn(const ProcessSpec& spec) {
  ASSIGN_OR_RETURN(std::unique_ptr<ChildProcess> child, Launch(spec, /*keep_log=*/false));
  state_.servers.push_back({.name = spec.name, .role = spec.role, .process = child->identity()});
  servers_.push_back({.process = std::move(child)});
  SaveState();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ChildProcess>> Supervisor::Launch(const ProcessSpec& spec,
                                                                 bool keep_log) {
  unlink(dir_.ReadyFile(spec.name).c_str());
  return ChildProcess::Start(
      spec, std::make_unique<LogFile>(dir_.LogFile(spec.name), keep_log),
      [this](const std::string& name, absl::string_view line) { report_.LogLine(name, line); });
}

absl::Status Supervisor::AwaitReadyFile(size_t i) {
  const ServerRecord& record = state_.servers[i];
  absl::StatusOr<ReadyFile> ready = absl::UnavailableError("");
  const std::string path = dir_.ReadyFile(record.name);
  const Time deadline = SteadyNow() + std::chrono::seconds(options_.start_timeout_s);
  const absl::Status status =
      PumpUntil([&] { return (ready = ReadReadyFile(path)).ok(); }, deadline);
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(
        absl::StrCat(record.name, " was not ready within ", options_.start_timeout_s, " s; see ",
                     dir_.LogFile(record.name), ", or raise --start-timeout-s"));
  }
  RETURN_IF_ERROR(status);
  TakeReadyFile(i, *ready);
  return absl::OkStatus();
}

void Supervisor::TakeReadyFile(size_t i, const ReadyFile& ready) {
  ServerRecord& record = state_.servers[i];
  record.address = ready.address;
  record.data_addresses = ready.data_addresses;
  record.http_url = ready.http_url;
  record.metrics_url = ready.metrics_url;
  record.incarnation = ready.incarnation;
  servers_[i].policy.OnReady(SteadyNow());
  SaveState();
}

Duration Supervisor::TimeToTend() const {
  Duration wait = std::chrono::hours(1);
  for (const Server& server : servers_) {
    if (server.start_at != kNever) wait = std::min<Duration>(wait, server.start_at - SteadyNow());
    if (server.ready_by != kNever) wait = std::min<Duration>(wait, kPollInterval);
  }
  return std::max(wait, Duration::zero());
}

void Supervisor::TendServers() {
  for (size_t i = 0; i < servers_.size(); ++i) {
    if (SteadyNow() >= servers_[i].start_at) StartAgain(i);
    if (servers_[i].ready_by != kNever) LookAtLoading(i);
  }
}

void Supervisor::StartAgain(size_t i) {
  Server& server = servers_[i];
  ServerRecord& record = state_.servers[i];
  server.start_at = kNever;
  record.start_at = kNever;
  const ProcessSpec spec = WithPortsOf(record, server.process->spec());
  absl::StatusOr<std::unique_ptr<ChildProcess>> child = Launch(spec, /*keep_log=*/true);
  if (!child.ok()) {
    record.last_exit = absl::StrCat("cannot be started: ", child.status().message());
    PlanRestart(i, /*cleanly=*/false, absl::StrCat(spec.name, " ", record.last_exit));
    return SaveState();
  }
  server.process = *std::move(child);
  server.ready_by = SteadyNow() + std::chrono::seconds(options_.start_timeout_s);
  ++record.restarts;
  record.process = server.process->identity();
  record.exited.clear();
  record.incarnation = nullptr;
  SaveState();
}

void Supervisor::LookAtLoading(size_t i) {
  Server& server = servers_[i];
  const std::string& name = state_.servers[i].name;
  if (absl::StatusOr<ReadyFile> ready = ReadReadyFile(dir_.ReadyFile(name)); ready.ok()) {
    server.ready_by = kNever;
    TakeReadyFile(i, *ready);
    report_.Progress(
        absl::StrCat(name, " serves again (pid ", server.process->identity().pid, ")"));
  } else if (SteadyNow() >= server.ready_by) {
    server.ready_by = kNever;
    report_.Progress(absl::StrCat("killing ", name, ": it was not ready within ",
                                  options_.start_timeout_s, " s (--start-timeout-s)"));
    server.process->Signal(SIGKILL);
  }
}

void Supervisor::PlanRestart(size_t i, bool cleanly, const std::string& obituary) {
  Server& server = servers_[i];
  server.ready_by = kNever;
  if (!options_.restart) {
    state_.servers[i].given_up = true;
    return report_.Progress(absl::StrCat(obituary,
                                         "\nthe rest of the cluster keeps running; `baton ",
                                         "down` and `baton up` start it anew"));
  }
  const Duration delay = server.policy.OnEnded(cleanly, SteadyNow());
  server.start_at = SteadyNow() + delay;
  state_.servers[i].start_at = server.start_at;
  state_.servers[i].crashes = server.policy.crashes();
  report_.Progress(absl::StrCat(
      obituary, "\nstarting it again in ", ToSeconds(delay), " s",
      cleanly ? "" : absl::StrCat(" (crash ", server.policy.crashes(), " in a row)")));
}

absl::Status Supervisor::StartObstacle() const {
  if (stop_signals_ > 0) return absl::CancelledError("stopped by a signal while starting");
  if (!report_.IsHeard()) return absl::CancelledError("the command that started it has gone");
  for (const Server& server : servers_) {
    const ChildProcess& child = *server.process;
    if (child.refused_to_start()) {
      return absl::FailedPreconditionError(
          Refusal(child, options_, dir_.LogFile(child.spec().name)));
    }
    if (!child.running()) {
      return absl::UnavailableError(Obituary(child, dir_.LogFile(child.spec().name)));
    }
  }
  return absl::OkStatus();
}

absl::Status Supervisor::PumpUntil(const std::function<bool()>& done, Time deadline) {
  while (true) {
    Pump(Duration::zero());
    if (!stopping_) RETURN_IF_ERROR(StartObstacle());
    if (done()) return absl::OkStatus();
    const Time now = SteadyNow();
    if (now >= deadline) return absl::DeadlineExceededError("");
    Pump(std::min<Duration>(kPollInterval, deadline - now));
  }
}

void Supervisor::Pump(Duration wait) {
  std::vector<pollfd> fds = {{.fd = signal_fd_, .events = POLLIN, .revents = 0}};
  for (const Server& server : servers_) {
    // A negative descriptor (pipe at its end) is one that poll() passes over.
    fds.push_back({.fd = server.process->output_fd(), .events = POLLIN, .revents = 0});
  }
  const auto wait_ms = std::chrono::ceil<std::chrono::milliseconds>(wait).count();
  if (poll(fds.data(), fds.size(), static_cast<int>(wait_ms)) <= 0) return;
  for (size_t i = 0; i < servers_.size(); ++i) {
    if (fds[i + 1].revents != 0) servers_[i].process->Pump();
  }
  if (fds[0].revents != 0) TakeSignals();
}

void Supervisor::TakeSignals() {
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGCHLD) {
      ReapChildren();
    } else if (++stop_signals_ == 1) {
      report_.Progress("draining: the router first, then the workers (again to stop at once)");
    }
  }
}

void Supervisor::ReapChildren() {
  bool changed = false;
  for (size_t i = 0; i < servers_.size(); ++i) {
    ChildProcess& child = *servers_[i].process;
    if (!child.running()) continue;
    child.Reap();
    if (child.running()) continue;
    changed = true;
    state_.servers[i].exited = child.how_it_ended();
    state_.servers[i].last_exit = child.how_it_ended();
    if (started_ && !stopping_ && stop_signals_ == 0) {
      PlanRestart(i, child.ended_cleanly(), Obituary(child, dir_.LogFile(child.spec().name)));
    } else if (stopping_ && !child.ended_cleanly()) {
      report_.Progress(Obituary(child, dir_.LogFile(child.spec().name)));
    }
  }
  if (changed) SaveState();
}

void Supervisor::Stop() {
  stopping_ = true;
  StopChildren(/*router=*/true);
  StopChildren(/*router=*/false);
  if (started_) report_.Progress("stopped");
  dir_.RemoveState();
}

void Supervisor::StopChildren(bool router) {
  std::vector<ChildProcess*> targets;
  for (const Server& server : servers_) {
    ChildProcess* child = server.process.get();
    if ((child->spec().role == "router") == router && child->running()) targets.push_back(child);
  }
  const auto all_ended = [&] {
    return std::none_of(targets.begin(), targets.end(), [](auto* c) { return c->running(); });
  };
  for (ChildProcess* child : targets) child->Signal(SIGTERM);
  // A second Ctrl-C, or a start that failed before anything could be in flight, does not wait.
  const auto enough = [&] { return all_ended() || stop_signals_ > 1; };
  (void)PumpUntil(enough, SteadyNow() + kDrainLimit);
  for (ChildProcess* child : targets) {
    if (!child->running()) continue;
    report_.Progress(absl::StrCat(
        "killing ", child->spec().name,
        stop_signals_ > 1 ? ", as asked" : ": it did not stop within 10 s of SIGTERM"));
    child->Signal(SIGKILL);
  }
  (void)PumpUntil(all_ended, SteadyNow() + kKillLimit);
}

bool Supervisor::AnyAlive() const {
  return std::any_of(servers_.begin(), servers_.end(), [](const Server& server) {
    return server.process->running() || server.start_at != kNever;
  });
}

void Supervisor::SaveState() {
  if (absl::Status saved = dir_.Save(state_); !saved.ok()) report_.Progress(saved.message());
}

std::string Supervisor::ReadyText(Duration took) const {
  const ServerRecord& router = *state_.Router();
  const std::string dir = std::filesystem::absolute(dir_.path()).lexically_normal().string();
  return absl::StrFormat(
      "Baton is ready: router, %d prefill and %d decode workers in %.1f s.\n"
      "  HTTP     %s/v1  (OpenAI API)\n"
      "  gRPC     %s  (baton.v1.Inference, health, reflection)\n"
      "  metrics  %s\n"
      "  logs     %s/logs\n"
      "  try      %s/baton complete --dir %s \"In the beginning\"\n"
      "  stop     %s/baton down --dir %s\n",
      options_.prefill, options_.decode, ToSeconds(took), router.http_url, router.address,
      router.metrics_url, dir, bin_, dir, bin_, dir);
}

}  // namespace baton::cli
