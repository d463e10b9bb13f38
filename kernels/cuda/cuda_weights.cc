#include "kernels/cuda/cuda_weights.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/api/require.h"
#include "kernels/cuda/weights.h"

namespace baton::cuda {
namespace {

constexpr int64_t kRowsBegin = 64;  // Behind the descriptor.

// What weights are kept in. Untold, f16 where all of them are.
DType StoredType(const PackWeightsArgs& args) {
  if (args.compute != DType::kF32) return args.compute;
  const bool all_f16 = std::all_of(args.parts, args.parts + args.num_parts, [](const auto& part) {
    return part.dtype == DType::kF16;
  });
  return all_f16 ? DType::kF16 : DType::kBF16;
}

absl::Status CheckParts(const PackWeightsArgs& args) {
  if (args.num_parts < 1 || args.k < 1) {
    return absl::InvalidArgumentError("weights: must have rows and columns");
  }
  for (int64_t i = 0; i < args.num_parts; ++i) {
    const std::string part = absl::StrCat("parts[", i, "]");
    RETURN_IF_ERROR(RequireComputeType(args.parts[i].dtype, part + ".dtype"));
    RETURN_IF_ERROR(RequireStrideOrDense(args.parts[i].row_stride, args.k, part + ".row_stride"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WeightLoader::Chunk*> WeightLoader::NextChunk(int64_t row_bytes) {
  Chunk& chunk = chunks_[current_];
  const int64_t bytes = kRowsBegin + std::max(kChunkBytes, row_bytes);
  RETURN_IF_ERROR(Wait(*device_, chunk.copied));
  if (chunk.memory.size_bytes() < bytes) {
    ASSIGN_OR_RETURN(chunk.memory, device_->Allocate(bytes, MemoryKind::kPinned));
  }
  return &chunk;
}

absl::Status WeightLoader::FlushChunk(std::byte* to, int64_t bytes) {
  Chunk& chunk = chunks_[current_];
  auto* piece = chunk.memory.array<CopyPiece>();
  *piece = {chunk.memory.data() + kRowsBegin, to, bytes};
  RETURN_IF_ERROR(device_->CopyPieces(Lane::kCopies, {piece, 1}));
  ASSIGN_OR_RETURN(chunk.copied, device_->MarkNow(Lane::kCopies));
  current_ = (current_ + 1) % chunks_.size();
  return absl::OkStatus();
}

absl::Status WeightLoader::CopyPart(WeightRowsArgs rows, std::byte* to) {
  const int64_t row_bytes = RowStride(rows.k) * SizeOf(rows.dtype);
  const int64_t most = std::max(int64_t{1}, kChunkBytes / row_bytes);
  for (; rows.first < rows.part.num_rows; rows.first += rows.count) {
    rows.count = std::min(rows.part.num_rows - rows.first, most);
    ASSIGN_OR_RETURN(Chunk * chunk, NextChunk(row_bytes));
    RETURN_IF_ERROR(CopyWeightRows(rows, chunk->memory.data() + kRowsBegin));
    RETURN_IF_ERROR(FlushChunk(to + rows.first * row_bytes, rows.count * row_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<PackedMatrix> WeightLoader::Pack(const PackWeightsArgs& args, ThreadPool* threads) {
  RETURN_IF_ERROR(CheckParts(args));
  const DType dtype = StoredType(args);
  int64_t num_rows = 0;
  for (int64_t i = 0; i < args.num_parts; ++i) num_rows += args.parts[i].num_rows;
  const int64_t row_bytes = RowStride(args.k) * SizeOf(dtype);
  ASSIGN_OR_RETURN(Buffer memory,
                   device_->Allocate(num_rows * row_bytes, MemoryKind::kDevice));
  std::byte* to = memory.data();
  for (int64_t i = 0; i < args.num_parts; ++i) {
    const absl::Status copied =
        CopyPart({.part = args.parts[i], .k = args.k, .dtype = dtype, .threads = threads}, to);
    if (!copied.ok()) {
      device_->Synchronize().IgnoreError();  // What is on its way goes to memory that is freed now.
      return copied;
    }
    to += args.parts[i].num_rows * row_bytes;
  }
  return PackedMatrix(num_rows, args.k, dtype, WeightFormat::kCuda, std::move(memory));
}

}  // namespace baton::cuda
