#include "kernels/cuda/sample.h"

#include <algorithm>

#include "kernels/cuda/operands.h"
#include "kernels/cuda/sample_row.h"

namespace baton::cuda {
namespace sample {

constexpr int kTakeThreads = 128;

// A block for each row, here and below.
__global__ void __launch_bounds__(kMaxThreads, 1) SampleKernel(SampleArgs args) {
  auto& shared = SharedMemory<Shared>();
  const SampleRow row = args.rows[blockIdx.x];
  const float* raw = args.logits + row.logit_row * args.logits_stride;
  const Ids ids(0, args.vocab_size);
  const Chunks chunks(args.vocab_size);
  int best = Likeliest(shared, chunks, raw);
  SampleResult result;
  result.is_bad = IsFinite(raw[best]) ? 0 : 1;
  if (result.is_bad == 0) {
    if (row.num_top >= 0) {
      result.max = raw[best];
      Mass sum = 0;
      chunks.ForEach(raw, [&](int, float logit) { sum += RawWeightOf(logit, result.max); });
      result.sum = BlockSum(shared, sum);
      WriteTop(shared, chunks, raw, min(row.num_top, args.vocab_size), args.top, blockIdx.x);
    }
    const float* x = raw;
    if (IsAdjusted(row)) {
      x = Adjust(args, row, ids, raw, blockIdx.x);
      best = Likeliest(shared, chunks, x);
    }
    if (x[best] != x[best]) {  // Penalties beyond all bounds of a request: as on a CPU.
      result = {.is_bad = 1};
    } else {
      const bool draws = row.scale > 0 && IsFinite(x[best]);
      result.token = draws ? Draw(shared, ids, x, x[best], args.vocab_size, row) : best;
      result.token_logit = raw[result.token];
    }
  }
  if (threadIdx.x == 0) args.results[blockIdx.x] = result;
}

__global__ void __launch_bounds__(kMaxThreads, 1) ScoreKernel(ScoreArgs args) {
  auto& shared = SharedMemory<Shared>();
  const ScoreRow row = args.rows[blockIdx.x];
  const float* x = args.logits + row.logit_row * args.logits_stride;
  const Chunks chunks(args.vocab_size);
  const float max = x[Likeliest(shared, chunks, x)];
  ScoreResult result;
  result.is_bad = IsFinite(max) ? 0 : 1;
  if (result.is_bad == 0) {
    result.token_logit = x[row.token];
    result.max = max;
    const Mass own = PlaceOf(x[row.token], row.token);
    Mass before = 0, sum = 0;
    chunks.ForEach(x, [&](int id, float logit) {
      before += PlaceOf(logit, id) > own ? 1 : 0;
      sum += RawWeightOf(logit, max);
    });
    result.sum = BlockSum(shared, sum);
    result.rank = 1 + static_cast<int>(BlockSum(shared, before));
    WriteTop(shared, chunks, x, min(row.num_top, args.vocab_size), args.top, blockIdx.x);
  }
  if (threadIdx.x == 0) args.results[blockIdx.x] = result;
}

// A thread for each token.
__global__ void __launch_bounds__(kTakeThreads) TakeTokensKernel(TakeTokensArgs args) {
  const int64_t index = int64_t{blockIdx.x} * kTakeThreads + threadIdx.x;
  if (index >= args.count) return;
  const TakenToken taken = args.taken[index];
  args.tokens[taken.to] = max(0, args.results[taken.row].token);
}

}  // namespace sample

namespace {

constexpr int32_t kLongRow = 8192;
constexpr int64_t kBlocks = 128;  // As many as GPUs have multiprocessors.

template <typename Kernel, typename Args>
cudaError_t LaunchRows(Kernel kernel, const Args& args, cudaStream_t stream) {
  if (args.num_rows == 0) return cudaSuccess;
  if (args.vocab_size < 1 || args.vocab_size > kMaxVocabulary) return cudaErrorInvalidValue;
  // A short row has no work for more; results do not depend on it.
  const unsigned threads = args.vocab_size < kLongRow ? 128 : sample::kMaxThreads;
  return Launch(kernel, BlocksFor(args.num_rows, 1), threads, sizeof(sample::Shared),
                stream, args);
}

}  // namespace

cudaError_t Sample(const SampleArgs& args, std::span<float> scratch, cudaStream_t stream) {
  const bool divides = args.num_rows > 0 && args.vocab_size >= kLongRow &&
                       static_cast<int64_t>(scratch.size_bytes()) >= SampleScratchBytes(args);
  if (divides) {
    const auto parts = static_cast<int>(std::clamp<int64_t>(kBlocks / args.num_rows, 1, 32));
    return SampleByParts(args, scratch.data(), parts, stream);
  }
  return LaunchRows(sample::SampleKernel, args, stream);
}

cudaError_t Score(const ScoreArgs& args, cudaStream_t stream) {
  return LaunchRows(sample::ScoreKernel, args, stream);
}

cudaError_t TakeTokens(const TakeTokensArgs& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  return Launch(sample::TakeTokensKernel, BlocksFor(args.count, sample::kTakeThreads),
                sample::kTakeThreads, 0, stream, args);
}

}  // namespace baton::cuda
