// Attention and cache operators beside the machine's roofs.
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "kernels/make_device.h"
#include "tests/bench/machine_roofs.h"
#include "tests/bench/report.h"

namespace baton::bench {
namespace {

struct Options {
  std::string kernels = "auto";
  std::string compute = "bf16";
  int threads = static_cast<int>(std::jthread::hardware_concurrency());
  int repeats = 5;
  std::string only;  // Part of a row's name; empty: all.
  bool json = false;
};

struct Shape {
  int32_t dim;
  int32_t heads;
  int32_t kv_heads;
  int64_t num_seqs;
  int32_t keys;  // Per sequence.
};
constexpr Shape kPrefill[] = {
    {64, 32, 8, 1, 512}, {64, 32, 8, 1, 4096}, {128, 16, 4, 1, 4096}, {128, 8, 8, 1, 4096}};
constexpr Shape kDecode[] = {{64, 32, 8, 1, 512},    {64, 32, 8, 8, 512},   {64, 32, 8, 8, 8192},
                             {128, 8, 8, 8, 8192},   {128, 32, 8, 8, 8192}, {128, 64, 8, 8, 8192},
                             {128, 8, 1, 1, 131072}, {128, 4, 1, 1, 131072}};
// Calls of decode go through caches that together no level of the machine's holds.
constexpr int64_t kColdBytes = int64_t{512} << 20;

DType DTypeOf(const Options& options) {
  return options.compute == "bf16" ? DType::kBF16 : DType::kF32;
}

// K and V of all sequences in blocks of 16 whose order is shuffled.
class AttentionBench {
 public:
  AttentionBench(Kernels* kernels, const Shape& shape, DType dtype, bool prefill)
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
    return std::string(prefill_ ? "prefill" : "decode") + " D=" + std::to_string(shape_.dim) +
           " heads " + std::to_string(shape_.heads) + "/" + std::to_string(shape_.kv_heads) +
           " batch " + std::to_string(shape_.num_seqs) + " length " + std::to_string(shape_.keys);
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

  Kernels* kernels_;
  Shape shape_;
  DType dtype_;
  bool prefill_;
  int64_t num_blocks_ = 0;
  int64_t max_blocks_ = 0;
  Cache k_cache_, v_cache_;
  std::vector<float> q_, out_;
  std::vector<int32_t> table_, cu_seqlens_q_, seq_lens_;
};

// Each repetition stands between two measurements of its roof, of which the higher counts; the best
// share is shown.
Row Measure(const Options& options, AttentionBench& bench, bool prefill, MachineRoofs& roofs) {
  const auto roof = [&] {
    return prefill ? roofs.ProductGigaOps(options.compute == "bf16") : roofs.ReadGigabytes();
  };
  const double amount = (prefill ? bench.Ops() : static_cast<double>(bench.Bytes())) * 1e-9;
  Row best{.name = bench.Name(),
           .unit = prefill ? "Gop/s" : "GB/s",
           .roof_name = prefill ? "product peak" : "read bandwidth"};
  bench.Seconds();
  double before = roof();
  for (int i = 0; i < options.repeats; ++i) {
    const double seconds = bench.Seconds();
    const double after = roof();
    const double most = std::max(before, after);
    before = after;
    if (best.roof > 0 && amount / seconds / most <= best.value / best.roof) continue;
    best.value = amount / seconds;
    best.roof = most;
    best.seconds = seconds;
  }
  return best;
}

// Copies of blocks beside memcpy of the same bytes, in bytes moved.
void MeasureCopies(const Options& options, Kernels& kernels, std::vector<Row>& rows) {
  constexpr int64_t kBlocks = 2048, kElements = 8 * 16 * 64;
  std::vector<std::byte> from(kBlocks * kElements * 2, std::byte{1}), to(from.size());
  CachePlane source{.data = from.data(),
                    .dtype = DType::kBF16,
                    .num_blocks = kBlocks,
                    .num_heads = 8,
                    .block_size = 16,
                    .dim = 64,
                    .block_stride = kElements};
  CachePlane destination = source;
  destination.data = to.data();
  std::vector<BlockRun> runs;
  std::vector<int32_t> blocks;
  for (int64_t i = 0; i < kBlocks; ++i) {
    runs.push_back({i, (i * 1021) % kBlocks, 1});
    blocks.push_back(static_cast<int32_t>((i * 1021) % kBlocks));
  }
  const auto best_of = [&](const auto& body) {
    double best = 1e9;
    for (int i = 0; i < options.repeats; ++i) {
      const double start = Now();
      body();
      best = std::min(best, Now() - start);
    }
    return static_cast<double>(from.size()) * 1e-9 / best;
  };
  const double roof = best_of([&] { std::memcpy(to.data(), from.data(), from.size()); });
  const auto add = [&](const char* name, const auto& body) {
    rows.push_back({.name = name,
                    .value = best_of(body),
                    .unit = "GB/s",
                    .roof = roof,
                    .roof_name = "memcpy, 1 thread"});
  };
  add("swap_blocks, scattered blocks of 16 KiB", [&] {
    BATON_CHECK(kernels
                    .SwapBlocks({.sources = &source,
                                 .destinations = &destination,
                                 .num_planes = 1,
                                 .runs = runs.data(),
                                 .num_runs = kBlocks})
                    .ok());
  });
  add("gather_blocks, half of the heads, counted whole", [&] {
    for (const int32_t head : {0, 4}) {
      BATON_CHECK(kernels
                      .GatherBlocks({.planes = &source,
                                     .num_planes = 1,
                                     .blocks = blocks.data(),
                                     .num_blocks = kBlocks,
                                     .first_head = head,
                                     .num_heads = 4,
                                     .staging = to.data(),
                                     .staging_bytes = std::ssize(to) / 2})
                      .ok());
    }
  });
}

int Run(const Options& options) {
  auto kernels = MakeKernels({.kernels = options.kernels, .num_threads = options.threads});
  if (!kernels.ok()) {
    std::fprintf(stderr, "%s\n", kernels.status().ToString().c_str());
    return 1;
  }
  ThreadPool pool(options.threads);
  MachineRoofs roofs(&pool);
  std::vector<Row> rows;
  const auto measure = [&](const Shape& shape, bool prefill) {
    AttentionBench bench(kernels->get(), shape, DTypeOf(options), prefill);
    if (bench.Name().find(options.only) == std::string::npos) return;
    rows.push_back(Measure(options, bench, prefill, roofs));
  };
  for (const Shape& shape : kPrefill) measure(shape, true);
  for (const Shape& shape : kDecode) measure(shape, false);
  if (options.only.empty()) MeasureCopies(options, **kernels, rows);
  Print("attention",
        std::string((*kernels)->name()) + ", compute and cache " + options.compute + ", " +
            std::to_string(options.threads) + " threads, best of " +
            std::to_string(options.repeats),
        rows, options.json);
  return 0;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  CLI::App app("Attention and cache operators, each beside its roof of the same run");
  baton::bench::Options options;
  app.add_option("--kernels", options.kernels)->capture_default_str();
  app.add_option("--compute-dtype", options.compute, "Of the cache as well")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  app.add_option("--threads", options.threads)->capture_default_str();
  app.add_option("--repeats", options.repeats)->capture_default_str();
  app.add_option("--only", options.only, "Rows whose name contains this");
  app.add_flag("--json", options.json, "For machines");
  CLI11_PARSE(app, argc, argv);
  return baton::bench::Run(options);
}
