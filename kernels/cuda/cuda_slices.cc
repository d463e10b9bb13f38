#include "kernels/cuda/cuda_slices.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "kernels/cuda/dialect.h"

namespace baton::cuda {
namespace {

constexpr int64_t kAlignment = 256;  // As cudaMalloc's.

}  // namespace

int64_t CudaSlices::PieceFor(int64_t bytes, int64_t taken) {
  return Granules(std::max(bytes, std::min(taken / 8, kLargestPiece)));
}

int64_t CudaSlices::taken() {
  const absl::MutexLock lock(&mutex_);
  int64_t bytes = 0;
  for (const std::weak_ptr<Piece>& held : pieces_) {
    const std::shared_ptr<Piece> piece = held.lock();
    if (piece != nullptr) bytes += Granules(piece->memory.size_bytes());
  }
  return bytes;
}

Buffer CudaSlices::CutFrom(const std::shared_ptr<Piece>& piece, int64_t bytes) {
  std::byte* const data = piece->memory.data() + piece->used;
  const int64_t end = piece->used + bytes + kSliceGap;
  piece->used = (end + kAlignment - 1) / kAlignment * kAlignment;
  BeginSlice(data, static_cast<size_t>(bytes));
  return Buffer(data, bytes, std::shared_ptr<void>(data, [piece](void* slice) {
    EndSlice(slice);
  }));
}

std::optional<Buffer> CudaSlices::Cut(int64_t bytes) {
  const absl::MutexLock lock(&mutex_);
  std::erase_if(pieces_, [](const auto& piece) { return piece.expired(); });
  for (const std::weak_ptr<Piece>& held : pieces_) {
    const std::shared_ptr<Piece> piece = held.lock();
    if (piece != nullptr && HasRoom(*piece, bytes)) return CutFrom(piece, bytes);
  }
  return std::nullopt;
}

Buffer CudaSlices::CutFrom(Buffer memory, int64_t bytes) {
  const auto piece = std::make_shared<Piece>(std::move(memory));
  BATON_CHECK(HasRoom(*piece, bytes));
  const absl::MutexLock lock(&mutex_);
  pieces_.push_back(piece);
  return CutFrom(piece, bytes);
}

}  // namespace baton::cuda
