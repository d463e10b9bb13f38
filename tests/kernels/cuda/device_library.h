#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_library.h"
#include "kernels/cuda/cuda_ops.h"
#include "tests/kernels/cuda/device_operands.h"

namespace baton::cuda {

// The operator library of a GPU, as DeviceOps are operators: by CudaLibrary, and for
// VarlenAttention by CudaOps. A new order of threads for each call.
class DeviceLibrary : public DeviceOps {
 public:
  using DeviceOps::DeviceOps;

  absl::Status ReshapeAndCache(const ReshapeAndCacheArgs& host) override {
    Begin();
    return DeviceOps::ReshapeAndCache(host);
  }

  absl::Status AdvanceStep(const AdvanceStepArgs& host) override {
    Begin();
    return DeviceOps::AdvanceStep(host);
  }

  absl::Status CopyBlocks(const CopyBlocksArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    if (host.num_planes == 0 || host.num_pairs == 0) return absl::OkStatus();
    Begin();
    const int64_t far = Far(host.planes[0]);
    const PlanesThere planes(host.planes, host.num_planes, far);
    std::vector<BlockPair> moved(host.pairs, host.pairs + host.num_pairs);
    for (auto& [source, destination] : moved) source += far, destination += far;
    const There<BlockPair> pairs(moved.data(), host.num_pairs);
    RETURN_IF_ERROR(Finished(
        library_.CopyBlocks({planes.data(), host.num_planes, pairs.data(), host.num_pairs})));
    planes.CopyBack();
    return absl::OkStatus();
  }

  absl::Status SwapBlocks(const SwapBlocksArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    if (host.num_planes == 0 || host.num_runs == 0) return absl::OkStatus();
    Begin();
    const int64_t far = Far(host.sources[0]);
    const PlanesThere from(host.sources, host.num_planes, far);
    const PlanesThere to(host.destinations, host.num_planes, 0);
    std::vector<BlockRun> moved(host.runs, host.runs + host.num_runs);
    for (BlockRun& run : moved) run.source += far;
    const There<BlockRun> runs(moved.data(), host.num_runs);
    RETURN_IF_ERROR(Finished(library_.SwapBlocks(
        {from.data(), to.data(), host.num_planes, runs.data(), host.num_runs, host.heads})));
    to.CopyBack();
    return absl::OkStatus();
  }

  absl::Status GatherBlocks(const GatherBlocksArgs& host) override {
    return MoveStaged(host, [&](const GatherBlocksArgs& args, const PlanesThere&,
                                const There<std::byte>& staging) {
      RETURN_IF_ERROR(Finished(library_.GatherBlocks(args)));
      staging.CopyTo(host.staging);
      return absl::OkStatus();
    });
  }

  absl::Status ScatterBlocks(const ScatterBlocksArgs& host) override {
    return MoveStaged(host, [&](const ScatterBlocksArgs& args, const PlanesThere& planes,
                                const There<std::byte>&) {
      RETURN_IF_ERROR(Finished(library_.ScatterBlocks(args)));
      planes.CopyBack();
      return absl::OkStatus();
    });
  }

  absl::Status UpdateKvCache(const UpdateKvCacheArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    Begin();
    UpdateKvCacheArgs args = host;
    const CachePlane &k = host.append.k_cache, &v = host.append.v_cache;
    const int64_t n = host.append.num_tokens, heads = k.num_heads;
    const DeviceFloats key =
        ExactlyThere(DType::kF32, host.append.key.f32(),
                     n == 0 ? 0 : SpanOf(n, host.append.key_stride, heads * k.dim));
    const DeviceFloats value =
        ExactlyThere(DType::kF32, host.append.value.f32(),
                     n == 0 ? 0 : SpanOf(n, host.append.value_stride, heads * v.dim));
    // A contiguous cache begins with block 0.
    const int64_t far = host.block_table == nullptr ? 0 : Far(k);
    const auto moved_slots = Moved(host.append.slot_mapping, n, far * k.block_size);
    const There<int64_t> slots(n == 0 ? nullptr : moved_slots.data(), n);
    const PlaneThere k_there(k, far), v_there(v, far);
    args.append.key = key;
    args.append.value = value;
    args.append.slot_mapping = slots.data();
    args.append.k_cache = k_there.plane();
    args.append.v_cache = v_there.plane();
    const int64_t seqs = host.num_seqs;
    const int64_t tokens = seqs == 0 ? 0 : host.cu_seqlens_k[seqs];
    if (tokens == 0) args.num_seqs = 0;  // Nothing is asked of the outputs.
    const There<int32_t> starts(host.cu_seqlens_k, seqs == 0 ? 0 : seqs + 1);
    int64_t entries = 0;
    for (int64_t s = 0; s < seqs; ++s) {
      const int64_t rows = host.cu_seqlens_k[s + 1] - host.cu_seqlens_k[s];
      entries = std::max(entries, s * host.max_blocks + CeilDiv(rows, k.block_size));
    }
    const auto moved = Moved(host.block_table, host.block_table == nullptr ? 0 : entries, far);
    const There<int32_t> table(host.block_table == nullptr ? nullptr : moved.data(),
                               std::ssize(moved));
    const OutputThere k_out(DType::kF32, host.k_out.f32(), tokens, host.k_out_stride,
                            heads * k.dim);
    const OutputThere v_out(DType::kF32, host.v_out.f32(), tokens, host.v_out_stride,
                            heads * v.dim);
    args.cu_seqlens_k = starts.data();
    args.block_table = table.data();
    args.k_out = k_out.there();
    args.v_out = v_out.there();
    RETURN_IF_ERROR(Finished(library_.UpdateKvCache(args)));
    k_there.CopyBack();
    v_there.CopyBack();
    RETURN_IF_ERROR(k_out.CopyBack());
    return v_out.CopyBack();
  }

