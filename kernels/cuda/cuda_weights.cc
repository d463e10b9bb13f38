#include "kernels/cuda/cuda_weights.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/api/require.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/floats.h"
#include "kernels/cuda/weights.h"

namespace baton::cuda {
namespace {

constexpr int64_t kRowsBegin = 64;  // Behind the descriptor.

template <typename From, typename To>
void RoundRow(const std::byte* from, int64_t count, std::byte* to) {
  for (int64_t i = 0; i < count; ++i) {
    From x;
    std::memcpy(&x, from + i * sizeof(From), sizeof(From));
    const To y = FromFloat<To>(ToFloat(x));
    std::memcpy(to + i * sizeof(To), &y, sizeof(To));
  }
}

template <typename From>
void RoundRow(const std::byte* from, int64_t count, DType dtype, std::byte* to) {
  return dtype == DType::kBF16 ? RoundRow<From, Bf16>(from, count, to)
                               : RoundRow<From, F16>(from, count, to);
}

// One row of `count` numbers, as it is where it has that type already.
void ConvertRow(const WeightRows& part, int64_t row, int64_t count, DType dtype, std::byte* to) {
  const std::byte* from = part.Row(row, count);
  if (part.dtype == dtype) {
    std::memcpy(to, from, static_cast<size_t>(count * SizeOf(dtype)));
  } else if (part.dtype == DType::kF32) {
    RoundRow<float>(from, count, dtype, to);
  } else if (part.dtype == DType::kF16) {
    RoundRow<F16>(from, count, dtype, to);
  } else {
    RoundRow<Bf16>(from, count, dtype, to);
  }
}

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
  current_ = 1 - current_;
  return absl::OkStatus();
}

absl::StatusOr<PackedMatrix> WeightLoader::Pack(const PackWeightsArgs& args) {
  RETURN_IF_ERROR(CheckParts(args));
  const DType dtype = StoredType(args);
  int64_t num_rows = 0;
  for (int64_t i = 0; i < args.num_parts; ++i) num_rows += args.parts[i].num_rows;
  const int64_t row_bytes = RowStride(args.k) * SizeOf(dtype);
  ASSIGN_OR_RETURN(Buffer memory,
                   device_->Allocate(num_rows * row_bytes, MemoryKind::kDevice));
  std::byte* to = memory.data();
  for (int64_t i = 0; i < args.num_parts; ++i) {
    const WeightRows& part = args.parts[i];
    for (int64_t row = 0; row < part.num_rows;) {
      ASSIGN_OR_RETURN(Chunk * chunk, NextChunk(row_bytes));
      const int64_t rows =
          std::min(part.num_rows - row, std::max(int64_t{1}, kChunkBytes / row_bytes));
      std::byte* out = chunk->memory.data() + kRowsBegin;
      std::memset(out, 0, static_cast<size_t>(rows * row_bytes));
      for (int64_t r = 0; r < rows; ++r) {
        ConvertRow(part, row + r, args.k, dtype, out + r * row_bytes);
      }
      RETURN_IF_ERROR(FlushChunk(to, rows * row_bytes));
      to += rows * row_bytes;
      row += rows;
    }
  }
  return PackedMatrix(num_rows, args.k, dtype, WeightFormat::kCuda, std::move(memory));
}

}  // namespace baton::cuda
