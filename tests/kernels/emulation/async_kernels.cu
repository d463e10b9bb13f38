#include "tests/kernels/emulation/async_kernels.h"

#include <array>

#include "kernels/cuda/dialect_sm90.h"
#include "kernels/cuda/floats.h"

namespace baton::detectors {

constexpr int kRows = 64, kColumns = 128, kDepth = 64;
constexpr int kTileBytes = (kRows + kColumns) * kDepth * 2;

struct Tiles {
  alignas(1024) cuda::Bf16 a[kRows][kDepth];
  alignas(1024) cuda::Bf16 b[kColumns][kDepth];
  cuda::Mbarrier full, empty, other;
};

BATON_DEVICE void CopyTiles(AsyncFault fault, Tiles& s, const cuda::TensorMap& a,
                            const cuda::TensorMap& b) {
  if (fault == AsyncFault::kNoExpectation) {
    cuda::CopyBox(s.a, a, s.full, 0, 0, 0);
    cuda::Arrive(s.full);
    return;
  }
  const int error = fault == AsyncFault::kTooFewBytes ? -16 : 16;
  const bool errs = fault == AsyncFault::kTooFewBytes || fault == AsyncFault::kTooManyBytes;
  cuda::ArriveExpecting(s.full, kTileBytes + (errs ? error : 0));
  if (fault == AsyncFault::kArrivesTwice) cuda::Arrive(s.full);
  cuda::CopyBox(s.a, a, s.full, 0, 0, 0);
  cuda::CopyBox(s.b, b, s.full, 0, 0, 0);
}

// Another tile of b into the same place.
BATON_DEVICE void CopyAgain(AsyncFault fault, Tiles& s, const cuda::TensorMap& b) {
  if (fault != AsyncFault::kReusesUnasked && fault != AsyncFault::kReusesTooEarly) {
    cuda::Wait(s.empty, 0);
  } else {
    cuda::Wait(s.other, 0);  // Which tells when, and of nothing else.
  }
  cuda::ArriveExpecting(s.full, static_cast<int>(sizeof(s.b)));
  cuda::CopyBox(s.b, b, s.full, 0, 0, 0);
}

BATON_DEVICE void WriteTile(AsyncFault fault, Tiles& s) {
  for (int row = static_cast<int>(threadIdx.x) / kDepth; row < kRows; row += 2) {
    s.a[row][threadIdx.x % kDepth].bits = 0;
  }
  if (fault == AsyncFault::kProxyFence) cuda::FenceProxy();
}

BATON_DEVICE void Multiply(AsyncFault fault, Tiles& s, float (&sums)[64]) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (fault == AsyncFault::kSplitWarpgroup && warp == 3) return;
  for (float& sum : sums) sum = 0;
  if (fault != AsyncFault::kNoSumsFence) cuda::FenceSums(sums);
  if (fault == AsyncFault::kWritesFencedSums) sums[3] = 1;
  const int first = fault == AsyncFault::kMisplacedTile ? 1 : 0;
  const int column = fault == AsyncFault::kOtherTiles && warp == 2 ? 8 : 0;
  for (int k = 0; k < kDepth; k += 16) {
    cuda::MultiplyAsync(sums, &s.a[0][k], &s.b[first][(k + column) % kDepth]);
  }
  cuda::CommitProducts();
}

BATON_DEVICE void Store(const float (&sums)[64], float* out) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = 0; i < 64; ++i) {
    const int row = 16 * warp + lane / 4 + i / 2 % 2 * 8;
    out[row * kColumns + i / 4 * 8 + lane % 4 * 2 + i % 2] = sums[i];
  }
}

BATON_DEVICE void Consume(AsyncFault fault, Tiles& s, float* out) {
  float sums[64];
  const bool leads = threadIdx.x % 32 == 0;
  if (fault != AsyncFault::kNoWait) cuda::Wait(s.full, fault == AsyncFault::kWrongPhase ? 1 : 0);
  if (fault == AsyncFault::kNoProxyFence || fault == AsyncFault::kProxyFence) {
    WriteTile(fault, s);
    cuda::Arrive(s.other);
    cuda::Wait(s.other, 0);
  }
  Multiply(fault, s, sums);
  if (fault == AsyncFault::kReusesTooEarly) cuda::Arrive(s.other);
  if (fault == AsyncFault::kWritesSums) sums[5] = 1;
  if (fault == AsyncFault::kReadsSums) Store(sums, out);
  if (fault == AsyncFault::kProductNotWaited) return;
  if (fault == AsyncFault::kReusesTooEarly) cuda::Wait(s.full, 1);
  if (fault == AsyncFault::kReusesUnasked) cuda::Arrive(s.other);
  cuda::FinishSums(sums);
  if (leads) cuda::Arrive(s.empty);
  if (fault == AsyncFault::kNone) cuda::Wait(s.full, 1);
  if (fault != AsyncFault::kReadsSums) Store(sums, out);
}

__global__ void AsyncKernel(AsyncFault fault, const __grid_constant__ cuda::TensorMap a,
                            const __grid_constant__ cuda::TensorMap b, float* out) {
  auto& s = cuda::SharedMemory<Tiles>();
  if (threadIdx.x == 0 && fault != AsyncFault::kUninitialised) {
    cuda::InitMbarrier(s.full, 1);
    cuda::InitMbarrier(s.empty, 4);
    cuda::InitMbarrier(s.other, 128);
    if (fault == AsyncFault::kInitialisedTwice) cuda::InitMbarrier(s.full, 1);
    if (fault != AsyncFault::kNoInitFence) cuda::FenceProxy();
  }
  if (fault != AsyncFault::kNoInitBarrier) __syncthreads();
  if (threadIdx.x < 128) return Consume(fault, s, out);
  if (threadIdx.x > 128) return;
  CopyTiles(fault, s, a, b);
  const bool copies_again = fault == AsyncFault::kNone || fault == AsyncFault::kNeverWaited ||
                            fault == AsyncFault::kReusesTooEarly ||
                            fault == AsyncFault::kReusesUnasked;
  if (copies_again) CopyAgain(fault, s, b);
}