  absl::Status VarlenAttention(const VarlenAttentionArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    if (host.num_seqs == 0 || host.cu_seqlens_q[host.num_seqs] == 0) return absl::OkStatus();
    Begin();
    VarlenAttentionArgs args = host;
    const bool dense = host.dense.cu_seqlens_k != nullptr;
    const int64_t seqs = host.num_seqs;
    args.num_tokens = host.cu_seqlens_q[seqs];
    args.max_seqlen_q = args.max_seqlen_k = 1;
    for (int64_t s = 0; s < seqs; ++s) {
      const int32_t queries = host.cu_seqlens_q[s + 1] - host.cu_seqlens_q[s];
      args.max_seqlen_q = std::max(args.max_seqlen_q, queries);
      if (!dense) args.max_seqlen_k = std::max(args.max_seqlen_k, host.seq_lens[s]);
    }
    const There<int32_t> starts(host.cu_seqlens_q, seqs + 1);
    const There<int32_t> dense_starts(host.dense.cu_seqlens_k, seqs + 1);
    const DenseKeys& keys = host.dense;
    const int64_t num_dense = dense ? keys.cu_seqlens_k[seqs] : 0;
    const DeviceFloats k = ExactlyThere(
        host.round_to, keys.k.f32(), SpanOf(num_dense, keys.k_stride, keys.num_heads * keys.k_dim));
    const DeviceFloats v = ExactlyThere(
        host.round_to, keys.v.f32(), SpanOf(num_dense, keys.v_stride, keys.num_heads * keys.v_dim));
    args.cu_seqlens_q = starts.data();
    args.dense.cu_seqlens_k = dense_starts.data();
    args.dense.k = OrNull(keys.k.f32(), k);
    args.dense.v = OrNull(keys.v.f32(), v);
    const Sizes sizes{.tokens = args.num_tokens,
                      .kv_heads = dense ? keys.num_heads : host.k_cache.num_heads,
                      .k_dim = dense ? keys.k_dim : host.k_cache.dim,
                      .v_dim = dense ? keys.v_dim : host.v_cache.dim};
    return Attend(host, args, sizes, [&](const VarlenAttentionArgs& a) {
      return CudaOps(nullptr, ScratchFor(a), Buffer(), kLeastSharedBytes).VarlenAttention(a);
    });
  }

  absl::Status PagedAttention(const PagedAttentionArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    if (host.num_seqs == 0) return absl::OkStatus();
    Begin();
    PagedAttentionArgs args = host;
    const AttentionPartials& p = host.partials;
    const int64_t states = p.given() ? host.num_seqs * host.num_heads * p.max_num_partitions : 0;
    const There<float> sums(p.exp_sums, states), maxima(p.max_logits, states),
        values(p.tmp_out, states * host.v_cache.dim);
    args.partials.exp_sums = sums.data();
    args.partials.max_logits = maxima.data();
    args.partials.tmp_out = values.data();
    const Sizes sizes{.tokens = host.num_seqs,
                      .kv_heads = host.k_cache.num_heads,
                      .k_dim = host.k_cache.dim,
                      .v_dim = host.v_cache.dim};
    RETURN_IF_ERROR(Attend(host, args, sizes, [&](const PagedAttentionArgs& a) {
      return CudaLibrary(nullptr, ScratchFor(a), Buffer(), kLeastSharedBytes).PagedAttention(a);
    }));
    if (!p.given()) return absl::OkStatus();
    sums.CopyTo(p.exp_sums);
    maxima.CopyTo(p.max_logits);
    values.CopyTo(p.tmp_out);
    return absl::OkStatus();
  }

