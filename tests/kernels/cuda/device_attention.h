#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_sm90.h"
#include "kernels/cuda/gemm_sm90.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace baton::cuda {

struct Result {
  std::vector<float> out, lse;
  bool operator==(const Result&) const = default;
};

// For blocks of the most warps.
inline size_t SharedBytes() {
#if defined(BATON_CUDA_DEVICE)
  int bytes = 0;
  EXPECT_EQ(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
            cudaSuccess);
  return bytes;
#else
  return 163 << 10;
#endif
}

struct RunOptions {
  bool scratch = false;
  bool ragged = false;
  DType out = DType::kF32;
  bool spread = false;  // K and V have gaps of every kind, each its own.
  size_t shared_bytes = SharedBytes();
  // Null: the form for every GPU, and on sm_90a that of its own, which has to have the same bits.
  decltype(&VarlenAttention) form = nullptr;
  bool counters = false;              // For the form of decode that sm_90a has.
  std::vector<int32_t> lengths = {};  // Instead of the problem's, of none more keys.
  int replays = 0;                    // Of a graph that was recorded with the problem's lengths.
};

// Elements between the ends and the beginnings of a plane.
struct PlaneGaps {
  int64_t token, head, block;
};

// The rows of a dense plane with NaN between tokens, heads and blocks.
struct SpreadPlane {
  SpreadPlane(const CachePlane& dense, const PlaneGaps& gaps)
      : plane(dense), bytes(std::make_shared<DeviceBytes>(Spread(dense, gaps))) {
    plane.data = static_cast<std::byte*>(bytes->data());
  }

  CachePlane plane;
  std::shared_ptr<DeviceBytes> bytes;

 private:
  std::vector<std::byte> Spread(const CachePlane& dense, const PlaneGaps& gaps) {
    plane.token_stride = dense.dim + gaps.token;
    plane.head_stride = dense.block_size * plane.token_stride + gaps.head;
    plane.block_stride = dense.num_heads * plane.head_stride + gaps.block;
    const int64_t size = SizeOf(dense.dtype), row = dense.dim * size;
    std::vector<std::byte> all(dense.num_blocks * plane.block_stride * size, std::byte{0xff});
    for (int64_t b = 0; b < dense.num_blocks; ++b) {
      for (int64_t h = 0; h < dense.num_heads; ++h) {
        for (int64_t t = 0; t < dense.block_size; ++t) {
          const int64_t from = b * dense.block_stride * size + (h * dense.block_size + t) * row;
          const int64_t to =
              b * plane.block_stride + h * plane.head_stride + t * plane.token_stride;
          std::copy_n(dense.data + from, row, all.begin() + to * size);
        }
      }
    }
    return all;
  }
};

// A problem whose arrays are on the device; rows of queries, results and LSE have gaps behind them.
class DeviceProblem {
 public:
  explicit DeviceProblem(AttentionProblem& problem)
      : problem_(problem),
        q_(problem.shape.compute, WithGaps(problem)),
        k_(problem.k_cache),
        v_(problem.v_cache),
        table_(problem.table),
        cu_q_(problem.cu_q),
        lens_(problem.seq_lens),
        ragged_(problem.Ragged().entries),
        starts_(problem.Ragged().starts),
        slopes_(DType::kF32, problem.slopes),
        k_scales_(DType::kF32, problem.k_scales),
        v_scales_(DType::kF32, problem.v_scales),
        sinks_(DType::kF32, problem.sinks) {}

  Result Run(const RunOptions& options = {}) const {
    const Planes planes(*this, options.spread);
    const VarlenAttentionArgs args = Args(options, planes);
    const DeviceFloats scratch(DType::kF32, ScratchBytes(args) / 4);
    const DeviceArray<uint32_t> counters(
        std::vector<uint32_t>(options.counters ? args.num_seqs * args.k_cache.num_heads : 0));
    const AttentionRoom room{.scratch = options.scratch ? scratch.f32() : nullptr,
                             .shared_bytes = options.shared_bytes,
                             .counters = {counters.data(), counters.size()}};
    const auto form = options.form == nullptr ? MmaVarlenAttention : options.form;
    const Result result = Read(args, [&](const VarlenAttentionArgs& told) {
      return Enqueue([&](cudaStream_t stream) { return form(told, room, stream); }, options);
    });
    scratch.ReadBytes();  // Its guards.
    for (const uint32_t counter : counters.Read()) EXPECT_EQ(counter, 0u);
    if (options.form == nullptr && !options.counters && IsSm90() && AttentionSm90Takes(args)) {
      const Result again =
          Read(args, [](const VarlenAttentionArgs& told) { return AttentionSm90(told, nullptr); });
      EXPECT_EQ(again, result) << "of sm_90a";
    }
    return result;
  }
  bool IsTakenOnSm90(const RunOptions& options) const {
    return AttentionSm90Takes(Args(options, Planes(*this, options.spread)));
  }

 private:
  // K and V, perhaps with gaps.
  struct Planes {
    Planes(const DeviceProblem& device, bool spread) {
      const VarlenAttentionArgs host = device.problem_.Args(nullptr);
      k = host.k_cache;
      v = host.v_cache;
      if (spread) {
        spread_k.emplace(k, PlaneGaps{8, 16, 24});
        spread_v.emplace(v, PlaneGaps{16, 8, 64});
        k = spread_k->plane;
        v = spread_v->plane;
      } else {
        k.data = static_cast<std::byte*>(device.k_.data());
        v.data = static_cast<std::byte*>(device.v_.data());
      }
      k.scales = device.k_scales_.f32();
      v.scales = device.v_scales_.f32();
    }

