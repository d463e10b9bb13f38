// The half of Cluster that makes trouble.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster.h"

namespace baton::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

int Cluster::DrawWorker() { return static_cast<int>(world_.random.Below(workers_.size())); }
int Cluster::DrawRouter() { return static_cast<int>(world_.random.Below(routers_.size())); }

// Mostly short, sometimes up to the most.
Duration Cluster::DrawTime(int64_t most_ms) {
  const int64_t most = world_.random.Below(2) == 0 ? most_ms / 20 : most_ms;
  return world_.Micros(1000, most * 1000);
}

void Cluster::ScheduleTrouble(Trouble trouble) {
  const double rate = scenario_.troubles[static_cast<size_t>(trouble)];
  if (rate <= 0) return;
  world_.After(world_.Micros(1, static_cast<int64_t>(2e6 / rate)), [this, trouble] {
    if (healed_) return;
    ++totals_.troubles;
    Inflict(trouble);
    ScheduleTrouble(trouble);
  });
}

void Cluster::Inflict(Trouble trouble) {
  const int w = DrawWorker();
  const int r = DrawRouter();
  const int other = DrawWorker();
  switch (trouble) {
    case Trouble::kCrashWorker:
      return CrashWorker(w, DrawTime(3000));
    case Trouble::kCrashRouter:
      return CrashRouter(r, DrawTime(2000));
    case Trouble::kPauseWorker:
      return PauseWorker(w, DrawTime(6000));
    case Trouble::kPauseRouter:
      return PauseRouter(r, DrawTime(6000));
    case Trouble::kCutControl:
      return CutControl(r, w, 1 + static_cast<int>(world_.random.Below(3)), DrawTime(6000));
    case Trouble::kCutData:
      return CutData(workers_[w]->column(), workers_[other]->column(), world_.random.Below(2) == 0,
                     DrawTime(6000));
    case Trouble::kSlowControl:
      return SlowControl(r, w, DrawTime(400), DrawTime(3000));
    case Trouble::kSlowData:
      return SlowData(workers_[w]->column(), workers_[other]->column(), DrawTime(400),
                      DrawTime(3000));
    case Trouble::kStall:
      return StallWorker(w, DrawTime(6000));
    case Trouble::kDrain:
      return DrainWorker(w, DrawTime(5000));
    case Trouble::kEndSession:
      return EndSession(r, w);
    case Trouble::kCount:
      return;
  }
}

void Cluster::RestartWorker(int worker, Duration down) {
  world_.After(down, [this, worker] {
    if (!workers_[worker]->up()) workers_[worker]->Start();
  });
}

void Cluster::CrashWorker(int worker, Duration down) {
  if (!workers_[worker]->up()) return;
  faults_.TroubleWorker(worker, world_.now() + down);
  workers_[worker]->Kill();
  RestartWorker(worker, down);
}

// All at once, and for long: then decode workers compute prompts themselves.
void Cluster::PrefillGoes() {
  for (int w = 0; w < scenario_.num_prefill; ++w) CrashWorker(w, scenario_.prefill_away);
  ++totals_.troubles;
}

void Cluster::CrashRouter(int router, Duration down) {
  if (!routers_[router]->up()) return;
  faults_.TroubleRouter(router, world_.now() + down);
  routers_[router]->Kill();
  clients_.RouterDied(router);
  world_.After(down, [this, router] {
    if (!routers_[router]->up()) routers_[router]->Start();
  });
}

void Cluster::PauseWorker(int worker, Duration time) {
  WorkerHost* host = workers_[worker].get();
  if (!host->up() || host->paused()) return;
  if (trace_.on()) trace_.Add(world_.now(), host->column(), "is stopped");
  faults_.TroubleWorker(worker, world_.now() + time);
  host->Pause();
  net_.WorkerPaused(worker);
  world_.Schedule(world_.now() + time, {.guard = host->epoch_guard()}, [this, host] {
    if (trace_.on()) trace_.Add(world_.now(), host->column(), "goes on");
    host->Resume();
  });
}

void Cluster::PauseRouter(int router, Duration time) {
  RouterHost* host = routers_[router].get();
  if (!host->up() || host->paused()) return;
  if (trace_.on()) trace_.Add(world_.now(), host->column(), "is stopped");
  faults_.TroubleRouter(router, world_.now() + time);
  host->Pause();
  net_.RouterPaused(router);
  world_.Schedule(world_.now() + time, {.guard = host->epoch_guard()}, [this, host] {
    if (trace_.on()) trace_.Add(world_.now(), host->column(), "goes on");
    host->Resume();
  });
}

