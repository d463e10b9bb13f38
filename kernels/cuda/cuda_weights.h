#pragma once

#include <array>

#include "absl/status/statusor.h"
#include "kernels/api/device.h"

namespace baton::cuda {

// Brings weights to a device: rounded to what it computes in, rows padded with zeros to 16 bytes,
// through two pinned chunks of which one is filled while the other is copied.
class WeightLoader {
 public:
  static constexpr int64_t kChunkBytes = int64_t{4} << 20;

  explicit WeightLoader(Device* device) : device_(device) {}

  // The parts have been read on return.
  absl::StatusOr<PackedMatrix> Pack(const PackWeightsArgs& args);

 private:
  struct Chunk {
    Buffer memory;     // The descriptor of its copy, then rows.
    Mark copied;
  };
  absl::Status FlushChunk(std::byte* to, int64_t bytes);
  absl::StatusOr<Chunk*> NextChunk(int64_t row_bytes);

  Device* device_;
  std::array<Chunk, 2> chunks_;
  int current_ = 0;
};

}  // namespace baton::cuda
