#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "tests/bench/measure.h"
#include "tests/bench/op_rows.h"

namespace baton::bench {
namespace {

struct Shape {
  int32_t dim;
  int32_t heads;
  int32_t kv_heads;
  int64_t num_seqs;
  int32_t keys;  // Per sequence.
};
constexpr Shape kPrefill[] = {{64, 32, 8, 1, 512},   {64, 32, 8, 1, 4096}, {80, 8, 8, 1, 4096},
                              {96, 8, 8, 1, 4096},   {128, 8, 8, 1, 512},  {128, 8, 8, 1, 4096},
                              {128, 16, 4, 1, 4096}, {256, 4, 1, 1, 4096}};
constexpr Shape kDecode[] = {{64, 32, 8, 1, 512},    {64, 32, 8, 8, 512},   {64, 32, 8, 8, 8192},
                             {80, 8, 8, 8, 8192},    {96, 8, 8, 8, 8192},   {256, 8, 4, 8, 8192},
                             {128, 8, 8, 8, 8192},   {128, 32, 8, 8, 8192}, {128, 64, 8, 8, 8192},
                             {128, 8, 1, 1, 131072}, {128, 4, 1, 1, 131072}};
constexpr Shape kQuickPrefill[] = {{64, 8, 2, 1, 512}, {128, 8, 8, 1, 512}};
constexpr Shape kQuickDecode[] = {{64, 8, 2, 8, 512}, {128, 8, 8, 8, 512}};
// Calls of decode go through caches that together no level of the machine's holds.
constexpr int64_t kColdBytes = int64_t{512} << 20;

// K and V of all sequences in blocks of 16 whose order is shuffled.
class AttentionBench {
 public:
  AttentionBench(CpuKernels* kernels, const Shape& shape, DType dtype, bool prefill)
      : kernels_(kernels), shape_(shape), dtype_(dtype), prefill_(prefill) {
    const int64_t blocks = (shape.keys + kBlockSize - 1) / kBlockSize;
    const int64_t copies = prefill ? 1 : std::max<int64_t>(1, kColdBytes / Bytes());
    num_blocks_ = copies * shape.num_seqs * blocks;
    max_blocks_ = blocks;
    table_.resize(num_blocks_);
    std::iota(table_.begin(), table_.end(), 0);
    uint64_t state = 1;
    for (int64_t i = num_blocks_ - 1; i > 0; --i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::swap(table_[i], table_[static_cast<int64_t>(state >> 33) % (i + 1)]);
    }
    const int64_t elements = num_blocks_ * shape.kv_heads * kBlockSize * shape.dim;
    const int64_t size = SizeOf(dtype);
    k_cache_ = MakeCache(elements * size);
    v_cache_ = MakeCache(elements * size);
    const int64_t tokens = prefill ? shape.num_seqs * shape.keys : shape.num_seqs;
    q_.assign(tokens * shape.heads * shape.dim, 0.5f);
    out_.resize(q_.size());
    for (int64_t s = 0; s <= shape.num_seqs; ++s) {
      cu_seqlens_q_.push_back(static_cast<int32_t>(prefill ? s * shape.keys : s));
    }
    seq_lens_.assign(shape.num_seqs, shape.keys);
  }

  // Of K and V that one call reads.
  int64_t Bytes() const {
    return 2 * shape_.num_seqs * shape_.keys * shape_.kv_heads * shape_.dim * SizeOf(dtype_);
  }

  // A multiplication and an addition are two; only keys that the mask leaves.
  double Ops() const {
    const double keys = prefill_ ? 0.5 * shape_.keys * (shape_.keys + 1.0) : shape_.keys;
    return 4.0 * static_cast<double>(shape_.num_seqs) * keys * shape_.heads * shape_.dim;
  }

  double Seconds() {
    const int64_t calls = prefill_ ? 1 : num_blocks_ / (shape_.num_seqs * max_blocks_);
    const double start = Now();
    for (int64_t i = 0; i < calls; ++i) {
      const absl::Status status =
          kernels_->VarlenAttention({.q = q_.data(),
                                     .q_stride = int64_t{shape_.heads} * shape_.dim,
                                     .num_heads = shape_.heads,
                                     .num_seqs = shape_.num_seqs,
                                     .cu_seqlens_q = cu_seqlens_q_.data(),
                                     .seq_lens = seq_lens_.data(),
                                     .block_table = &table_[i * shape_.num_seqs * max_blocks_],
                                     .max_blocks = max_blocks_,
                                     .k_cache = Plane(k_cache_),
                                     .v_cache = Plane(v_cache_),
                                     .round_to = dtype_,
                                     .out = out_.data(),
                                     .out_stride = int64_t{shape_.heads} * shape_.dim});
      BATON_CHECK(status.ok());
    }
    return (Now() - start) / static_cast<double>(calls);
  }

  std::string Name() const {
    return std::string("attention ") + (prefill_ ? "prefill" : "decode") +
           " D=" + std::to_string(shape_.dim) + " heads " + std::to_string(shape_.heads) + "/" +
           std::to_string(shape_.kv_heads) + " batch " + std::to_string(shape_.num_seqs) +
           " length " + std::to_string(shape_.keys);
  }

 private:
  static constexpr int32_t kBlockSize = 16;

  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  using Cache = std::unique_ptr<std::byte[], Free>;

  // Of small numbers in either type, in huge pages, as a pool of K and V should be.
  static Cache MakeCache(int64_t bytes) {
    constexpr int64_t kHugePage = int64_t{2} << 20;
    const int64_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    Cache cache(static_cast<std::byte*>(std::aligned_alloc(kHugePage, rounded)));
    BATON_CHECK(cache != nullptr);
    madvise(cache.get(), rounded, MADV_HUGEPAGE);
    std::memset(cache.get(), 0x3c, rounded);
    return cache;
  }

  CachePlane Plane(const Cache& cache) const {
    return {.data = cache.get(),
            .dtype = dtype_,
            .num_blocks = num_blocks_,
            .num_heads = shape_.kv_heads,
            .block_size = kBlockSize,
            .dim = shape_.dim,
            .block_stride = int64_t{shape_.kv_heads} * kBlockSize * shape_.dim};
  }

  CpuKernels* kernels_;
  Shape shape_;
  DType dtype_;
  bool prefill_;
  int64_t num_blocks_ = 0;
  int64_t max_blocks_ = 0;
  Cache k_cache_, v_cache_;
  std::vector<float> q_, out_;
  std::vector<int32_t> table_, cu_seqlens_q_, seq_lens_;
};

}  // namespace

void AddAttentionRows(const OpOptions& options, CpuKernels& kernels, MachineRoofs& roofs,
                      std::vector<Row>& rows) {
  const auto measure = [&](const Shape& shape, bool prefill) {
    AttentionBench bench(&kernels, shape, options.bf16 ? DType::kBF16 : DType::kF32, prefill);
    if (!options.Wants(bench.Name())) return;
    bench.Seconds();  // Pages and threads are there from now on.
    rows.push_back(MeasureBesideRoof({.name = bench.Name(),
                                      .ops = prefill ? bench.Ops() : 0,
                                      .bytes = prefill ? 0 : static_cast<double>(bench.Bytes()),
                                      .seconds = [&] { return bench.Seconds(); }},
                                     options.repeats, options.bf16, roofs));
  };
  for (const Shape& shape : options.quick ? std::span<const Shape>(kQuickPrefill) : kPrefill) {
    measure(shape, true);
  }
  for (const Shape& shape : options.quick ? std::span<const Shape>(kQuickDecode) : kDecode) {
    measure(shape, false);
  }
}

}  // namespace baton::bench
