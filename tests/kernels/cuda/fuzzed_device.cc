// What fuzz_fixture.h asks of the GPU. In two calls of three the blocks are the last of a cache
// whose elements 32 bits cannot count, the others of which lie nowhere.
#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/attention.h"
#include "tests/kernels/cuda/device_ops.h"
#include "tests/kernels/fuzz_fixture.h"

namespace baton {
namespace {

using cuda::DeviceFloats;
using cuda::DeviceOps;
using cuda::Ended;
using cuda::Moved;
using cuda::PlaneThere;
using cuda::SpanOf;
using cuda::There;

// Behind so many blocks that elements from the first on are more than 2^32, or nearly; a multiple
// of 16, which changes no alignment.
int64_t FarBlocks(const CachePlane& plane) {
  return std::min(int64_t{1} << 30, ((int64_t{1} << 33) / plane.block_stride / 16 + 1) * 16);
}

class FuzzedDevice : public DeviceOps {
 public:
  FuzzedDevice() : DeviceOps(DType::kF32, DType::kF32) {}

  absl::Status ReshapeAndCache(const ReshapeAndCacheArgs& host) override {
    Begin();
    return DeviceOps::ReshapeAndCache(host);
  }

  absl::Status CopyBlocks(const CopyBlocksArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    Begin();
    const int64_t far = Far(host.planes[0]);
    const PlaneThere plane(host.planes[0], far);
    std::vector<BlockPair> moved(host.pairs, host.pairs + host.num_pairs);
    for (auto& [source, destination] : moved) source += far, destination += far;
    const There<BlockPair> pairs(moved.data(), host.num_pairs);
    RETURN_IF_ERROR(
        Ended(cuda::CopyBlocks({&plane.plane(), 1, pairs.data(), host.num_pairs}, nullptr)));
    plane.CopyBack();
    return absl::OkStatus();
  }

  absl::Status SwapBlocks(const SwapBlocksArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    Begin();
    const int64_t far = Far(host.sources[0]);
    const PlaneThere from(host.sources[0], far), to(host.destinations[0], 0);
    std::vector<BlockRun> moved(host.runs, host.runs + host.num_runs);
    for (BlockRun& run : moved) run.source += far;
    const There<BlockRun> runs(moved.data(), host.num_runs);
    RETURN_IF_ERROR(Ended(cuda::SwapBlocks(
        {&from.plane(), &to.plane(), 1, runs.data(), host.num_runs, host.heads}, nullptr)));
    to.CopyBack();
    return absl::OkStatus();
  }

  absl::Status GatherBlocks(const GatherBlocksArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    Begin();
    const int64_t far = Far(host.planes[0]);
    const PlaneThere plane(host.planes[0], far);
    const auto moved = Moved(host.blocks, host.num_blocks, far);
    const There<int32_t> blocks(moved.data(), host.num_blocks);
    const There<std::byte> staging(host.staging, host.staging_bytes);
    GatherBlocksArgs args = host;
    args.planes = &plane.plane();
    args.blocks = blocks.data();
    args.staging = staging.data();
    RETURN_IF_ERROR(Ended(cuda::GatherBlocks(args, nullptr)));
    staging.CopyTo(host.staging);
    return absl::OkStatus();
  }

  absl::Status ScatterBlocks(const ScatterBlocksArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    Begin();
    const int64_t far = Far(host.planes[0]);
    const PlaneThere plane(host.planes[0], far);
    const auto moved = Moved(host.blocks, host.num_blocks, far);
    const There<int32_t> blocks(moved.data(), host.num_blocks);
    const There<std::byte> staging(host.staging, host.staging_bytes);
    ScatterBlocksArgs args = host;
    args.planes = &plane.plane();
    args.blocks = blocks.data();
    args.staging = staging.data();
    RETURN_IF_ERROR(Ended(cuda::ScatterBlocks(args, nullptr)));
    plane.CopyBack();
    return absl::OkStatus();
  }

  absl::Status AdvanceStep(const AdvanceStepArgs& host) override {
    Begin();
    return DeviceOps::AdvanceStep(host);
  }

  absl::Status VarlenAttention(const VarlenAttentionArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    if (host.num_seqs == 0) return absl::OkStatus();
    VarlenAttentionArgs args = host;
    args.num_tokens = host.cu_seqlens_q[host.num_seqs];
    args.max_seqlen_q = args.max_seqlen_k = 1;
    for (int64_t s = 0; s < host.num_seqs; ++s) {
      const int32_t queries = host.cu_seqlens_q[s + 1] - host.cu_seqlens_q[s];
      args.max_seqlen_q = std::max(args.max_seqlen_q, queries);
      args.max_seqlen_k = std::max(args.max_seqlen_k, host.seq_lens[s]);
    }
    if (args.num_tokens == 0) return absl::OkStatus();
    Begin();
    const There<int32_t> starts(host.cu_seqlens_q, host.num_seqs + 1);
    args.cu_seqlens_q = starts.data();
    return Attention(args, args.block_table, args.num_tokens,
                     [](const VarlenAttentionArgs& a, const cuda::AttentionRoom& room) {
                       return cuda::VarlenAttention(a, room, nullptr);
                     });
  }

  absl::Status PagedAttention(const PagedAttentionArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    if (host.num_seqs == 0) return absl::OkStatus();
    Begin();
    PagedAttentionArgs args = host;
    args.max_seq_len = *std::max_element(host.seq_lens, host.seq_lens + host.num_seqs);
    return Attention(args, args.block_tables, args.num_seqs,
                     [](const PagedAttentionArgs& a, const cuda::AttentionRoom& room) {
                       return cuda::PagedAttention(a, room, nullptr);
                     });
  }

