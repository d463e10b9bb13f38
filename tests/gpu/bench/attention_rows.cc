#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "tests/gpu/bench/gpu_bench.h"

namespace baton::bench {
namespace {

struct Heads {
  int32_t dim;
  int32_t heads;
  int32_t kv_heads;
};
// Of Llama 1B and 8B; of Gemma 2.
constexpr Heads kPrefillHeads[] = {{64, 32, 8}, {128, 32, 8}, {256, 16, 8}};
constexpr Heads kDecodeHeads[] = {{64, 32, 8}, {128, 32, 8}};
constexpr Heads kQuickHeads[] = {{64, 4, 2}};
constexpr int32_t kPrompts[] = {1024, 2048, 4096, 8192, 16384};
constexpr int32_t kQuickPrompts[] = {40};
constexpr int32_t kContexts[] = {1024, 4096, 16384, 32768};
constexpr int32_t kQuickContexts[] = {40};
constexpr int32_t kBatches[] = {1, 2, 4, 8, 16, 32, 64, 128};
constexpr int32_t kQuickBatches[] = {2};

template <typename T, size_t n, size_t m>
std::span<const T> Either(bool quick, const T (&few)[n], const T (&all)[m]) {
  return quick ? std::span<const T>(few) : std::span<const T>(all);
}

int64_t BlocksOf(int32_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

// K and V of many sequences in blocks whose order is shuffled.
class Pool {
 public:
  static absl::StatusOr<Pool> Create(GpuBench& bench, const Heads& heads, DType dtype,
                                     int64_t num_blocks) {
    Pool pool(heads, dtype, num_blocks);
    ASSIGN_OR_RETURN(pool.k_, bench.RandomMemory(num_blocks * pool.block_bytes(), dtype));
    ASSIGN_OR_RETURN(pool.v_, bench.RandomMemory(num_blocks * pool.block_bytes(), dtype));
    std::vector<int32_t> table(num_blocks);
    std::iota(table.begin(), table.end(), 0);
    Random random(1);
    for (size_t i = table.size() - 1; i > 0; --i) std::swap(table[i], table[random.Below(i + 1)]);
    ASSIGN_OR_RETURN(pool.table_, bench.Upload(table));
    return pool;
  }

  // Of K, or of V.
  static int64_t BlockBytes(const Heads& heads, DType dtype) {
    return int64_t{heads.kv_heads} * kBlockTokens * heads.dim * SizeOf(dtype);
  }
  int64_t block_bytes() const { return BlockBytes(heads_, dtype_); }
  int64_t num_blocks() const { return num_blocks_; }
  const int32_t* table() const { return table_.array<int32_t>(); }
  CachePlane k() const { return Plane(k_); }
  CachePlane v() const { return Plane(v_); }

 private:
  Pool(const Heads& heads, DType dtype, int64_t num_blocks)
      : heads_(heads), dtype_(dtype), num_blocks_(num_blocks) {}

  CachePlane Plane(const Buffer& memory) const {
    return {.data = memory.data(),
            .dtype = dtype_,
            .num_blocks = num_blocks_,
            .num_heads = heads_.kv_heads,
            .block_size = kBlockTokens,
            .dim = heads_.dim,
            .block_stride = int64_t{heads_.kv_heads} * kBlockTokens * heads_.dim};
  }

  Heads heads_;
  DType dtype_;
  int64_t num_blocks_;
  Buffer k_, v_, table_;
};

// So many sequences of so many keys, each with as many last queries.
struct Batch {
  int32_t sequences;
  int32_t keys;
  int32_t queries;
};

GpuWork WorkOf(const Heads& heads, DType kv, const Batch& batch) {
  const bool prefill = batch.queries > 1;
  const double queries = static_cast<double>(batch.sequences) * batch.queries;
  // Only keys that the mask leaves.
  const double keys = batch.keys - (batch.queries - 1) / 2.0;
  const double kv_bytes = 2.0 * static_cast<double>(batch.sequences) * batch.keys * heads.kv_heads *
                          heads.dim * static_cast<double>(SizeOf(kv));
  return {
      .name = absl::StrCat("attention ", prefill ? "prefill" : "decode", " D=", heads.dim,
                           " heads ", heads.heads, "/", heads.kv_heads, " batch ", batch.sequences,
                           " context ", batch.keys, " ", std::string(ToString(kv))),
      .ops = 4 * queries * keys * heads.heads * heads.dim,
      .bytes = kv_bytes + 2 * 2.0 * queries * heads.heads * heads.dim,
      .family = absl::StrCat(prefill ? "prefill" : "decode", IsFp8(kv) ? " fp8" : "", " D ",
                             heads.dim)};
}

absl::Status MeasureBatch(GpuBench& bench, const Heads& heads, DType kv, const Pool& pool,
                          const Batch& batch) {
  const int64_t tokens = int64_t{batch.sequences} * batch.queries;
  const int64_t width = int64_t{heads.heads} * heads.dim;
  const int64_t blocks = BlocksOf(batch.keys), of_call = blocks * batch.sequences;
  const int64_t parts = pool.num_blocks() / of_call;
  std::vector<int32_t> starts(batch.sequences + 1);
  for (int32_t s = 0; s <= batch.sequences; ++s) starts[s] = s * batch.queries;
  ASSIGN_OR_RETURN(const Buffer cu_seqlens, bench.Upload(starts));
  ASSIGN_OR_RETURN(const Buffer lens,
                   bench.Upload(std::vector<int32_t>(batch.sequences, batch.keys)));
  ASSIGN_OR_RETURN(const Buffer q, bench.RandomMemory(tokens * width * 2, DType::kBF16));
  ASSIGN_OR_RETURN(const Buffer out,
                   bench.device().Allocate(tokens * width * 2, MemoryKind::kDevice));
  return bench.Measure(WorkOf(heads, kv, batch), [&](int64_t i) {
    return bench.ops().VarlenAttention({.q = q.floats(DType::kBF16),
                                        .q_stride = width,
                                        .num_heads = heads.heads,
                                        .num_seqs = batch.sequences,
                                        .cu_seqlens_q = cu_seqlens.array<int32_t>(),
                                        .num_tokens = tokens,
                                        .max_seqlen_q = batch.queries,
                                        .seq_lens = lens.array<int32_t>(),
                                        .max_seqlen_k = batch.keys,
                                        .block_table = pool.table() + i % parts * of_call,
                                        .max_blocks = blocks,
                                        .k_cache = pool.k(),
                                        .v_cache = pool.v(),
                                        .round_to = DType::kBF16,
                                        .out = out.floats(DType::kBF16),
                                        .out_stride = width});
  });
}

// Each in a pool for itself, for the pools of long ones are as large as a GPU's memory. Calls go
// through it in turn, so that they find nothing in a cache.
absl::Status MeasureInPool(GpuBench& bench, const Heads& heads, DType kv, const Batch& batch) {
  const int64_t of_call = BlocksOf(batch.keys) * batch.sequences;
  const int64_t plane_block = Pool::BlockBytes(heads, kv);
  const int64_t calls = std::max<int64_t>(1, bench.cold_bytes() / (2 * plane_block * of_call));
  const std::string name = WorkOf(heads, kv, batch).name;
  ASSIGN_OR_RETURN(const bool fits, bench.HasRoomFor(2 * plane_block * of_call * calls));
  if (!fits) {
    bench.LeaveOut(name, "its K and V have no room on this GPU");
    return absl::OkStatus();
  }
  if (!bench.IsTimeFor(name)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Pool pool, Pool::Create(bench, heads, kv, of_call * calls));
  return MeasureBatch(bench, heads, kv, pool, batch);
}

}  // namespace

absl::Status MeasurePrefill(GpuBench& bench) {
  for (const Heads& heads : Either(bench.quick(), kQuickHeads, kPrefillHeads)) {
    for (const int32_t tokens : Either(bench.quick(), kQuickPrompts, kPrompts)) {
      RETURN_IF_ERROR(MeasureInPool(bench, heads, DType::kBF16,
                                    {.sequences = 1, .keys = tokens, .queries = tokens}));
    }
  }
  return absl::OkStatus();
}

absl::Status MeasureDecode(GpuBench& bench) {
  for (const Heads& heads : Either(bench.quick(), kQuickHeads, kDecodeHeads)) {
    for (const DType kv : {DType::kBF16, DType::kFp8E4M3}) {
      for (const int32_t keys : Either(bench.quick(), kQuickContexts, kContexts)) {
        for (const int32_t sequences : Either(bench.quick(), kQuickBatches, kBatches)) {
          RETURN_IF_ERROR(MeasureInPool(bench, heads, kv,
                                        {.sequences = sequences, .keys = keys, .queries = 1}));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::bench
