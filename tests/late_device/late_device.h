#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/random.h"
#include "kernels/api/device.h"
#include "kernels/cpu/cpu_kernels.h"

namespace baton {

struct LateOptions {
  uint64_t seed = 0;
  // Works run one at a time, each for a question whether some mark is done: who does not ask finds
  // that nothing has happened. Otherwise a thread runs them when it likes.
  bool only_when_asked = false;
  bool copies_last = false;  // kCopies runs when no other lane can.
  int64_t row_alignment = 1;
  int64_t logit_rows = 32;
  bool graphs = false;
  Duration limit = kDeviceLimit;
  int32_t longest_replay = INT32_MAX;  // Of one row; of n rows the n-th part.
};

// A device whose memory is apart from the host's and whose lanes run later: the CPU's operators on
// a thread of its own, the lanes in an order that the seed decides. The host that touches memory of
// the device ends with a fault; fresh and freed memory is 0xff; pinned memory is read and written
// when a copy runs. Weights land on kCopies; they alone are in the host's memory. A peer's memory
// can be touched by works, of which one runs at a time of all devices. What a device has in
// another's graph runs on a lane that nobody waits for but that graph.
class LateDevice : public Device {
 public:
  explicit LateDevice(const LateOptions& options);
  ~LateDevice() override;

  // The call of this operator after `skip` more fails, nothing being enqueued.
  void FailNext(const std::string& op, int skip);
  // From then on, after so many more works, every call says UNAVAILABLE and no work runs.
  void LoseAfter(int works);
  // At once; the work that runs has ended then. Who takes a device for lost that is only slow frees
  // what its works touch.
  void Lose();
  // From then on no work ends.
  void HangAfter(int works);
  // How long it is waited for. Between steps.
  void SetLimit(Duration limit) { info_.limit = limit; }

  // Whether nothing is enqueued or running.
  bool idle() const;
  int64_t num_allocations() const { return Now(num_allocations_); }
  int64_t num_works() const { return Now(num_works_); }        // That have ended.
  int64_t num_launches() const { return Now(num_launches_); }  // Of graphs.
  std::vector<std::byte> Read(const std::byte* from, int64_t bytes);
  void Fill(std::byte* to, int64_t bytes, std::byte value);

  const DeviceInfo& info() const override { return info_; }
  std::string Arithmetic(DType compute) const override;
  DType FastestCompute(DType) const override { return DType::kF32; }
  DType Activations(DType) const override { return DType::kF32; }
  absl::Status CheckModel(const ModelNeeds&) const override { return absl::OkStatus(); }
  absl::StatusOr<DeviceMemory> Memory() const override;
  absl::StatusOr<Buffer> Allocate(int64_t bytes, MemoryKind kind) override;
  absl::StatusOr<PackedMatrix> Pack(const PackWeightsArgs& args) override;
  ModelOps& ops() override;
  OperatorLibrary& library() override;
  absl::Status CopyPieces(Lane lane, std::span<const CopyPiece> pieces) override;
  absl::StatusOr<Mark> MarkNow(Lane lane) override;
  absl::Status After(Lane lane, Mark mark) override;
  absl::Status EnablePeer(const Device& peer) override;
  absl::Status AfterPeer(Lane lane, const Device& peer, Mark mark) override;
  absl::StatusOr<bool> IsDone(Mark mark) override;
  absl::StatusOr<std::unique_ptr<Graph>> Capture(absl::FunctionRef<absl::Status()>) override;
  absl::StatusOr<Mark> Join(const Device& peer, Mark begin,
                            absl::FunctionRef<absl::Status()>) override;
  absl::Status Launch(const Graph&) override;
  int32_t LongestReplay(int32_t rows, const ModelNeeds&) const override {
    return options_.longest_replay / rows;
  }
  absl::Status Synchronize() override;

 private:
  class Ops;
  class Library;
  class Arena;
  struct LateGraph;
  // Behind a device's own lanes that of what it has in others' graphs.
  static constexpr Lane kGraphLane = static_cast<Lane>(kNumLanes);
  // Of marks that are places in a graph.
  static constexpr uint64_t kInGraph = uint64_t{1} << 63;
  // How many works of each lane have ended.
  using Ends = std::array<uint64_t, kNumLanes + 1>;
  struct Work {
    std::function<void()> run;  // Null: only waits.
    Mark after;
    std::shared_ptr<const Ends> of = nullptr;  // Whose mark it is; null: this device's.
  };
  struct LaneState {
    std::deque<Work> works;
    uint64_t enqueued = 0;
    uint64_t told = 0;  // Marks up to this have been told to be done.
  };

  static int64_t Now(const int64_t& count) {
    const std::lock_guard lock(mutex_);
    return count;
  }
  absl::Status Enqueue(Lane lane, Work work);
  void EnqueueLocked(Lane lane, Work work);
  // What comes on kCompute amid a capture comes behind a mark of it.
  absl::Status FollowInGraph(const LateDevice& other, Mark mark);
  Mark MarkInGraph() const;
  // Whether the call may come now: not of a lost device, nor, of kCompute, amid a capture.
  absl::Status MayCall(Lane lane) const;
  // Counts down to the failure that FailNext asked for.
  absl::Status FailIfTold(const std::string& name);
  absl::Status EnqueueOp(const char* name, std::function<absl::Status()> op);
  void RunLanes(const std::stop_token& ending);
  bool IsIdle() const;
  // A lane whose first work may run, or null.
  LaneState* PickLane();
  static bool Ended(const Ends& ends, Mark mark) {
    return ends[static_cast<int>(mark.lane)] >= mark.number;
  }

  const LateOptions options_;
  DeviceInfo info_;
  const std::unique_ptr<CpuKernels> kernels_;
  const std::shared_ptr<Arena> arena_;
  const std::unique_ptr<Ops> ops_;
  const std::unique_ptr<Library> library_;

  // Of all devices, which may wait for each other.
  static inline std::mutex mutex_;
  static inline std::condition_variable_any changed_;
  Random random_;
  std::array<LaneState, kNumLanes + 1> lanes_;
  const std::shared_ptr<Ends> ends_ = std::make_shared<Ends>();
  std::vector<std::shared_ptr<Arena>> open_;  // While a work runs: its own and its peers' memory.
  std::map<std::string, int> failing_;
  // What kCompute gets now goes there, into this device's part; at all only while it is amid its
  // Capture or Join.
  LateGraph* recording_ = nullptr;
  size_t part_ = 0;
  bool is_amid_ = false;
  bool running_ = false;
  bool lost_ = false;
  int permits_ = 0;  // Works that questions have let run.
  int64_t lose_at_ = -1;
  int64_t hang_at_ = -1;
  int64_t num_works_ = 0;
  int64_t num_allocations_ = 0;
  int64_t num_launches_ = 0;
  const std::shared_ptr<std::atomic<int64_t>> taken_ = std::make_shared<std::atomic<int64_t>>(0);
  std::jthread thread_;  // Last: it uses all of the above.
};

}  // namespace baton
