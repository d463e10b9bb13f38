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

constexpr int kWarpgroup = 128;

int RoundUp(int x, int to) { return (x + to - 1) / to * to; }

int CountOf(dim3 d) { return static_cast<int>(d.x * d.y * d.z); }

Coordinates CoordinatesOf(uint32_t index, dim3 d) {
  return {index % d.x, index / d.x % d.y, index / d.x / d.y};
}

}  // namespace

std::string NameOfThread(int index) {
  return index >= kMaxThreads ? "a tensor copy" : TheRunner().thread(index).Name();
}

void Fail(const std::string& message) { TheRunner().FailInThread(message); }

void BlockRunner::FailInThread(const std::string& message) {
  BATON_CHECK(current_ != nullptr);
  if (message_.empty()) {
    const Coordinates place = block().place;
    message_ = launch_->name + " block (" + std::to_string(place.x) + "," +
               std::to_string(place.y) + "," + std::to_string(place.z) + "): " + message;
  }
  SwitchTo(host_, nullptr);
  std::abort();  // A block that was given up never runs again.
}

Mbarriers& BlockRunner::mbarriers() { return block().mbarriers; }

int BlockRunner::NumExited() const {
  int count = 0;
  for (int rank = 0; rank < launch_->cluster; ++rank) count += blocks_[rank]->num_exited;
  return count;
}

std::string BlockRunner::Run(const Launch& launch) {
  launch_ = &launch;
  message_.clear();
  num_threads_ = CountOf(launch.block);
  ++statistics_.kernels;
  ++running_.launch;
  running_.device = launch.device;
  running_.released.assign(CountOf(launch.grid), {});
  std::vector<uint32_t> clusters(CountOf(launch.grid) / launch.cluster);
  std::iota(clusters.begin(), clusters.end(), 0);
  for (size_t i = clusters.size(); i > 1; --i) {
    std::swap(clusters[i - 1], clusters[random_.Below(i)]);
  }
  for (const uint32_t cluster : clusters) {
    RunCluster(cluster * launch.cluster);
    if (!message_.empty()) break;
  }
  return message_;
}

SharedMemory* BlockRunner::SharedOf(int rank) {
  if (rank == 0) return shared_;
  while (std::ssize(others_) < rank) {
    others_.push_back(std::make_unique<SharedMemory>());
    others_.back()->set_detects(detects_);
  }
  return others_[rank - 1].get();
}

void BlockRunner::StartThreads(const Block& block, int rank) {
  const auto as_coordinates = [](dim3 d) { return Coordinates{d.x, d.y, d.z}; };
  const int end = block.first_thread + num_threads_;
  while (std::ssize(threads_) < end) threads_.push_back(std::make_unique<Thread>());
  for (int i = block.first_thread; i < end; ++i) {
    Thread& thread = *threads_[i];
    thread.index = i;
    thread.first = block.first_thread;
    thread.block = rank;
    thread.done = false;
    thread.clock = 1;
    thread.warp_seen.fill(0);
    thread.open_copies.clear();
    thread.copy_groups.clear();
    thread.seen.clear();
    thread.products = {};
    thread.has_arrived = false;
    thread.cluster_phases = 0;
    thread.fenced.clear();
    thread.was_atomic = false;
    thread.fiber.Start(&ThreadMain, kReserved);
    thread.position =
        reinterpret_cast<Position*>(thread.fiber.stack() + Fiber::kStackBytes - kReserved);
    *thread.position = {CoordinatesOf(i - block.first_thread, launch_->block), block.place,
                        as_coordinates(launch_->grid), as_coordinates(launch_->block)};
    ready_.push_back(i);
  }
}

void BlockRunner::StartBlock(uint32_t index, int rank) {
  ++statistics_.blocks;
  if (rank == std::ssize(blocks_)) blocks_.push_back(std::make_unique<Block>());
  Block& block = *blocks_[rank];
  block.place = CoordinatesOf(index, launch_->grid);
  block.index = index;
  block.first_thread = rank * RoundUp(num_threads_, kWarpgroup);
  block.num_exited = 0;
  block.shared = SharedOf(rank);
  block.shared->Reset(launch_->shared_bytes);
  block.order.Reset();
  const int most_mbarriers = kMaxMbarriers / launch_->cluster;
  block.mbarriers.Reset(kMaxThreads + rank * most_mbarriers, most_mbarriers);
  block.at_barrier.clear();
  block.visits.clear();
  for (int i = 0; i < num_threads_; ++i) {
    const int thread = block.first_thread + i;
    exited_lanes_[thread / 32] &= ~(1u << thread % 32);
  }
  StartThreads(block, rank);
}

