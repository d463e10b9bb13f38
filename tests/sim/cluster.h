#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "tests/sim/clients.h"
#include "tests/sim/control_net.h"
#include "tests/sim/fabric.h"
#include "tests/sim/router_host.h"
#include "tests/sim/scenario.h"
#include "tests/sim/worker_host.h"

namespace baton::sim {

// Routers, workers, networks and clients in one thread and virtual time; the nodes are the ones
// that ship. Every process and network that an event touched is audited after it.
class Cluster {
 public:
  Cluster(uint64_t seed, const Scenario& scenario);
  ~Cluster();

  // Keeps what happens, for the table that Run then returns with a violation.
  void TurnTraceOn();

  // Runs to the end: all requests submitted with faults on, then everything is healed, has to end
  // and is asked once more. Empty, or the invariant that was violated.
  std::string Run();
  // The parts of Run, for scripted runs.
  void StartAll();
  // One event and its audit; false: violated, or nothing happens before `limit`.
  bool RunOne(Time limit);
  bool RunUntil(Time limit);  // False: violated.
  void Heal();
  void RunToQuiet();
  bool IsQuiet() const;
  // The table of events, and the state of each process.
  std::string Report() const;

  void Violation(const std::string& what);
  const std::string& violation() const { return violation_; }
  World& world() { return world_; }
  Clients& clients() { return clients_; }
  Fabric& fabric() { return fabric_; }
  ControlNet& net() { return net_; }
  RouterHost& router(int r) { return *routers_[r]; }
  WorkerHost& worker(int w) { return *workers_[w]; }

  // Troubles, on drawn or given processes.
  void CrashWorker(int worker, Duration down);
  void PrefillGoes();
  void CrashRouter(int router, Duration down);
  void PauseWorker(int worker, Duration time);
  void PauseRouter(int router, Duration time);
  void DrainWorker(int worker, Duration limit);
  void EndSession(int router, int worker);
  void CutControl(int router, int worker, int directions, Duration time);
  void SlowControl(int router, int worker, Duration extra, Duration time);
  void StallWorker(int worker, Duration time);
  void CutData(int from, int to, bool both_ways, Duration time);
  void SlowData(int from, int to, Duration extra, Duration time);

  struct Totals {
    int64_t events = 0;
    int64_t ok = 0;
    int64_t failed = 0;
    int64_t tokens = 0;
    int64_t lost_with_router = 0;
    int64_t troubles = 0;
    // Failures that no cancel, deadline or dead router explains; and of those, with a healthy pair
    // of workers at every moment of the request.
    int64_t unexplained = 0;
    int64_t failed_beside_healthy_pair = 0;
    std::map<std::string, int64_t> reasons;  // Of the latter.
    std::array<int64_t, kNumFaults> hits{};  // Of each fault.
    WorkerHost::Totals workers;
    RouterCounters routers;
    RouterLedger::Totals router_economy;
    SimStager::Totals staged;
    Fabric::NcclTotals nccl;
  };
  Totals totals() const;

 private:
  // Nemesis (nemesis.cc).
  void ScheduleTrouble(Trouble trouble);
  void Inflict(Trouble trouble);
  int DrawWorker();
  int DrawRouter();
  Duration DrawTime(int64_t most_ms);
  void OnPaths(int from, int to, absl::FunctionRef<void(Place, Place)> act);
  void StopWhenDrained(int worker, uint64_t epoch, Time limit);
  void RestartWorker(int worker, Duration down);

  void BuildHosts(uint64_t seed);
  void SubmitAll();
  void CancelSequence(const SequenceId& sequence);
  void Check();
  bool IsHealthy(int router, const WorkerHost& worker) const;
  bool HasHealthyDecode(int router) const;
  bool HasHealthyPair(int router) const;
  void OnFailure(int router, Time submitted, const absl::Status& status);
  void CheckNotAlone(int router, Time submitted, const absl::Status& status);
  void NoteHealth();
  void NoteHealthOf(int router);
  void CheckQuiet();
  void Probe();

  Scenario scenario_;
  World world_;
  Trace trace_;
  Fabric fabric_;
  ControlNet net_;
  Clients clients_;
  FaultLog faults_;
  std::vector<std::unique_ptr<RouterHost>> routers_;
  std::vector<std::unique_ptr<WorkerHost>> workers_;
  std::vector<Time> last_unhealthy_;  // Per router: when it last had no healthy pair.
  std::vector<Time> last_without_decode_;
  uint64_t seen_changes_ = 0;
  bool healed_ = false;
  std::string violation_;
  Totals totals_;
};

}  // namespace baton::sim