  absl::Status PrefixAttention(const PrefixAttentionArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    return absl::UnimplementedError("not on this device");
  }

 private:
  void Begin() { emulation::SetSeed(++calls_); }
  int64_t Far(const CachePlane& plane) const override {
    return calls_ % 3 == 0 ? 0 : FarBlocks(plane);
  }

  // Of every sequence the entries that it needs, wherever they lie.
  template <typename Args>
  static int64_t TableEntries(const Args& args) {
    int64_t end = 0;
    for (int64_t s = 0; s < args.num_seqs; ++s) {
      const int64_t size = args.k_cache.block_size;
      end = std::max(end, s * args.max_blocks + (args.seq_lens[s] + size - 1) / size);
    }
    return end;
  }

  // `args` with arrays of the host, but for starts of queries; every other call has scratch memory.
  template <typename Args, typename Launch>
  absl::Status Attention(Args args, const int32_t* table, int64_t tokens, const Launch& launch) {
    const Args host = args;
    const int64_t heads = args.num_heads;
    const int64_t out_span = SpanOf(tokens, args.out_stride, heads * args.v_cache.dim);
    const DeviceFloats q(args.round_to, Floats32(args.q.f32(), SpanOf(tokens, args.q_stride,
                                                                      heads * args.k_cache.dim)));
    const DeviceFloats out(args.round_to, Floats32(args.out.f32(), out_span));
    const int64_t lse_span = SpanOf(heads, args.lse_stride, tokens);
    const There<float> lse(args.lse, lse_span), sinks(args.scores.sinks, heads),
        slopes(args.scores.alibi_slopes, (args.num_seqs - 1) * args.scores.alibi_stride + heads);
    const int64_t far = Far(args.k_cache);
    const auto moved = Moved(table, TableEntries(args), far);
    const There<int32_t> entries(moved.data(), std::ssize(moved)),
        lens(args.seq_lens, args.num_seqs);
    const PlaneThere k(args.k_cache, far), v(args.v_cache, far);
    args.q = q;
    args.out = out;
    args.lse = lse.data();
    args.scores.sinks = sinks.data();
    args.scores.alibi_slopes = slopes.data();
    args.seq_lens = lens.data();
    args.k_cache = k.plane();
    args.v_cache = v.plane();
    SetTable(args, entries.data());
    const DeviceFloats scratch(DType::kF32, calls_ % 2 == 0 ? cuda::ScratchBytes(args) / 4 : 0);
    RETURN_IF_ERROR(Ended(launch(args, {.scratch = calls_ % 2 == 0 ? scratch.f32() : nullptr})));
    scratch.ReadBytes();
    if (args.lse != nullptr) lse.CopyTo(host.lse);
    return CopyRows(out.Read(), tokens, heads * args.v_cache.dim, host);
  }

  static std::vector<float> Floats32(const float* from, int64_t n) { return {from, from + n}; }
  static void SetTable(VarlenAttentionArgs& args, const int32_t* to) { args.block_table = to; }
  static void SetTable(PagedAttentionArgs& args, const int32_t* to) { args.block_tables = to; }

  // What lies between the rows keeps its value on the device, rounded.
  template <typename Args>
  static absl::Status CopyRows(const std::vector<float>& out, int64_t rows, int64_t width,
                               const Args& host) {
    const std::vector<float> before =
        Rounded(host.round_to, Floats32(host.out.f32(), SpanOf(rows, host.out_stride, width)));
    for (int64_t i = 0; i < std::ssize(out); ++i) {
      if (i % host.out_stride < width) {
        host.out.f32()[i] = out[i];
      } else if (out[i] != before[i]) {
        return absl::InternalError("element " + std::to_string(i) + " between rows was changed");
      }
    }
    return absl::OkStatus();
  }

  uint64_t calls_ = 0;
};

}  // namespace

inline namespace BATON_FUZZED {

std::vector<std::string> FuzzedNames() { return {"cuda"}; }

std::unique_ptr<CpuKernels> MakeFuzzed(const std::string&, int) {
  emulation::ResetDevice();
  return std::make_unique<FuzzedDevice>();
}

bool FuzzedLacksForms() { return true; }

// Half types and the engine's cache; of long sequences the last keys.
AttentionShapes Served(AttentionShapes shapes, uint64_t seed) {
  constexpr std::pair<DType, DType> kTypes[] = {{DType::kBF16, DType::kBF16},
                                                {DType::kF16, DType::kF16},
                                                {DType::kBF16, DType::kFp8E4M3},
                                                {DType::kF16, DType::kFp8E5M2}};
  std::tie(shapes.compute, shapes.kv) = kTypes[seed % std::size(kTypes)];
  shapes.layout = CacheLayout::kHnd;
  shapes.sparsity = {};
  shapes.dim = shapes.v_dim = (shapes.dim + 7) / 8 * 8;
  Random random(seed);
  const bool long_ones = seed % 6 == 0;
  const int32_t steps[] = {64, shapes.block_size, long_ones ? 512 : 128};
  for (auto& [queries, keys] : shapes.sequences) {
    queries = std::min(queries, long_ones ? 9 : 30);
    keys = std::min(keys, long_ones ? 1200 : 90);
    // Half of them end at or beside an edge.
    const int32_t edge = steps[random.Below(3)] * static_cast<int32_t>(1 + random.Below(2));
    if (random.Below(2) == 0) keys = edge - 1 + static_cast<int32_t>(random.Below(3));
  }
  return shapes;
}

}  // namespace BATON_FUZZED
}  // namespace baton