void BlockRunner::RunCluster(uint32_t first_block) {
  const int size = launch_->cluster;
  const int num_warps = size * RoundUp(num_threads_, kWarpgroup) / 32;
  meetings_.assign(num_warps, {});
  warpgroup_meetings_.assign(num_warps / 4, {});
  exited_lanes_.assign(num_warps, ~0u);  // Those that do not exist.
  cluster_barrier_.Reset();
  running_.acquired.clear();
  ready_.clear();
  for (int rank = 0; rank < size; ++rank) StartBlock(first_block + rank, rank);
  SwitchToNext();
  if (message_.empty() && NumExited() < NumThreads()) {
    message_ = launch_->name + ": deadlock:" + DescribeDeadlock();
    for (int rank = 0; rank < size; ++rank) message_ += blocks_[rank]->mbarriers.Describe();
  }
  for (int rank = 0; rank < size && message_.empty(); ++rank) {
    const std::string left = blocks_[rank]->mbarriers.DescribeUnfinished();
    if (!left.empty()) message_ = launch_->name + ": the block ends " + left;
  }
}

void BlockRunner::ThreadMain() {
  BlockRunner& runner = TheRunner();
  runner.launch_->call->Run();
  Thread& thread = *runner.current_;
  runner.CheckExit(thread);
  thread.done = true;
  if (++runner.block().num_exited == runner.num_threads_) CheckVisits(runner.block());
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
  if (!block().at_barrier.empty()) {
    FailInThread("barrier divergence: " + thread.Name() + " exits while " +
                 NameOfThread(block().at_barrier[0]) + " waits in __syncthreads at " +
                 Show(block().barrier_site));
  }
  cluster_barrier_.CheckExit(thread);
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
  for (int i = 0; i < NumThreads() && shown < 4; ++i) {
    const Thread& thread = *threads_[blocks_[i / num_threads_]->first_thread + i % num_threads_];
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
  if (thread != nullptr) running_.block = blocks_[thread->block]->index;
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
  if (shared().IsNear(address)) {
    shared().Check(access, address, size, place, thread, order());
  } else if (global_->Contains(address)) {
    global_->Check(access, address, size, place, thread, order(), running_);
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
  running_.released[running_.block].Raise(thread.fenced);
}

void BlockRunner::ThreadFence() {
  Thread& thread = *current_;
  thread.fenced.clear();
  thread.Tell(thread.fenced);
  order().Tell(thread.fenced);
  const auto is_mine = [&](Stamp fence) { return fence.thread() == thread.index; };
  if (thread.was_atomic && std::ranges::none_of(running_.acquired, is_mine)) {
    running_.acquired.push_back(Stamp::Of(thread.index, thread.clock, false));
  }
  Tick(thread);
}

void BlockRunner::SyncThreads(const Site& site) {
  Block& mine = block();
  if (mine.num_exited > 0) {
    FailInThread("barrier divergence: " + current_->Name() + " is in __syncthreads at " +
                 Show(site) + " but " + std::to_string(mine.num_exited) + " threads have exited");
  }
  if (mine.at_barrier.empty()) mine.barrier_site = site;
  if (!IsSame(mine.barrier_site, site)) {
    FailInThread("barrier divergence: " + current_->Name() + " is in __syncthreads at " +
                 Show(site) + ", " + NameOfThread(mine.at_barrier[0]) + " in the one at " +
                 Show(mine.barrier_site));
  }
  mine.at_barrier.push_back(current_->index);
  if (std::ssize(mine.at_barrier) < num_threads_) return Park("__syncthreads", site);
  for (int i = mine.first_thread; i < mine.first_thread + num_threads_; ++i) {
    mine.order.PassBarrier(*threads_[i]);
    Tick(*threads_[i]);
  }
  for (const int i : mine.at_barrier) {
    if (i != current_->index) ready_.push_back(i);
  }
  mine.at_barrier.clear();
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