  absl::Status PrefixAttention(const PrefixAttentionArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    if (host.num_seqs == 0 || host.cu_seqlens_q[host.num_seqs] == 0) return absl::OkStatus();
    Begin();
    PrefixAttentionArgs args = host;
    const int64_t tokens = host.cu_seqlens_q[host.num_seqs], heads = host.k_cache.num_heads;
    const There<int32_t> starts(host.cu_seqlens_q, host.num_seqs + 1);
    const DeviceFloats k = ExactlyThere(host.round_to, host.k.f32(),
                                        SpanOf(tokens, host.k_stride, heads * host.k_cache.dim));
    const DeviceFloats v = ExactlyThere(host.round_to, host.v.f32(),
                                        SpanOf(tokens, host.v_stride, heads * host.v_cache.dim));
    args.cu_seqlens_q = starts.data();
    args.num_tokens = tokens;
    args.k = k;
    args.v = v;
    const Sizes sizes{
        .tokens = tokens, .kv_heads = heads, .k_dim = host.k_cache.dim, .v_dim = host.v_cache.dim};
    return Attend(host, args, sizes,
                  [&](const PrefixAttentionArgs& a) { return library_.PrefixAttention(a); });
  }

  absl::Status AttentionWithKvCache(const AttentionWithKvCacheArgs& host) override;
  absl::Status MergeAttentionStates(const MergeAttentionStatesArgs& host) override;

  absl::Status CascadeLens(const CascadeLensArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    const int64_t seqs = host.attention.num_seqs;
    if (seqs == 0) return absl::OkStatus();
    Begin();
    CascadeLensArgs args = host;
    const There<int32_t> lens(host.attention.seq_lens, seqs), queries(host.prefix_queries, 2),
        prefix(host.prefix_len, 1), suffixes(host.suffix_lens, seqs);
    args.attention.max_seqlen_q = args.attention.max_seqlen_k = INT32_MAX;  // Told.
    args.attention.seq_lens = lens.data();
    args.prefix_queries = queries.data();
    args.prefix_len = prefix.data();
    args.suffix_lens = suffixes.data();
    RETURN_IF_ERROR(Finished(library_.CascadeLens(args)));
    queries.CopyTo(host.prefix_queries);
    prefix.CopyTo(host.prefix_len);
    suffixes.CopyTo(host.suffix_lens);
    return absl::OkStatus();
  }

 protected:
  // Before each call.
  void Begin() { emulation::SetSeed(++calls_); }
  uint64_t calls_ = 0;

 private:
  class PlanesThere {
   public:
    PlanesThere(const CachePlane* host, int64_t n, int64_t far) {
      for (int64_t i = 0; i < n; ++i) planes_.push_back(there_.emplace_back(host[i], far).plane());
    }
    const CachePlane* data() const { return planes_.data(); }
    void CopyBack() const {
      for (const PlaneThere& plane : there_) plane.CopyBack();
    }

   private:
    std::deque<PlaneThere> there_;
    std::vector<CachePlane> planes_;
  };

  // Which each form of attention has somewhere else.
  struct Sizes {
    int64_t tokens = 0;
    int64_t kv_heads = 0;
    int64_t k_dim = 0;
    int64_t v_dim = 0;
  };

  static int64_t CeilDiv(int64_t n, int64_t by) { return (n + by - 1) / by; }

  template <typename Args, typename Call>
  absl::Status MoveStaged(const Args& host, const Call& call) {
    RETURN_IF_ERROR(CheckArgs(host));
    if (host.num_planes == 0 || host.num_blocks == 0) return absl::OkStatus();
    Begin();
    const int64_t far = Far(host.planes[0]);
    const PlanesThere planes(host.planes, host.num_planes, far);
    const auto moved = Moved(host.blocks, host.num_blocks, far);
    const There<int32_t> blocks(moved.data(), host.num_blocks);
    const There<std::byte> staging(host.staging, host.staging_bytes);
    Args args = host;
    args.planes = planes.data();
    args.blocks = blocks.data();
    args.staging = staging.data();
    return call(args, planes, staging);
  }

