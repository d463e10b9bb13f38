#include "kernels/cuda/weight_rows.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "absl/synchronization/mutex.h"
#include "common/base/mapped_pages.h"
#include "common/base/status.h"
#include "kernels/cuda/floats.h"
#include "kernels/cuda/weights.h"

namespace baton::cuda {
namespace {

// What a thread takes at a time: one of each chunk for many threads, large beside what it costs to
// ask for its pages, and kept by the cache of a core.
constexpr int64_t kTaskBytes = int64_t{128} << 10;

template <typename From, typename To>
void RoundRow(const std::byte* from, int64_t count, std::byte* to) {
  for (int64_t i = 0; i < count; ++i) {
    From x;
    std::memcpy(&x, from + i * sizeof(From), sizeof(From));
    const To y = FromFloat<To>(ToFloat(x));
    std::memcpy(to + i * sizeof(To), &y, sizeof(To));
  }
}

using RoundRowFn = void (*)(const std::byte* from, int64_t count, std::byte* to);
template <typename To>
RoundRowFn RoundTo(DType from) {
  if (from == DType::kF32) return RoundRow<float, To>;
  return from == DType::kF16 ? RoundRow<F16, To> : RoundRow<Bf16, To>;
}

// Of rows [first, first + count).
void CopyRows(const WeightRowsArgs& args, int64_t first, int64_t count, std::byte* to) {
  const WeightRows& part = args.part;
  const int64_t size = SizeOf(args.dtype), stride = RowStride(args.k) * size;
  const int64_t row_bytes = args.k * size;
  const bool is_dense = part.row_stride == 0 || part.row_stride == args.k;
  if (part.dtype == args.dtype && is_dense && row_bytes == stride) {
    std::memcpy(to, part.Row(first, args.k), static_cast<size_t>(count * stride));
    return;
  }
  const RoundRowFn round = part.dtype == args.dtype     ? nullptr
                           : args.dtype == DType::kBF16 ? RoundTo<Bf16>(part.dtype)
                                                        : RoundTo<F16>(part.dtype);
  // Besides what is behind rows: short copies to memory that is in no cache take twice the time.
  std::memset(to, 0, static_cast<size_t>(count * stride));
  for (int64_t row = first; row < first + count; ++row, to += stride) {
    const std::byte* const from = part.Row(row, args.k);
    if (round == nullptr) {
      std::memcpy(to, from, static_cast<size_t>(row_bytes));
    } else {
      round(from, args.k, to);
    }
  }
}

std::span<const std::byte> BytesOf(const WeightRowsArgs& args, int64_t first, int64_t count) {
  const std::byte* const begin = args.part.Row(first, args.k);
  const std::byte* const last = args.part.Row(first + count - 1, args.k);
  return {begin, static_cast<size_t>(last - begin + args.k * SizeOf(args.part.dtype))};
}

// The first failure of several threads.
class Failure {
 public:
  void Update(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (status.ok()) return;
    const absl::MutexLock lock(&mutex_);
    status_.Update(status);
  }
  absl::Status status() ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status CopyWeightRows(const WeightRowsArgs& args, std::byte* to) {
  const int64_t stride = RowStride(args.k) * SizeOf(args.dtype);
  const int64_t rows = std::max(int64_t{1}, kTaskBytes / stride);
  const int64_t tasks = (args.count + rows - 1) / rows;
  Failure failure;
  const auto copy = [&](int64_t task, int) {
    const int64_t at = task * rows, count = std::min(rows, args.count - at);
    const absl::Status readable = TouchPages(BytesOf(args, args.first + at, count));
    failure.Update(readable);
    if (readable.ok()) CopyRows(args, args.first + at, count, to + at * stride);
  };
  if (args.threads != nullptr) {
    args.threads->ParallelFor(tasks, copy);
  } else {
    for (int64_t task = 0; task < tasks; ++task) copy(task, 0);
  }
  return failure.status();
}

}  // namespace baton::cuda
