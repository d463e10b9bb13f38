#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/dtype.h"
#include "common/base/thread_pool.h"
#include "common/base/time.h"
#include "kernels/api/buffer.h"
#include "kernels/api/copy_piece.h"
#include "kernels/api/model_args.h"
#include "kernels/api/model_ops.h"
#include "kernels/api/operator_library.h"
#include "kernels/api/packed_matrix.h"

namespace baton {

// Where a device works: each lane in the order of its calls; none waits for another by itself.
// kExchange has what waits for other processes, and may stand still for them.
enum class Lane : uint8_t { kCompute, kCopies, kTransfer, kExchange };
inline constexpr int kNumLanes = 4;

// A point of a lane, done when all that was enqueued before it is. A plain value.
struct Mark {
  Lane lane = Lane::kCompute;
  uint64_t number = 0;  // 0: done.
};

// A device that has not ended its work after so long a time of this process's own running
// (common/base/running_time.h) is taken for lost. Others have given this worker up long before.
inline constexpr Duration kDeviceLimit = std::chrono::seconds(30);

struct DeviceInfo {
  std::string name;         // For logs, e.g. "x86_64_v4", "NVIDIA H100 80GB HBM3".
  bool unified = false;     // Host and device memory are one, and every call has ended on return.
  bool has_graphs = false;
  int64_t row_alignment = 1;  // In elements: strides of activations are multiples of it.
  int64_t logit_rows = 32;    // Rows of one product with the output layer.
  int32_t max_top = 20;  // Alternatives of a row that Sample and Score tell; more are the CPU's.
  Duration limit = kDeviceLimit;
  // What differed when its fastest kernels were tried, so that slower ones compute, with the bits
  // that all have; empty: nothing.
  std::string foregone;
};

struct DeviceMemory {
  int64_t total = 0;
  int64_t free = 0;
  int64_t taken = 0;  // By this Device's own buffers, with what is left over between them.
};

// What of a model a device may not be able to do.
struct ModelNeeds {
  DType compute = DType::kF32;
  DType kv = DType::kF32;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocab_size = 0;
  int32_t block_size = 0;  // Tokens of a block of K and V.
};

// Calls to be made again at once. Goes before its device.
class Graph {
 public:
  virtual ~Graph() = default;
};

// A processor with its memory. Calls enqueue: later calls on the same lane may use results at once,
// the host when a mark after them is done.
//
// Threads: ops(), library(), kCompute and kCopies belong to one (the compute thread), kTransfer and
// kExchange to another. Allocate, Pack and Capture: before the first step only, for they may wait
// for the whole device. Buffers, PackedMatrices and Graphs go before their device. Any call may say
// UNAVAILABLE, the device is lost; so does every later one.
class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;

  // Part of the numerics id: devices of one arithmetic give the same bits when what enters a
  // product with weights is rounded to `compute`.
  virtual std::string Arithmetic(DType compute) const = 0;

  // The fastest compute dtype here for weights of that dtype.
  virtual DType FastestCompute(DType weights) const = 0;

  // In what dtype activations that are rounded to `compute` are kept.
  virtual DType Activations(DType compute) const = 0;

  // At load, not at the first step: the error names what no kernel here serves.
  virtual absl::Status CheckModel(const ModelNeeds& needs) const = 0;

  // For logs: what of such a model only kernels compute that are slower than the device's fastest,
  // with the same bits. Empty: nothing.
  virtual std::string SlowerFor(const ModelNeeds& /*needs*/) const { return ""; }

  virtual absl::StatusOr<DeviceMemory> Memory() const = 0;

  // RESOURCE_EXHAUSTED names the size. Aligned to 64 bytes at least.
  virtual absl::StatusOr<Buffer> Allocate(int64_t bytes, MemoryKind kind) = 0;

  // The parts have been read on return. DATA_LOSS, of a GPU: the file that one lies in cannot be.
  virtual absl::StatusOr<PackedMatrix> Pack(const PackWeightsArgs& args) = 0;

  // The same, and the threads read the parts with the caller. A CPU has its own.
  virtual absl::StatusOr<PackedMatrix> PackBy(ThreadPool& /*threads*/,
                                              const PackWeightsArgs& args) {
    return Pack(args);
  }

  // They enqueue on kCompute.
  virtual ModelOps& ops() = 0;
  virtual OperatorLibrary& library() = 0;

