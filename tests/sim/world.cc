#include "tests/sim/world.h"

namespace baton::sim {
namespace {

using Wide = __int128;  // Nanoseconds times a rate.
constexpr int64_t kMillion = 1'000'000;

Wide FloorOf(Wide dividend, int64_t divisor) {
  const Wide quotient = dividend / divisor;
  return quotient * divisor > dividend ? quotient - 1 : quotient;
}

Time Saturated(Wide ns) {
  const auto low = Wide{Time::min().time_since_epoch().count()};
  const auto high = Wide{Time::max().time_since_epoch().count()};
  return Time(Duration(static_cast<int64_t>(std::clamp(ns, low, high))));
}

uint64_t Weight(uint64_t tag, Time when) {
  return Random::Mix(tag ^ Random::Mix(when.time_since_epoch().count()));
}

}  // namespace

void World::Schedule(Time when, EventOptions options, std::function<void()> run) {
  Event event{.when = std::max(when, now_),
              .order = next_++,
              .tag = Random::Mix(origin_ + ++origin_count_),
              .host = options.host,
              .epoch = options.host != nullptr ? options.host->epoch_ : 0,
              .guard = options.guard,
              .guard_value = options.guard != nullptr ? *options.guard : 0,
              .run = std::move(run)};
  (options.host != nullptr ? options.host->pending_ : pending_) += Weight(event.tag, event.when);
  heap_.push_back(std::move(event));
  std::push_heap(heap_.begin(), heap_.end());
}

bool World::RunOne(Time limit) {
  if (heap_.empty() || heap_.front().when >= limit) return false;
  std::pop_heap(heap_.begin(), heap_.end());
  Event event = std::move(heap_.back());
  heap_.pop_back();
  now_ = event.when;
  ++num_events_;
  num_hits_ = 0;
  trace_digest_ = Random::Mix(trace_digest_ ^ Weight(event.tag, event.when));
  const bool is_void = event.guard != nullptr && *event.guard != event.guard_value;
  if (event.host != nullptr) {
    if (event.epoch != event.host->epoch_) return true;
    event.host->pending_ -= Weight(event.tag, event.when);
    if (!is_void) event.host->Receive(std::move(event));
    return true;
  }
  pending_ -= Weight(event.tag, event.when);
  if (is_void) return true;
  origin_ = Random::Mix(event.tag ^ now_.time_since_epoch().count());
  origin_count_ = 0;
  event.run();
  return true;
}

uint64_t World::StateHash() const {
  uint64_t hash = Random::Mix(pending_ ^ now_.time_since_epoch().count()) + notes_;
  for (const Host* host : hosts) {
    hash = Random::Mix(hash ^ host->history_) + Random::Mix(host->pending_ + host->epoch_);
  }
  return hash;
}

// A clock that has run `ns` of world time shows floor(ns * rate): exact, so that it never steps
// back and that each moment it shows has a first one in the world.
Time Host::Local(Time world) const {
  const Wide scaled = Wide{world.time_since_epoch().count()} * (kMillion + rate_ppm_);
  return Saturated(FloorOf(scaled, kMillion) + offset_ns_);
}

Time Host::ToWorld(Time local) const {
  const Wide shown = Wide{local.time_since_epoch().count()} - offset_ns_;
  return Saturated(-FloorOf(-shown * kMillion, kMillion + rate_ppm_));
}

void Host::Begin() {
  up_ = true;
  paused_ = false;
  ++epoch_;
  history_ = Random::Mix(epoch_ ^ Random::Mix(world_.now().time_since_epoch().count()));
  pending_ = 0;
  deferred_.clear();
}

void Host::End() {
  up_ = false;
  paused_ = false;
  ++epoch_;
  history_ = Random::Mix(epoch_);
  pending_ = 0;
  deferred_.clear();
}

void Host::Resume() {
  if (!paused_) return;
  paused_ = false;
  // One by one, in the order in which they came, before what comes from now on.
  std::vector<World::Event> deferred = std::move(deferred_);
  deferred_.clear();
  for (World::Event& event : deferred) {
    pending_ -= Weight(event.tag, event.when);
    At(world_.now(), std::move(event.run));
  }
}

void Host::Receive(World::Event event) {
  if (paused_) {
    pending_ += Weight(event.tag, event.when);
    deferred_.push_back(std::move(event));
    return;
  }
  if (!touched_) {
    touched_ = true;
    world_.touched.push_back(this);
  }
  history_ = Random::Mix(history_ ^ Weight(event.tag, world_.now()));
  world_.origin_ = history_;
  world_.origin_count_ = 0;
  event.run();
}

}  // namespace baton::sim