  // Every other call has scratch memory.
  template <typename Args>
  Buffer ScratchFor(const Args& args) {
    scratch_ = nullptr;
    if (calls_ % 2 == 1 || !FastAttentionServes(args)) return Buffer();
    const int64_t bytes = ScratchBytes(args);
    scratch_ = std::make_shared<DeviceFloats>(DType::kF32, bytes / 4);
    return Buffer(reinterpret_cast<std::byte*>(scratch_->f32()), bytes, scratch_);
  }

  // Of every sequence the entries that it needs, wherever they lie.
  template <typename Args>
  static int64_t TableEntries(const Args& host) {
    int64_t end = 0;
    for (int64_t s = 0; host.seq_lens != nullptr && s < host.num_seqs; ++s) {
      int64_t start = s * host.max_blocks, keys = host.seq_lens[s];
      if constexpr (requires { host.skip_decodes; }) {  // A prefix is what comes before.
        keys -= host.cu_seqlens_q[s + 1] - host.cu_seqlens_q[s];
      } else {
        if (host.table_starts != nullptr) start = host.table_starts[s];
      }
      end = std::max(end, start + CeilDiv(keys, host.k_cache.block_size));
    }
    return end;
  }

  // `args` has arrays of the host, but for those that `call` alone knows.
  template <typename Args, typename Call>
  absl::Status Attend(const Args& host, Args args, const Sizes& sizes, const Call& call) {
    const int64_t heads = host.num_heads, tokens = sizes.tokens;
    const bool has_cache = host.k_cache.data != nullptr;
    AttentionScales scales;
    if constexpr (requires { host.scales; }) scales = host.scales;
    const ScoresThere scores(host.scores, scales, host.num_seqs, heads, sizes.kv_heads);
    const DeviceFloats q = ExactlyThere(host.round_to, host.q.f32(),
                                        SpanOf(tokens, host.q_stride, heads * sizes.k_dim));
    // The engine's kernel is not for results that are rounded and kept in f32.
    const bool is_hnd = has_cache && host.k_cache.layout == CacheLayout::kHnd;
    const OutputThere out(is_hnd ? host.round_to : OutType(host.round_to), host.out.f32(), tokens,
                          host.out_stride, heads * sizes.v_dim);
    const There<float> lse(host.lse, SpanOf(heads, host.lse_stride, tokens));
    const There<int32_t> lens(host.seq_lens, host.num_seqs);
    const int64_t far = has_cache ? Far(host.k_cache) : 0;
    const auto& table = TableOf(host);
    const auto moved = Moved(table, has_cache && table != nullptr ? TableEntries(host) : 0, far);
    const There<int32_t> entries(table == nullptr ? nullptr : moved.data(), std::ssize(moved));
    std::deque<PlaneThere> planes;
    if (has_cache) {
      args.k_cache = planes.emplace_back(host.k_cache, far).plane();
      args.v_cache = planes.emplace_back(host.v_cache, far).plane();
    }
    std::optional<There<int32_t>> table_starts;
    if constexpr (requires { host.table_starts; }) {
      args.table_starts = table_starts.emplace(host.table_starts, host.num_seqs).data();
    }
    scores.Set(args.scores);
    if constexpr (requires { host.scales; }) scores.Set(args.scales);
    args.q = q;
    args.out = out.there();
    args.lse = lse.data();
    args.seq_lens = lens.data();
    TableOf(args) = entries.data();
    RETURN_IF_ERROR(Finished(call(args)));
    if (scratch_ != nullptr) scratch_->ReadBytes();  // Its guards.
    if (host.lse != nullptr) lse.CopyTo(host.lse);
    return out.CopyBack();
  }

  // In turns what results are rounded to, and f32 with such values.
  DType OutType(DType round_to) const { return calls_ % 4 < 2 ? round_to : DType::kF32; }

  template <typename Args>
  static auto& TableOf(Args& args) {
    if constexpr (requires { args.block_tables; }) {
      return args.block_tables;
    } else {
      return args.block_table;
    }
  }