struct RowTiles {
  alignas(1024) cuda::Bf16 b[kColumns / kDepth][kDepth][kDepth];
  cuda::Mbarrier full;
};

__global__ void HeldKernel(HeldFault fault, const uint16_t* a,
                           const __grid_constant__ cuda::TensorMap b, float* out) {
  auto& s = cuda::SharedMemory<RowTiles>();
  if (threadIdx.x == 0) {
    cuda::InitMbarrier(s.full, 1);
    cuda::FenceProxy();
    cuda::ArriveExpecting(s.full, static_cast<int>(sizeof(s.b)));
    for (int c = 0; c < kColumns / kDepth; ++c) {
      cuda::CopyBox(s.b[c], b, s.full, c * kDepth, 0, 0, 0);
    }
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t held[kDepth / 4];
  for (int i = 0; i < kDepth / 4; ++i) {
    const int row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4 + i % 2 * 8;
    const int column = i / 4 * 16 + lane % 4 * 2 + i / 2 % 2 * 8;
    held[i] = a[row * kDepth + column] | uint32_t{a[row * kDepth + column + 1]} << 16;
  }
  float sums[64];
  for (float& sum : sums) sum = 0;
  cuda::Wait(s.full, 0);
  fault == HeldFault::kNoFence ? cuda::FenceSums(sums) : cuda::FenceSums(sums, held);
  if (fault == HeldFault::kWritesFencedOperand) held[5] ^= 1;
  for (int step = 0; step < kDepth / 16; ++step) {
    const int row = fault == HeldFault::kMisplacedRows ? 4 : 16 * step;
    cuda::MultiplyAsync(sums, held, step, &s.b[0][row][0]);
  }
  cuda::CommitProducts();
  if (fault == HeldFault::kWritesOperand) held[9] ^= 1;
  cuda::FinishSums(sums, held);
  Store(sums, out);
}

struct Box {
  alignas(1024) uint16_t rows[4][64];
  cuda::Mbarrier full;
};

__global__ void BoxKernel(const __grid_constant__ cuda::TensorMap map, BoxArgs args) {
  auto& s = cuda::SharedMemory<Box>();
  if (threadIdx.x == 0) {
    cuda::InitMbarrier(s.full, 1);
    cuda::FenceProxy();
    cuda::ArriveExpecting(s.full, sizeof(s.rows));
    cuda::CopyBox(s.rows, map, s.full, args.x, args.y, args.z);
    cuda::Wait(s.full, 0);
    for (int i = 0; i < 4 * 64; ++i) args.out[i] = s.rows[i / 64][i % 64];
  }
}

cudaError_t MapOf(cuda::TensorMap& map, const uint16_t* data, uint64_t rows) {
  const std::array<uint64_t, 3> sizes = {kDepth, rows, 1};
  const std::array<uint64_t, 2> strides = {kDepth * 2, kDepth * 2};
  const std::array<uint32_t, 3> box = {kDepth, static_cast<uint32_t>(rows), 1};
  return cuda::EncodeTensorMap(map, data, sizes, strides, box);
}

cudaError_t RunAsyncFault(AsyncFault fault, const uint16_t* a, const uint16_t* b, float* out,
                          cudaStream_t stream) {
  cuda::TensorMap map_a, map_b;
  if (MapOf(map_a, a, kRows) != cudaSuccess) return cudaErrorInvalidValue;
  if (MapOf(map_b, b, kColumns) != cudaSuccess) return cudaErrorInvalidValue;
  return cuda::Launch(AsyncKernel, 1, 160, sizeof(Tiles), stream, fault, map_a, map_b, out);
}

cudaError_t RunHeldFault(HeldFault fault, const uint16_t* a, const uint16_t* b, float* out,
                         cudaStream_t stream) {
  cuda::TensorMap map;
  const std::array<uint64_t, 4> sizes = {kColumns, kDepth, 1, 1};
  const std::array<uint64_t, 3> strides = {kColumns * 2, kColumns * 2, kColumns * 2};
  const std::array<uint32_t, 4> box = {kDepth, kDepth, 1, 1};
  const cudaError_t error = cuda::EncodeTensorMap(map, b, sizes, strides, box);
  if (error != cudaSuccess) return error;
  return cuda::Launch(HeldKernel, 1, 128, sizeof(RowTiles), stream, fault, a, map, out);
}

cudaError_t RunBox(const BoxArgs& args, cudaStream_t stream) {
  cuda::TensorMap map;
  const std::array<uint64_t, 3> sizes = {args.columns, args.rows, args.layers};
  const std::array<uint64_t, 2> strides = {args.stride, args.stride * args.rows};
  const std::array<uint32_t, 3> box = {64, 4, 1};
  const cudaError_t error = cuda::EncodeTensorMap(map, args.data, sizes, strides, box);
  if (error != cudaSuccess) return error;
  return cuda::Launch(BoxKernel, 1, 32, sizeof(Box), stream, map, args);
}

}  // namespace baton::detectors
