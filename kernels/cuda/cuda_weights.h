#pragma once

#include <array>

#include "absl/status/statusor.h"
#include "kernels/api/device.h"
#include "kernels/cuda/weight_rows.h"

namespace baton::cuda {

// Brings weights to a device: rounded to what it computes in, rows padded with zeros to 16 bytes,
// through a ring of pinned chunks: threads fill one while those before it are copied.
class WeightLoader {
 public:
  // All together they stay in a processor's cache.
  static constexpr int64_t kChunkBytes = int64_t{2} << 20;

  explicit WeightLoader(Device* device) : device_(device) {}

  // As Device::PackBy; null: the caller alone reads. After an error nothing is under way any more.
  absl::StatusOr<PackedMatrix> Pack(const PackWeightsArgs& args, ThreadPool* threads);

 private:
  struct Chunk {
    Buffer memory;     // The descriptor of its copy, then rows.
    Mark copied;
  };
  // All rows of a part, one below the other.
  absl::Status CopyPart(WeightRowsArgs rows, std::byte* to);
  absl::Status FlushChunk(std::byte* to, int64_t bytes);
  absl::StatusOr<Chunk*> NextChunk(int64_t row_bytes);

  Device* device_;
  std::array<Chunk, 4> chunks_;
  size_t current_ = 0;
};

}  // namespace baton::cuda
