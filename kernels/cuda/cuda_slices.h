#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/api/buffer.h"

namespace baton::cuda {

// Cuts buffers out of larger pieces of a device's memory: CUDA gives whole granules, and may wait
// for all that runs before it does, which a model of many small matrices would pay for each. A
// piece goes with the last of its slices; the room of one that went before is not given out again,
// as what is loaded stays together. Any thread.
class CudaSlices {
 public:
  static constexpr int64_t kGranule = int64_t{2} << 20;
  static constexpr int64_t kLargestPiece = int64_t{256} << 20;
  // What is larger has memory of its own: a large piece is left with at most an eighth unused.
  static constexpr int64_t kLargestSlice = kLargestPiece / 8;

  static int64_t Granules(int64_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }
  // The piece to take for a slice where those that there are have taken `taken`: pieces grow with
  // what is loaded, so that there are few of them and a small model does not take a large one. What
  // has memory of its own, like a pool of K/V blocks that fills the device, makes none larger.
  static int64_t PieceFor(int64_t bytes, int64_t taken);
  // Bytes of all pieces that live.
  int64_t taken() ABSL_LOCKS_EXCLUDED(mutex_);

  // None: no piece has room.
  std::optional<Buffer> Cut(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // The first slice of a piece that is large enough.
  Buffer CutFrom(Buffer memory, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Piece {
    Buffer memory;
    int64_t used = 0;
  };
  static bool HasRoom(const Piece& piece, int64_t bytes) {
    return piece.used + bytes <= piece.memory.size_bytes();
  }
  static Buffer CutFrom(const std::shared_ptr<Piece>& piece, int64_t bytes);

  absl::Mutex mutex_;
  std::vector<std::weak_ptr<Piece>> pieces_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::cuda
