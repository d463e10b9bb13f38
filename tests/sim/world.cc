#include "tests/sim/world.h"

namespace baton::sim {
namespace {

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

Time Host::Local(Time world) const {
  const int64_t ns = world.time_since_epoch().count();
  return Time(Duration(offset_ns_ + ns + ns / 1000 * rate_ppm_ / 1000));
}

Time Host::ToWorld(Time local) const {
  const int64_t ns = local.time_since_epoch().count() - offset_ns_;
  Time guess{Duration(ns / (1000000 + rate_ppm_) * 1000000)};
  // The division rounds: up to 1 ms too early.
  while (Local(guess) < local) {
    guess += std::max(Duration(1), (local - Local(guess)) / 2);
  }
  return guess;
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
