#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/base/time.h"

namespace baton::sim {

class Host;

// One rank of the worker at a column of the trace.
struct Place {
  int column = 0;
  int rank = 0;
  auto operator<=>(const Place&) const = default;
};

// What may go wrong at one point of a run: with one message, frame or step.
enum class Fault : uint8_t {
  kDropCall,       // A message is lost and with it its call, as with a reset stream.
  kLoseEvent,      // A worker's answer is never given and its call stays open.
  kDuplicate,      // A message is delivered twice.
  kSlow,           // A message, or a stager's copy, takes up to 400 ms.
  kBreakTransfer,  // A frame breaks its transfer.
  kCorruptFrame,   // A bit of a frame is flipped.
  kRepeatFrame,    // A frame arrives twice, or not at all, and what follows it does.
  kShortWrite,     // A connection takes, or brings, a part of a frame and the rest later.
  kStaleBlock,     // A block that a transfer was promised has moved on to another owner.
  kLoseAck,        // The receiver verified, the sender hears of a failure.
  kSlowAbort,      // A transfer takes up to 4 s to be quiet.
  kStepError,      // A forward pass fails.
  kMoveError,      // A forward pass fails that copies blocks to or from the host.
  kCancelMoving,   // The clients of sequences whose blocks a step copies give up.
  // Of control messages that are carried as bytes:
  kFlipRequest,    // A bit of a request is flipped.
  kFlipEvent,      // A bit of an event, a hello or a status is flipped.
  kFlipEnd,        // The end of a call comes with another code or reason.
  kLoseMessage,    // An event is lost and what follows it is not.
  kRepeatMessage,  // An event arrives twice.
  kMisdirect,      // An event arrives on another call of its connection.
  kMuteStream,     // Nothing more comes on a stream, and it stays open.
  kLazyStep,       // A node takes more mail before its Step.
  // Of NCCL:
  kNcclNeverComes,   // A communicator is never there.
  kNcclFallsSilent,  // An operation never ends.
  kNcclFails,        // A communicator fails.
  kNcclSpoils,       // A bit of what is received is flipped.
  kNcclHangs,        // A call never returns.
  // Offered after each event, and only by a FaultPlan.
  kCrashPrefill,
  kCrashDecode,
  kCancelFirst,
  kCancelSecond,
  kCount
};
inline constexpr size_t kNumFaults = static_cast<size_t>(Fault::kCount);

// Decides faults one by one instead of by rates: the exhaustive search.
class FaultPlan {
 public:
  virtual ~FaultPlan() = default;
  // Points with equal hashes have equal futures, whether the fault is placed there or not.
  virtual bool Hit(Fault fault, uint64_t point) = 0;
};

// Virtual time, its events, and chance. Events at the same moment run in the order in which they
// were scheduled, so a seed gives one trace.
//
// Identity of states: an event's tag is derived from the history of whoever scheduled it, a host's
// history from the tags and times of the events it handled. A host is a function of its history,
// so two moments with equal StateHash have the same future under the same decisions.
class World {
 public:
  explicit World(uint64_t seed) : random(seed), origin_(Random::Mix(seed)) {}

  Time now() const { return now_; }

  // `host` null: the network and the clients. With a guard the event is void once *guard changed.
  struct EventOptions {
    Host* host = nullptr;
    const uint64_t* guard = nullptr;
  };
  void At(Time when, std::function<void()> run) { Schedule(when, {}, std::move(run)); }
  void After(Duration delay, std::function<void()> run) { At(now_ + delay, std::move(run)); }
  void Schedule(Time when, EventOptions options, std::function<void()> run);

  // Runs the next event; false when none is left before `limit`.
  bool RunOne(Time limit);
  void AdvanceTo(Time when) { now_ = std::max(now_, when); }
  int64_t num_events() const { return num_events_; }
  uint64_t StateHash() const;
  // What happened so far, in order.
  uint64_t trace_digest() const { return trace_digest_; }
  // Counts what is more than a heartbeat: messages of calls, frames, layers.
  void Mark() { ++num_marks_; }
  int64_t num_marks() const { return num_marks_; }
  // A decision that no host's history holds.
  void Note(uint64_t what) { notes_ += Random::Mix(what + 0x4E07E); }