  CudaLibrary library_{nullptr, Buffer(), Buffer(), kLeastSharedBytes};
  std::shared_ptr<DeviceFloats> scratch_;  // Of the last call.
};

inline absl::Status DeviceLibrary::AttentionWithKvCache(const AttentionWithKvCacheArgs& host) {
  RETURN_IF_ERROR(CheckArgs(host));
  if (host.num_seqs == 0) return absl::OkStatus();
  Begin();
  AttentionWithKvCacheArgs args = host;
  const CachePlane &k_cache = host.k_cache, &v_cache = host.v_cache;
  const int64_t seqs = host.num_seqs, tokens = seqs * host.num_queries, heads = host.num_heads;
  const int64_t fresh = seqs * host.num_new * k_cache.num_heads;
  const ScoresThere scores(host.scores, host.scales, seqs, heads, k_cache.num_heads);
  const DeviceFloats q = ExactlyThere(host.round_to, host.q.f32(), tokens * heads * k_cache.dim);
  const DeviceFloats k = ExactlyThere(host.round_to, host.k.f32(), fresh * k_cache.dim);
  const DeviceFloats v = ExactlyThere(host.round_to, host.v.f32(), fresh * v_cache.dim);
  const int64_t width = heads * v_cache.dim;
  const OutputThere out(OutType(host.round_to), host.out.f32(), tokens, width, width);
  const There<float> lse(host.lse, heads * tokens);
  const bool has_batch = host.cache_batch_idx != nullptr, has_table = host.block_table != nullptr;
  const int64_t far = has_batch || has_table ? Far(k_cache) : 0;
  const auto moved_batch = Moved(host.cache_batch_idx, has_batch ? seqs : 0, far);
  const auto moved_table = Moved(host.block_table, has_table ? seqs * host.max_blocks : 0, far);
  const There<int32_t> lens(host.cache_seqlens, seqs),
      batch(has_batch ? moved_batch.data() : nullptr, std::ssize(moved_batch)),
      leftpad(host.cache_leftpad, seqs),
      table(has_table ? moved_table.data() : nullptr, std::ssize(moved_table));
  const int64_t angles = host.num_rotary_positions * (host.rotary_dim / 2);
  const There<float> cos(host.rotary_cos, angles), sin(host.rotary_sin, angles);
  const PlaneThere k_there(k_cache, far), v_there(v_cache, far);
  scores.Set(args.scores);
  scores.Set(args.scales);
  args.q = OrNull(host.q.f32(), q);
  args.k = OrNull(host.k.f32(), k);
  args.v = OrNull(host.v.f32(), v);
  args.out = out.there();
  args.lse = lse.data();
  args.cache_seqlens = lens.data();
  args.cache_batch_idx = batch.data();
  args.cache_leftpad = leftpad.data();
  args.block_table = table.data();
  args.rotary_cos = cos.data();
  args.rotary_sin = sin.data();
  args.k_cache = k_there.plane();
  args.v_cache = v_there.plane();
  RETURN_IF_ERROR(Finished(library_.AttentionWithKvCache(args)));
  k_there.CopyBack();
  v_there.CopyBack();
  if (host.lse != nullptr) lse.CopyTo(host.lse);
  return out.CopyBack();
}

inline absl::Status DeviceLibrary::MergeAttentionStates(const MergeAttentionStatesArgs& host) {
  RETURN_IF_ERROR(CheckArgs(host));
  if (host.num_tokens == 0) return absl::OkStatus();
  Begin();
  MergeAttentionStatesArgs args = host;
  const int64_t rows = host.num_tokens * host.num_heads, n = rows * host.dim;
  // An output that is an input stays one.
  const DeviceFloats a(DType::kF32, {host.out_a.f32(), host.out_a.f32() + n});
  const DeviceFloats b(DType::kF32, {host.out_b.f32(), host.out_b.f32() + n});
  const int64_t out_size = SpanOf(host.num_tokens, host.out_stride, host.num_heads * host.dim);
  const DeviceFloats apart(host.round_to,
                           Rounded(host.round_to, {host.out.f32(), host.out.f32() + out_size}));
  const There<float> lse_a(host.lse_a, rows), lse_b(host.lse_b, rows),
      own_lse(host.lse, SpanOf(host.num_heads, host.lse_stride, host.num_tokens));
  const DeviceFloats& out = host.out.f32() == host.out_a.f32()   ? a
                            : host.out.f32() == host.out_b.f32() ? b
                                                                 : apart;
  const There<float>& lse = host.lse == host.lse_a   ? lse_a
                            : host.lse == host.lse_b ? lse_b
                                                     : own_lse;
  args.out_a = a;
  args.out_b = b;
  args.out = out;
  args.lse_a = lse_a.data();
  args.lse_b = lse_b.data();
  args.lse = host.lse == nullptr ? nullptr : lse.data();
  RETURN_IF_ERROR(Finished(library_.MergeAttentionStates(args)));
  std::ranges::copy(out.Read(), host.out.f32());
  if (host.lse != nullptr) lse.CopyTo(host.lse);
  return absl::OkStatus();
}

}  // namespace baton::cuda
