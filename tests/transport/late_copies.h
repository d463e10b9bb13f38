#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "common/base/random.h"
#include "tests/transport/copying_device.h"

namespace baton {

// A device that only copies, on one lane, and late: each copy runs, in the order of the lane, after
// a number of questions whether it is done that the seed draws; its list of pieces is read then.
// Pinned memory is poisoned at first. One thread.
class LateCopies : public CopyingDevice {
 public:
  explicit LateCopies(uint64_t seed) : CopyingDevice("late copies"), random_(seed) {}

  absl::StatusOr<Buffer> Allocate(int64_t bytes, MemoryKind kind) override;
  absl::Status CopyPieces(Lane lane, std::span<const CopyPiece> pieces) override;
  absl::StatusOr<Mark> MarkNow(Lane lane) override;
  absl::StatusOr<bool> IsDone(Mark mark) override;

  // What the next call says, or the one so many calls behind it.
  void FailNext(absl::Status status, int skip = 0) {
    error_ = std::move(status);
    skip_ = skip;
  }
  // From now on no copy runs, until Resume.
  void Hang() { hangs_ = true; }
  void Resume() { hangs_ = false; }
  int64_t copies() const { return copies_; }
  int64_t questions() const { return questions_; }

 private:
  absl::Status FailIfTold();

  Random random_;
  std::deque<std::span<const CopyPiece>> queued_;
  bool hangs_ = false;
  int delay_ = 0;  // Questions until the first of them runs.
  uint64_t enqueued_ = 0;
  uint64_t done_ = 0;
  int64_t copies_ = 0;
  int64_t questions_ = 0;
  absl::Status error_;
  int skip_ = 0;  // Calls before that error.
};

}  // namespace baton
