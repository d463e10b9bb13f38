#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "common/base/random.h"
#include "common/base/time.h"

namespace baton::sim {

// Virtual time and its events. Events at the same moment run in the order in which they were
// scheduled, so a seed gives one trace.
class World {
 public:
  explicit World(uint64_t seed) : random(seed) {}

  Time now() const { return now_; }

  void At(Time when, std::function<void()> run) {
    heap_.push({std::max(when, now_), next_++, std::move(run)});
  }
  void After(Duration delay, std::function<void()> run) { At(now_ + delay, std::move(run)); }

  // Runs the next event; false when none is left before `limit`.
  bool RunOne(Time limit) {
    if (heap_.empty() || heap_.top().when >= limit) return false;
    Event event = heap_.top();
    heap_.pop();
    now_ = event.when;
    ++num_events_;
    event.run();
    return true;
  }
  int64_t num_events() const { return num_events_; }

  // Uniform in [low, high] microseconds.
  Duration Micros(int64_t low, int64_t high) {
    return std::chrono::microseconds(low + static_cast<int64_t>(random.Below(high - low + 1)));
  }
  bool Chance(double probability) { return random.Unit() < probability; }

  Random random;

 private:
  struct Event {
    Time when;
    uint64_t order;
    std::function<void()> run;
    bool operator<(const Event& other) const {
      return std::tie(other.when, other.order) < std::tie(when, order);
    }
  };
  Time now_{};
  uint64_t next_ = 0;
  int64_t num_events_ = 0;
  std::priority_queue<Event> heap_;
};

// What may go wrong, drawn from the seed; all rates are 0 once the world is healed.
struct Faults {
  double drop_call = 0;   // A message is lost and with it its call, as with a reset stream.
  double lose_event = 0;  // A worker's event is lost and its call stays open.
  double duplicate = 0;   // A message is delivered twice.
  double slow = 0;        // A message takes up to 400 ms.
  double transfer = 0;    // A frame breaks its transfer.
  double lose_ack = 0;    // The receiver verified, the sender hears of a failure.
  double step_error = 0;  // A forward pass fails.
};

}  // namespace baton::sim