    std::optional<SpreadPlane> spread_k, spread_v;
    CachePlane k, v;
  };

  // But for what is written.
  VarlenAttentionArgs Args(const RunOptions& options, const Planes& planes) const {
    const AttentionProblem& p = problem_;
    VarlenAttentionArgs args = problem_.Args(nullptr);
    args.q = q_;
    args.q_stride += kQueryGap;
    args.cu_seqlens_q = cu_q_.data();
    args.num_tokens = p.total_q;
    args.seq_lens = lens_.data();
    args.block_table = options.ragged ? ragged_.data() : table_.data();
    if (options.ragged) args.table_starts = starts_.data();
    args.out.dtype = args.round_to = options.out;
    args.max_seqlen_q = args.max_seqlen_k = 0;
    for (const auto& [queries, keys] : p.shape.sequences) {
      args.max_seqlen_q = std::max(args.max_seqlen_q, queries);
      args.max_seqlen_k = std::max(args.max_seqlen_k, keys);
    }
    args.k_cache = planes.k;
    args.v_cache = planes.v;
    if (args.scores.alibi_slopes != nullptr) args.scores.alibi_slopes = slopes_.f32();
    if (args.scores.sinks != nullptr) args.scores.sinks = sinks_.f32();
    return args;
  }

  // What launch(args) writes.
  template <typename Launch>
  Result Read(VarlenAttentionArgs args, const Launch& launch) const {
    const AttentionProblem& p = problem_;
    const int64_t width = int64_t{p.shape.heads} * p.shape.v_dim;
    const DeviceFloats out(args.round_to, std::vector<float>(p.total_q * (width + kOutGap), kGap));
    const DeviceFloats lse(DType::kF32,
                           std::vector<float>(p.shape.heads * (p.total_q + kLseGap), kGap));
    args.out = out;
    args.out_stride = width + kOutGap;
    args.lse = lse.f32();
    args.lse_stride = p.total_q + kLseGap;
    EXPECT_EQ(launch(args), cudaSuccess);
    return {WithoutGaps(out.Read(), width, kOutGap), WithoutGaps(lse.Read(), p.total_q, kLseGap)};
  }

  void SetLengths(const std::vector<int32_t>& lengths) const {
    if (lengths.empty()) return;
    EXPECT_EQ(cudaMemcpy(lens_.data(), lengths.data(), lengths.size() * sizeof(int32_t),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // A copy of pageable memory may still land.
  }

  template <typename Call>
  cudaError_t Enqueue(const Call& call, const RunOptions& options) const {
    if (options.replays == 0) {
      SetLengths(options.lengths);
      return call(nullptr);
    }
    SetLengths(problem_.seq_lens);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(call(stream), cudaSuccess);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    SetLengths(options.lengths);
    for (int i = 0; i < options.replays; ++i) {
      EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    }
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess) << emulation::LastMessage();
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    return cudaSuccess;
  }

  static constexpr int64_t kQueryGap = 8, kOutGap = 3, kLseGap = 5;
  static constexpr float kGap = 7;

  // Behind each row, and the last head, whose kernel may have more columns, there are NaN.
  static std::vector<float> WithGaps(const AttentionProblem& problem) {
    const int64_t width = int64_t{problem.shape.heads} * problem.shape.dim;
    std::vector<float> q;
    for (int64_t i = 0; i < problem.total_q; ++i) {
      q.insert(q.end(), problem.q.begin() + i * width, problem.q.begin() + (i + 1) * width);
      q.insert(q.end(), kQueryGap, NAN);
    }
    q.insert(q.end(), 256, NAN);
    return q;
  }
  // The rows; nobody has written behind them.
  static std::vector<float> WithoutGaps(const std::vector<float>& all, int64_t width, int64_t gap) {
    std::vector<float> rows;
    for (auto row = all.begin(); row != all.end(); row += width + gap) {
      rows.insert(rows.end(), row, row + width);
      EXPECT_EQ(std::count(row + width, row + width + gap, kGap), gap);
    }
    return rows;
  }

  AttentionProblem& problem_;
  DeviceFloats q_;
  DeviceBytes k_, v_;
  DeviceArray<int32_t> table_, cu_q_, lens_, ragged_, starts_;
  DeviceFloats slopes_, k_scales_, v_scales_, sinks_;
};

// Half types, K and V as they are or in fp8.
struct Types {
  DType compute;
  DType kv;
};
inline constexpr Types kTypes[] = {{DType::kBF16, DType::kBF16},
                            {DType::kF16, DType::kF16},
                            {DType::kBF16, DType::kFp8E4M3},
                            {DType::kF16, DType::kFp8E5M2}};

inline AttentionShapes Shape(Types types, int32_t dim,
                      std::vector<std::pair<int32_t, int32_t>> sequences) {
  return {.heads = 4,
          .kv_heads = 2,
          .dim = dim,
          .block_size = 16,
          .kv = types.kv,
          .sequences = std::move(sequences),
          .kv_scale = IsFp8(types.kv) ? 0.25f : 0.0f,
          .scale_per_head = dim % 64 == 0,
          .v_scale_per_head = dim % 3 != 0,
          .compute = types.compute};
}

}  // namespace baton::cuda