void Cluster::CutControl(int router, int worker, int directions, Duration time) {
  if (trace_.on()) {
    trace_.Add(world_.now(), -1,
               absl::StrCat("cut R", router, " - column ", workers_[worker]->column(),
                            directions == ControlNet::kToWorker   ? ", to the worker"
                            : directions == ControlNet::kToRouter ? ", to the router"
                                                                  : "",
                            " for ms ", time / milliseconds(1)));
  }
  faults_.TroubleLink(router, worker, world_.now() + time);
  net_.Cut(router, worker, directions, world_.now() + time);
}

void Cluster::EndSession(int router, int worker) {
  if (!net_.Usable(router, worker)) return;
  faults_.TroubleLink(router, worker, world_.now());
  net_.EndSession(router, worker);
}

void Cluster::SlowControl(int router, int worker, Duration extra, Duration time) {
  faults_.TroubleLink(router, worker, world_.now() + time + extra);
  net_.Slow(router, worker, extra, world_.now() + time);
}

void Cluster::StallWorker(int worker, Duration time) {
  if (!workers_[worker]->up()) return;
  faults_.TroubleWorker(worker, world_.now() + time);
  workers_[worker]->runner().StallUntil(world_.now() + time);
}

void Cluster::CutData(int from, int to, bool both_ways, Duration time) {
  if (trace_.on()) {
    trace_.Add(world_.now(), -1,
               absl::StrCat("cut data, column ", from, both_ways ? " and " : " to ", to, " for ms ",
                            time / milliseconds(1)));
  }
  const Time until = world_.now() + time;
  OnPaths(from, to, [&](Place a, Place b) {
    fabric_.Block(a, b, until);
    if (both_ways) fabric_.Block(b, a, until);
  });
}

// Between the ranks of two columns: all, or one of each.
void Cluster::OnPaths(int from, int to, absl::FunctionRef<void(Place, Place)> act) {
  const auto tp = [this](int column) { return workers_[column - routers_.size()]->tp(); };
  if (tp(from) * tp(to) > 1 && world_.random.Below(2) == 0) {
    const auto draw = [&](int column) {
      return Place{column, static_cast<int>(world_.random.Below(tp(column)))};
    };
    const Place a = draw(from);
    return act(a, draw(to));
  }
  for (int a = 0; a < tp(from); ++a) {
    for (int b = 0; b < tp(to); ++b) act({from, a}, {to, b});
  }
}

void Cluster::SlowData(int from, int to, Duration extra, Duration time) {
  OnPaths(from, to,
          [&](Place a, Place b) { fabric_.Slow(a, b, extra, world_.now() + time); });
}

// An orderly restart: takes nothing new, ends what it has, goes. Not the last one of its role.
void Cluster::DrainWorker(int worker, Duration limit) {
  const auto usable = [&](const auto& w) {
    return w->role() == workers_[worker]->role() && w->up() && !w->paused() && !w->draining();
  };
  if (!usable(workers_[worker]) || std::ranges::count_if(workers_, usable) < 2) return;
  WorkerHost* host = workers_[worker].get();
  if (trace_.on()) trace_.Add(world_.now(), host->column(), "drains");
  // Then it goes, and comes again within a second.
  faults_.TroubleWorker(worker, world_.now() + limit + seconds(2));
  host->At(world_.now(), [this, host, limit] {
    host->Deliver(Drain{});
    // What the routers sent before they knew has arrived by then.
    world_.After(std::min<Duration>(limit, seconds(1)),
                 [this, host, epoch = host->epoch(), until = world_.now() + limit] {
                   StopWhenDrained(host->index(), epoch, until);
                 });
  });
}

void Cluster::StopWhenDrained(int worker, uint64_t epoch, Time limit) {
  WorkerHost* host = workers_[worker].get();
  if (host->epoch() != epoch) return;
  const bool late = world_.now() >= limit;
  if (host->paused() || (!host->idle() && !late)) {
    world_.After(milliseconds(20),
                 [this, worker, epoch, limit] { StopWhenDrained(worker, epoch, limit); });
    return;
  }
  // Within the host, so that its state is audited; a moment later it is gone.
  host->At(world_.now(), [this, host] { host->CloseCalls(); });
  world_.Schedule(world_.now() + world_.Micros(0, 20000), {.guard = host->epoch_guard()},
                  [this, worker] { CrashWorker(worker, DrawTime(1000)); });
}

}  // namespace baton::sim