  // Uniform in [low, high] microseconds; always `low` with fixed delays.
  Duration Micros(int64_t low, int64_t high) {
    if (plan != nullptr) return std::chrono::microseconds(low);
    return std::chrono::microseconds(low + static_cast<int64_t>(random.Below(high - low + 1)));
  }
  bool Chance(double probability) { return probability > 0 && random.Unit() < probability; }
  bool Hit(Fault fault) {
    const auto index = static_cast<size_t>(fault);
    const bool is_hit =
        plan != nullptr ? plan->Hit(fault, PointHash(fault)) : Chance(rates[index]);
    hits_[index] += is_hit ? 1 : 0;
    return is_hit;
  }
  int64_t num_hits(Fault fault) const { return hits_[static_cast<size_t>(fault)]; }
  // Something was lost, broken or late that a node may have noticed.
  bool has_harmed() const {
    for (size_t f = 0; f < kNumFaults; ++f) {
      const auto fault = static_cast<Fault>(f);
      const bool is_harmless = fault == Fault::kLazyStep || fault == Fault::kDuplicate ||
                               fault == Fault::kCancelMoving;
      if (!is_harmless && hits_[f] > 0) return true;
    }
    return false;
  }

  Random random;
  std::array<double, kNumFaults> rates{};  // All 0 once healed.
  FaultPlan* plan = nullptr;               // Instead of rates; delays are then fixed.
  std::vector<Host*> hosts;                // By column of the trace.
  std::vector<Host*> touched;              // Handled something since the last audit.

 private:
  friend class Host;
  uint64_t PointHash(Fault fault) {
    return Random::Mix(
        StateHash() + Random::Mix(origin_count_ * 64 + static_cast<uint64_t>(fault)) + ++num_hits_);
  }
  struct Event {
    Time when;
    uint64_t order = 0;
    uint64_t tag = 0;
    Host* host = nullptr;
    uint64_t epoch = 0;
    const uint64_t* guard = nullptr;
    uint64_t guard_value = 0;
    std::function<void()> run;
    bool operator<(const Event& other) const {
      return std::pair(other.when, other.order) < std::pair(when, order);
    }
  };

  Time now_{};
  uint64_t next_ = 0;
  int64_t num_events_ = 0;
  uint64_t origin_;  // Of the events that are being scheduled.
  uint64_t origin_count_ = 0;
  uint64_t pending_ = 0;  // Sum over the hostless events that wait.
  uint64_t notes_ = 0;
  uint64_t trace_digest_ = 0;
  uint64_t num_hits_ = 0;  // Points since the last event began.
  int64_t num_marks_ = 0;
  std::array<int64_t, kNumFaults> hits_{};
  std::vector<Event> heap_;
};

// A process: its clock, its mail while it is stopped, its life.
class Host {
 public:
  Host(World& world, int column) : world_(world), column_(column) { world.hosts.push_back(this); }
  virtual ~Host() = default;

  int column() const { return column_; }
  bool up() const { return up_; }
  bool paused() const { return paused_; }
  // Changes with each start.
  uint64_t epoch() const { return epoch_; }
  const uint64_t* epoch_guard() const { return &epoch_; }

  // Runs at `when` if this process still lives; after the pause if it is stopped then.
  void At(Time when, std::function<void()> run) {
    world_.Schedule(when, {.host = this}, std::move(run));
  }
  void After(Duration delay, std::function<void()> run) {
    At(world_.now() + delay, std::move(run));
  }

  // Its own clock: an offset, and a rate above -100 %.
  void SetClock(int64_t offset_ns, int64_t rate_ppm) {
    offset_ns_ = offset_ns;
    rate_ppm_ = rate_ppm;
  }
  Time Local(Time world) const;
  Time LocalNow() const { return Local(world_.now()); }
  // The first moment at which its clock shows `local`.
  Time ToWorld(Time local) const;

  // SIGSTOP and SIGCONT.
  void Pause() { paused_ = true; }
  void Resume();

  // Checks its invariants; empty if they hold. After each event that touched it.
  virtual std::string Audit() = 0;
  void Audited() { touched_ = false; }

 protected:
  void Begin();
  void End();
  World& world_;

 private:
  friend class World;
  void Receive(World::Event event);

  int column_;
  bool up_ = false;
  bool paused_ = false;
  bool touched_ = false;
  uint64_t epoch_ = 0;
  int64_t offset_ns_ = 0;
  int64_t rate_ppm_ = 0;
  uint64_t history_ = 0;
  uint64_t pending_ = 0;  // Sum over its events that wait.
  std::vector<World::Event> deferred_;
};

}  // namespace baton::sim
