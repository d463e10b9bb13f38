#include "kernels/emulation/block_runner.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "common/base/check.h"

namespace baton::emulation {
namespace {

// A thread that does so much without waiting for another waits for ever.
constexpr int64_t kMaxAccesses = 50'000'000;
// The thread's own coordinates lie on its stack.
constexpr size_t kReserved = (sizeof(Position) + 63) / 64 * 64;

int CountOf(dim3 d) { return static_cast<int>(d.x * d.y * d.z); }

Coordinates CoordinatesOf(uint32_t index, dim3 d) {
  return {index % d.x, index / d.x % d.y, index / d.x / d.y};
}

}  // namespace

void Fail(const std::string& message) { TheRunner().FailInThread(message); }

void BlockRunner::FailInThread(const std::string& message) {
  BATON_CHECK(current_ != nullptr);
  if (message_.empty()) {
    message_ = launch_->name + " block (" + std::to_string(block_.x) + "," +
               std::to_string(block_.y) + "," + std::to_string(block_.z) + "): " + message;
  }
  SwitchTo(host_, nullptr);
  std::abort();  // A block that was given up never runs again.
}

std::string BlockRunner::Run(const Launch& launch) {
  launch_ = &launch;
  message_.clear();
  num_threads_ = CountOf(launch.block);
  ++statistics_.kernels;
  ++running_.launch;
  running_.device = launch.device;
  running_.released.assign(CountOf(launch.grid), {});
  std::vector<uint32_t> blocks(CountOf(launch.grid));
  std::iota(blocks.begin(), blocks.end(), 0);
  for (size_t i = blocks.size(); i > 1; --i) std::swap(blocks[i - 1], blocks[random_.Below(i)]);
  for (const uint32_t block : blocks) {
    RunBlock(block);
    if (!message_.empty()) break;
  }
  return message_;
}

void BlockRunner::StartThreads(Coordinates block) {
  const auto as_coordinates = [](dim3 d) { return Coordinates{d.x, d.y, d.z}; };
  while (std::ssize(threads_) < num_threads_) threads_.push_back(std::make_unique<Thread>());
  for (int i = 0; i < num_threads_; ++i) {
    Thread& thread = *threads_[i];
    thread.index = i;
    thread.done = false;
    thread.clock = 1;
    thread.warp_seen.fill(0);
    thread.open_copies.clear();
    thread.copy_groups.clear();
    thread.seen.clear();
    thread.products = {};
    thread.fenced.clear();
    thread.was_atomic = false;
    thread.fiber.Start(&ThreadMain, kReserved);
    thread.position =
        reinterpret_cast<Position*>(thread.fiber.stack() + Fiber::kStackBytes - kReserved);
    *thread.position = {CoordinatesOf(i, launch_->block), block, as_coordinates(launch_->grid),
                        as_coordinates(launch_->block)};
    ready_.push_back(i);
  }
}

void BlockRunner::RunBlock(uint32_t index) {
  ++statistics_.blocks;
  block_ = CoordinatesOf(index, launch_->grid);
  running_.block = index;
  running_.acquired.clear();
  shared_->Reset(launch_->shared_bytes);
  order_.Reset();
  const int num_warps = (num_threads_ + 31) / 32;
  meetings_.assign(num_warps, {});
  warpgroup_meetings_.assign((num_warps + 3) / 4, {});
  mbarriers_.Reset();
  exited_lanes_.assign(num_warps, 0);
  if (num_threads_ % 32 != 0) exited_lanes_.back() = ~0u << num_threads_ % 32;
  at_barrier_.clear();
  ready_.clear();
  num_exited_ = 0;
  StartThreads(block_);
  SwitchToNext();
  if (message_.empty() && num_exited_ < num_threads_) {
    message_ = launch_->name + ": deadlock:" + DescribeDeadlock() + mbarriers_.Describe();
  }
  if (message_.empty()) {
    const std::string left = mbarriers_.DescribeUnfinished();
    if (!left.empty()) message_ = launch_->name + ": the block ends " + left;
  }
}

void BlockRunner::ThreadMain() {
  BlockRunner& runner = TheRunner();
  runner.launch_->call->Run();
  Thread& thread = *runner.current_;
  runner.CheckExit(thread);
  thread.done = true;
  ++runner.num_exited_;
  runner.exited_lanes_[thread.warp()] |= 1u << thread.lane();
  runner.SwitchToNext();
  std::abort();
}

void BlockRunner::CheckExit(const Thread& thread) {
  for (const auto& group : thread.copy_groups) {
    if (group.empty()) continue;
    FailInThread(thread.Name() + " exits with a cp.async group never waited for, issued at " +
                 Show(group[0].place));
  }
  if (!thread.open_copies.empty()) {
    FailInThread(thread.Name() + " exits with a cp.async never committed, issued at " +
                 Show(thread.open_copies[0].place));
  }
  if (!at_barrier_.empty()) {
    FailInThread("barrier divergence: " + thread.Name() + " exits while " +
                 NameOfThread(at_barrier_[0]) + " waits in __syncthreads at " +
                 Show(barrier_site_));
  }
  CheckProducts(thread);
  for (const Meeting& meeting : meetings_[thread.warp()]) {
    if ((meeting.mask >> thread.lane() & 1) == 0) continue;
    FailInThread("warp divergence: " + thread.Name() + " exits while lanes wait for it in " +
                 meeting.what + " at " + Show(meeting.site));
  }
}

void BlockRunner::CheckProducts(const Thread& thread) {
  if (!thread.products.sums.empty()) {
    FailInThread(thread.Name() + " exits with a wgmma never waited for");
  }
  const WarpgroupMeeting& meeting = warpgroup_meetings_[thread.warp() / 4];
  if (meeting.arrived == 0) return;
  FailInThread("warpgroup divergence: " + thread.Name() + " exits while its warpgroup waits in " +
               meeting.what + " at " + Show(meeting.site));
}

std::string BlockRunner::DescribeDeadlock() const {
  std::string text;
  int shown = 0;
  for (int i = 0; i < num_threads_ && shown < 4; ++i) {
    const Thread& thread = *threads_[i];
    if (thread.done) continue;
    text += " " + thread.Name() + " waits in " + thread.waits_in + " at " + Show(thread.waits_at) +
            ";";
    ++shown;
  }
  return text;
}

void BlockRunner::SwitchTo(Fiber& fiber, Thread* thread) {
  Fiber& from = current_ == nullptr ? host_ : current_->fiber;
  if (&from == &fiber) return;
  current_ = thread;
  accesses_since_switch_ = 0;
  from.SwitchTo(fiber);
}

void BlockRunner::SwitchToNext() {
  if (ready_.empty()) return SwitchTo(host_, nullptr);
  const size_t i = random_.Below(ready_.size());
  Thread& next = *threads_[std::exchange(ready_[i], ready_.back())];
  ready_.pop_back();
  SwitchTo(next.fiber, &next);
}

void BlockRunner::Park(const char* what, const Site& site) {
  current_->waits_in = what;
  current_->waits_at = site;
  SwitchToNext();
}

void BlockRunner::Tick(Thread& thread) {
  if (++thread.clock > Stamp::kMaxClock) FailInThread("too many synchronisations in one block");
}

void BlockRunner::OnAccess(Access access, const void* address, size_t size, Place place) {
  if (!watches()) return;
  Thread& thread = *current_;
  const auto offset = static_cast<const std::byte*>(address) - thread.fiber.stack();
  if (static_cast<size_t>(offset) < Fiber::kStackBytes) return;
  ++statistics_.accesses;
  if (++accesses_since_switch_ > kMaxAccesses) {
    FailInThread(thread.Name() + " works for 50 million accesses without meeting another at " +
                 Show(place));
  }
  if (shared_->IsNear(address)) {
    shared_->Check(access, address, size, place, thread, order_);
  } else if (global_->Contains(address)) {
    global_->Check(access, address, size, place, thread, order_, running_);
    if (access == Access::kAtomic) Release(thread);
  } else if (access != Access::kRead || !IsInProgram(address)) {
    FailInThread(thread.Name() + (access == Access::kRead ? ": read of" : ": write to") +
                 " memory that is not the device's (a host pointer, a static variable or another "
                 "thread's stack) at " +
                 Show(place));
  }
}

void BlockRunner::Release(Thread& thread) {
  thread.was_atomic = true;
  std::vector<uint32_t>& clocks = running_.released[running_.block];
  clocks.resize(std::max(clocks.size(), thread.fenced.size()));
  for (size_t i = 0; i < thread.fenced.size(); ++i) {
    clocks[i] = std::max(clocks[i], thread.fenced[i]);
  }
}

void BlockRunner::ThreadFence() {
  Thread& thread = *current_;
  thread.fenced.clear();
  thread.Tell(thread.fenced);
  order_.Tell(thread.fenced);
  const auto is_mine = [&](Stamp fence) { return fence.thread() == thread.index; };
  if (thread.was_atomic && std::ranges::none_of(running_.acquired, is_mine)) {
    running_.acquired.push_back(Stamp::Of(thread.index, thread.clock, false));
  }
  Tick(thread);
}

void BlockRunner::SyncThreads(const Site& site) {
  if (num_exited_ > 0) {
    FailInThread("barrier divergence: " + current_->Name() + " is in __syncthreads at " +
                 Show(site) + " but " + std::to_string(num_exited_) + " threads have exited");
  }
  if (at_barrier_.empty()) barrier_site_ = site;
  if (!IsSame(barrier_site_, site)) {
    FailInThread("barrier divergence: " + current_->Name() + " is in __syncthreads at " +
                 Show(site) + ", " + NameOfThread(at_barrier_[0]) + " in the one at " +
                 Show(barrier_site_));
  }
  at_barrier_.push_back(current_->index);
  if (std::ssize(at_barrier_) < num_threads_) return Park("__syncthreads", site);
  for (int i = 0; i < num_threads_; ++i) {
    order_.PassBarrier(*threads_[i]);
    Tick(*threads_[i]);
  }
  for (const int i : at_barrier_) {
    if (i != current_->index) ready_.push_back(i);
  }
  at_barrier_.clear();
}

void BlockRunner::Meet(const char* what, uint32_t mask, void* argument, const Site& site,
                       absl::FunctionRef<void(const Meeting&)> work) {
  const Thread& me = *current_;
  const int warp = me.warp();
  if ((mask >> me.lane() & 1) == 0) {
    FailInThread(me.Name() + " is not in its own mask at " + Show(site));
  }
  if ((mask & exited_lanes_[warp]) != 0) {
    FailInThread("warp divergence: " + me.Name() + ": " + what + " at " + Show(site) +
                 " names lanes that have exited or do not exist");
  }
  auto& meetings = meetings_[warp];
  auto found = std::find_if(meetings.begin(), meetings.end(),
                            [&](const Meeting& m) { return (m.mask & mask) != 0; });
  if (found == meetings.end()) {
    meetings.push_back({.what = what, .site = site, .mask = mask});
    found = std::prev(meetings.end());
  }
  if (found->mask != mask || !IsSame(found->site, site)) {
    const int other = warp * 32 + std::countr_zero(found->arrived);
    FailInThread("warp divergence: " + me.Name() + " is in " + what + " at " + Show(site) +
                 " while " + NameOfThread(other) + " is in " + found->what + " at " +
                 Show(found->site) + ", or their masks differ");
  }
  found->arguments[me.lane()] = argument;
  found->arrived |= 1u << me.lane();
  if (found->arrived != mask) return Park(what, site);
  const Meeting meeting = *found;
  meetings.erase(found);
  work(meeting);
  for (int lane = 0; lane < 32; ++lane) {
    if (lane != me.lane() && (mask >> lane & 1) != 0) ready_.push_back(warp * 32 + lane);
  }
}

void BlockRunner::MeetWarpgroup(const char* what, void* argument, const Site& site,
                                absl::FunctionRef<void(const WarpgroupMeeting&)> work) {
  const Thread& me = *current_;
  const int group = me.warp() / 4;
  WarpgroupMeeting& meeting = warpgroup_meetings_[group];
  if (meeting.arrived == 0) {
    meeting.what = what;
    meeting.site = site;
  }
  if (!IsSame(meeting.site, site)) {
    FailInThread("warpgroup divergence: " + me.Name() + " is in " + what + " at " + Show(site) +
                 " while others are in " + meeting.what + " at " + Show(meeting.site));
  }
  for (int warp = 4 * group; warp < 4 * group + 4; ++warp) {
    if (warp < std::ssize(exited_lanes_) && exited_lanes_[warp] == 0) continue;
    FailInThread("warpgroup divergence: " + me.Name() + ": " + what + " at " + Show(site) +
                 " needs four warps, of which warp " + std::to_string(warp) +
                 " has exited or does not exist");
  }
  meeting.arguments[me.index % 128] = argument;
  if (++meeting.arrived < 128) return Park(what, site);
  work(meeting);
  meeting.arrived = 0;
  for (int i = 128 * group; i < 128 * group + 128; ++i) {
    if (i != me.index) Wake(i);
  }
}

}  // namespace baton::emulation
