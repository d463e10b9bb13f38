#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "tests/bench/op_rows.h"

namespace baton::bench {
namespace {

// One layer's K of a model with 8 KV heads of 64, blocks of 16 tokens: 16 KiB each in bf16.
constexpr int32_t kHeads = 8;
constexpr int32_t kBlockSize = 16;
constexpr int32_t kDim = 64;
constexpr int64_t kBlockElements = int64_t{kHeads} * kBlockSize * kDim;

class CacheBench {
 public:
  CacheBench(CpuKernels* kernels, int64_t num_blocks)
      : kernels_(kernels),
        num_blocks_(num_blocks),
        from_(num_blocks * kBlockElements * 2, std::byte{1}),
        to_(from_.size(), std::byte{2}),
        tokens_(num_blocks * kBlockSize * kHeads * kDim, 0.5f) {
    for (int64_t i = 0; i < num_blocks; ++i) {
      const int64_t scattered = (i * 1021) % num_blocks;  // A prime: every block once.
      blocks_.push_back(static_cast<int32_t>(scattered));
      runs_.push_back({i, scattered, 1});
      if (scattered >= num_blocks / 2) continue;
      for (int64_t j = 0; j < kBlockSize; ++j) slots_.push_back(scattered * kBlockSize + j);
    }
    for (int64_t i = 0; i < num_blocks / 2; ++i) {
      pairs_.push_back({blocks_[i], blocks_[i + num_blocks / 2]});
    }
  }

  // Bytes of the whole plane.
  double bytes() const { return static_cast<double>(from_.size()); }

  void Memcpy() { std::memcpy(to_.data(), from_.data(), from_.size()); }

  void Swap() {
    const CachePlane source = Plane(from_), destination = Plane(to_);
    BATON_CHECK(kernels_
                    ->SwapBlocks({.sources = &source,
                                  .destinations = &destination,
                                  .num_planes = 1,
                                  .runs = runs_.data(),
                                  .num_runs = num_blocks_})
                    .ok());
  }

  // Half of the blocks onto the other half.
  void Copy() {
    const CachePlane plane = Plane(to_);
    BATON_CHECK(kernels_
                    ->CopyBlocks({.planes = &plane,
                                  .num_planes = 1,
                                  .pairs = pairs_.data(),
                                  .num_pairs = std::ssize(pairs_)})
                    .ok());
  }

  // Both halves of the heads, one after the other.
  void Gather() {
    const CachePlane plane = Plane(from_);
    for (const int32_t head : {0, kHeads / 2}) {
      BATON_CHECK(kernels_
                      ->GatherBlocks({.planes = &plane,
                                      .num_planes = 1,
                                      .blocks = blocks_.data(),
                                      .num_blocks = num_blocks_,
                                      .first_head = head,
                                      .num_heads = kHeads / 2,
                                      .staging = to_.data(),
                                      .staging_bytes = std::ssize(to_) / 2})
                      .ok());
    }
  }

  void Scatter() {
    const CachePlane plane = Plane(to_);
    for (const int32_t head : {0, kHeads / 2}) {
      BATON_CHECK(kernels_
                      ->ScatterBlocks({.planes = &plane,
                                       .num_planes = 1,
                                       .blocks = blocks_.data(),
                                       .num_blocks = num_blocks_,
                                       .first_head = head,
                                       .num_heads = kHeads / 2,
                                       .staging = from_.data(),
                                       .staging_bytes = std::ssize(from_) / 2})
                      .ok());
    }
  }

  // f32 of all tokens, rounded to bf16: K and V of half the blocks each.
  void Reshape() {
    CachePlane k = Plane(to_), v = Plane(to_);
    k.num_blocks = v.num_blocks = num_blocks_ / 2;
    v.data = to_.data() + to_.size() / 2;
    BATON_CHECK(kernels_
                    ->ReshapeAndCache({.key = tokens_.data(),
                                       .key_stride = int64_t{kHeads} * kDim,
                                       .value = tokens_.data() + tokens_.size() / 2,
                                       .value_stride = int64_t{kHeads} * kDim,
                                       .slot_mapping = slots_.data(),
                                       .num_tokens = std::ssize(slots_),
                                       .k_cache = k,
                                       .v_cache = v})
                    .ok());
  }

 private:
  CachePlane Plane(std::vector<std::byte>& bytes) const {
    return {.data = bytes.data(),
            .dtype = DType::kBF16,
            .num_blocks = num_blocks_,
            .num_heads = kHeads,
            .block_size = kBlockSize,
            .dim = kDim,
            .block_stride = kBlockElements};
  }

  CpuKernels* kernels_;
  int64_t num_blocks_;
  std::vector<std::byte> from_, to_;
  std::vector<float> tokens_;
  std::vector<int32_t> blocks_;
  std::vector<int64_t> slots_;  // Of the first half of the blocks.
  std::vector<BlockRun> runs_;
  std::vector<BlockPair> pairs_;
};

}  // namespace

void AddCacheRows(const OpOptions& options, CpuKernels& kernels, std::vector<Row>& rows) {
  struct Case {
    const char* name;
    double share;  // Of the plane's bytes, how many are moved.
    void (CacheBench::*run)();
  };
  constexpr Case kCases[] = {
      {"cache swap_blocks, scattered 16 KiB", 1, &CacheBench::Swap},
      {"cache copy_blocks, scattered 16 KiB", 0.5, &CacheBench::Copy},
      {"cache gather_blocks, halves of the heads", 1, &CacheBench::Gather},
      {"cache scatter_blocks, halves of the heads", 1, &CacheBench::Scatter},
      {"cache reshape_and_cache, bf16 written", 1, &CacheBench::Reshape},
  };
  const auto wants = [&](const Case& c) { return options.Wants(c.name); };
  if (std::ranges::none_of(kCases, wants)) return;
  CacheBench bench(&kernels, options.quick ? 256 : 4096);
  const auto rate = [&](double share, auto&& run) {
    double best = 0;
    for (int i = 0; i < options.repeats; ++i) {
      const double start = Now();
      run();
      best = std::max(best, share * bench.bytes() * 1e-9 / (Now() - start));
    }
    return best;
  };
  for (const Case& c : kCases) {
    if (!wants(c)) continue;
    const double before = rate(1, [&] { bench.Memcpy(); });
    const double value = rate(c.share, [&] { (bench.*c.run)(); });
    const double after = rate(1, [&] { bench.Memcpy(); });
    rows.push_back({.name = c.name,
                    .value = value,
                    .unit = "GB/s",
                    .roof = std::max(before, after),
                    .roof_name = "memcpy, 1 thread"});
  }
}

}  // namespace baton::bench
