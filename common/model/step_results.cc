#include "common/model/step_results.h"

#include <utility>

#include "common/base/status.h"

namespace baton {
namespace {

constexpr int64_t kLogits = 64;
static_assert(sizeof(CopyPiece) <= kLogits);

// Of so many rows, in whole units of pieces.
int64_t LogitBytes(int64_t count, int64_t vocab_size) {
  return (count * vocab_size * int64_t{sizeof(float)} + 7) / 8 * 8;
}

}  // namespace

absl::StatusOr<StepResults> StepResults::Create(Device& device, Kernels& host,
                                                const ModelInfo& info) {
  Buffer copied;
  if (!device.info().unified) {
    const int64_t bytes = LogitBytes(device.info().logit_rows, info.vocab_size);
    ASSIGN_OR_RETURN(copied, device.Allocate(kLogits + bytes, MemoryKind::kPinned));
  }
  return StepResults(device, host, info, std::move(copied));
}

StepResults::StepResults(Device& device, Kernels& host, const ModelInfo& info, Buffer copied)
    : device_(&device),
      vocab_size_(info.vocab_size),
      reader_(&host, info.vocab_size, info.eos_token_ids),
      copied_(std::move(copied)) {}

void StepResults::Build(const StepPlan& plan) { wanted_ = WantedRows(plan, results_); }

absl::Status StepResults::Enqueue(int64_t first, int64_t count, Floats logits) {
  slice_ = std::span<const LogitRow>(wanted_).subspan(first, count);
  logits_ = logits.f32();
  if (device_->info().unified) return absl::OkStatus();
  logits_ = copied_.floats(DType::kF32, kLogits / int64_t{sizeof(float)}).f32();
  auto* const piece = copied_.array<CopyPiece>();
  *piece = {.from = static_cast<const std::byte*>(logits.data),
            .to = copied_.data() + kLogits,
            .bytes = LogitBytes(count, vocab_size_)};
  return device_->CopyPieces(Lane::kCompute, {piece, 1});
}

void StepResults::Finish() {
  reader_.Read({logits_, slice_.size() * static_cast<size_t>(vocab_size_)}, slice_);
}

}  // namespace baton