  // The destinations share no byte with each other or with a source. `pieces` themselves lie in
  // pinned memory and stay until a mark after them is done.
  virtual absl::Status CopyPieces(Lane lane, std::span<const CopyPiece> pieces) = 0;

  // To where each piece says its sum. `pieces` and sums lie in pinned memory and stay
  // until a mark after them is done. UNIMPLEMENTED where NativeLane is.
  virtual absl::Status SumPieces(Lane /*lane*/, std::span<const SummedPiece> /*pieces*/) {
    return absl::UnimplementedError("no sums of pieces on this device");
  }

  // What libraries for this kind of device call the lane (a cudaStream_t). What the calling thread
  // asks of them from now on is for this device; any thread may. UNIMPLEMENTED: there are none.
  virtual absl::StatusOr<void*> NativeLane(Lane /*lane*/) {
    return absl::UnimplementedError("no libraries use this device");
  }

  virtual absl::StatusOr<Mark> MarkNow(Lane lane) = 0;

  // What is enqueued on the lane from now on begins when `mark` is done.
  virtual absl::Status After(Lane lane, Mark mark) = 0;

  // Lets what is enqueued here read and write the memory of another device of this kind. At load.
  // FAILED_PRECONDITION: there is no way from the one to the other.
  virtual absl::Status EnablePeer(const Device& /*peer*/) { return absl::OkStatus(); }

  // What is enqueued on the lane from now on begins when a mark of the peer is done. The mark has
  // been made, and at most kPeerMarks later ones of its lane, amid a capture kGraphPeerMarks: the
  // peer's thread may be making more.
  static constexpr int kPeerMarks = 256;
  static constexpr int kGraphPeerMarks = 2;
  virtual absl::Status AfterPeer(Lane /*lane*/, const Device& /*peer*/, Mark /*mark*/) {
    return absl::OkStatus();
  }

  // Never blocks. Called by the thread of the mark's lane.
  virtual absl::StatusOr<bool> IsDone(Mark mark) = 0;

  // What `enqueue` enqueues on kCompute, for Launch; nothing of it runs now. Arguments by value are
  // those of now for ever, memory is read at each launch. A mark of kCompute that is made amid a
  // capture is a place in the graph, for AfterPeer and Join until the capture ends. UNIMPLEMENTED
  // without has_graphs.
  virtual absl::StatusOr<std::unique_ptr<Graph>> Capture(
      absl::FunctionRef<absl::Status()> enqueue) = 0;

  // What `enqueue` enqueues on kCompute becomes part of the graph that a peer captures, behind
  // `begin`, a mark of it. Before the peer's capture ends it has to wait for the mark that this
  // returns, after an error for nothing; until then nothing else is enqueued on this kCompute.
  // Devices of one graph enqueue one at a time, whatever their threads.
  virtual absl::StatusOr<Mark> Join(const Device& /*peer*/, Mark /*begin*/,
                                    absl::FunctionRef<absl::Status()> /*enqueue*/) {
    return absl::UnimplementedError("no graphs over several devices of this kind");
  }

  // On the device that captured it. Its kCompute has all of the graph, whoever's that is: what was
  // enqueued on it comes before, what is after. The lanes of others know nothing of it.
  virtual absl::Status Launch(const Graph& graph) = 0;

  // The longest sequences of which a captured step of so many rows is as fast as the same calls:
  // how work is divided is settled when it is captured, for the longest ones.
  virtual int32_t LongestReplay(int32_t /*rows*/, const ModelNeeds& /*needs*/) const {
    return INT32_MAX;
  }

  // Waits for all lanes, as Wait does for one.
  virtual absl::Status Synchronize() = 0;

  // It hangs: from now on every call says UNAVAILABLE, nothing is freed but with the process, and
  // no destructor waits. From any thread.
  virtual void GiveUp() {}
};

// UNAVAILABLE: the device has not ended its work within that limit.
absl::Status NotEndedWithin(absl::string_view device, Duration limit);

// Asks until it is done; UNAVAILABLE as above.
absl::Status WaitUntil(absl::string_view device, Duration limit,
                       absl::FunctionRef<absl::StatusOr<bool>()> is_done);
// A device that has not ended its work in time is given up.
absl::Status WaitUntil(Device& device, Duration limit,
                       absl::FunctionRef<absl::StatusOr<bool>()> is_done);
absl::Status Wait(Device& device, Mark mark, Duration limit);
absl::Status Wait(Device& device, Mark mark);  // Within info().limit.

}  // namespace baton
