#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "kernels/cuda/weights.h"
#include "tests/gpu/bench/gpu_bench.h"

namespace baton::bench {
namespace {

struct Sizes {
  const char* model;
  int64_t hidden, ffn;
  int64_t heads, kv_heads, dim;
  int64_t vocab;
};
constexpr Sizes kSizesOf8B = {"8B", 4096, 14336, 32, 8, 128, 128256};
constexpr Sizes kQuickSizes = {"quick", 64, 128, 4, 2, 16, 64};
constexpr int64_t kTokens[] = {1, 128, 4096};
constexpr int64_t kQuickTokens[] = {2};

// What a layer does to each token between its products, as the runner calls it.
class RowBench {
 public:
  static absl::StatusOr<RowBench> Create(GpuBench* bench) {
    RowBench rows(bench);
    const Sizes& s = rows.sizes_;
    const int64_t most = rows.tokens_.back();
    ASSIGN_OR_RETURN(rows.x_, bench->RandomMemory(most * s.ffn * 2 * 2, DType::kBF16));
    ASSIGN_OR_RETURN(rows.out_, bench->RandomMemory(most * s.ffn * 2, DType::kBF16));
    const auto floats = [&](int64_t n) { return bench->Upload(Bits(n)); };
    ASSIGN_OR_RETURN(rows.residual_, floats(most * s.hidden));
    ASSIGN_OR_RETURN(rows.weight_, floats(s.hidden));
    ASSIGN_OR_RETURN(rows.angles_, floats(most * s.dim));
    ASSIGN_OR_RETURN(rows.k_, bench->RandomMemory(rows.PlaneBytes(), DType::kBF16));
    ASSIGN_OR_RETURN(rows.v_, bench->RandomMemory(rows.PlaneBytes(), DType::kBF16));
    ASSIGN_OR_RETURN(Buffer table,
                     bench->RandomMemory(s.vocab * cuda::RowStride(s.hidden) * 2, DType::kBF16));
    rows.table_ =
        PackedMatrix(s.vocab, s.hidden, DType::kBF16, WeightFormat::kCuda, std::move(table));
    RETURN_IF_ERROR(rows.ChooseRows());
    return rows;
  }

  absl::Status Measure() {
    for (const int64_t n : tokens_) {
      RETURN_IF_ERROR(MeasureNorm(n));
      RETURN_IF_ERROR(MeasureRope(n));
      RETURN_IF_ERROR(MeasureActivation(n));
      RETURN_IF_ERROR(MeasureCacheWrite(n));
      RETURN_IF_ERROR(MeasureEmbedding(n));
      RETURN_IF_ERROR(MeasureSelection(n));
    }
    return absl::OkStatus();
  }

 private:
  explicit RowBench(GpuBench* bench)
      : bench_(*bench),
        sizes_(bench->quick() ? kQuickSizes : kSizesOf8B),
        tokens_(bench->quick() ? std::span<const int64_t>(kQuickTokens)
                               : std::span<const int64_t>(kTokens)) {}

  // Floats of 1/2 by their bits: buffers yield no float array to fill.
  static std::vector<uint32_t> Bits(int64_t n) { return std::vector<uint32_t>(n, 0x3f000000u); }
  int64_t PlaneBytes() const {
    return BlocksOf() * kBlockTokens * sizes_.kv_heads * sizes_.dim * 2;
  }
  int64_t BlocksOf() const { return (tokens_.back() + kBlockTokens - 1) / kBlockTokens; }
  CachePlane Plane(const Buffer& memory) const {
    return {.data = memory.data(),
            .dtype = DType::kBF16,
            .num_blocks = BlocksOf(),
            .num_heads = static_cast<int32_t>(sizes_.kv_heads),
            .block_size = kBlockTokens,
            .dim = static_cast<int32_t>(sizes_.dim),
            .block_stride = sizes_.kv_heads * kBlockTokens * sizes_.dim};
  }
  absl::Status ChooseRows() {
    Random random(1);
    std::vector<int32_t> tokens(tokens_.back()), rows(tokens_.back());
    for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(sizes_.vocab));
    std::iota(rows.begin(), rows.end(), 0);
    std::vector<int64_t> slots(tokens_.back());
    std::iota(slots.begin(), slots.end(), 0);
    ASSIGN_OR_RETURN(token_ids_, bench_.Upload(tokens));
    ASSIGN_OR_RETURN(rows_, bench_.Upload(rows));
    ASSIGN_OR_RETURN(slots_, bench_.Upload(slots));
    return absl::OkStatus();
  }
  // `each`: bytes read and written of a token.
  GpuWork Work(const char* name, int64_t tokens, int64_t each) const {
    return {.name = absl::StrCat(name, " ", sizes_.model, " ", tokens,
                                 tokens == 1 ? " token" : " tokens"),
            .bytes = static_cast<double>(tokens * each)};
  }
  Floats x() const { return x_.floats(DType::kBF16); }
  Floats out() const { return out_.floats(DType::kBF16); }

  absl::Status MeasureNorm(int64_t n) {
    const int64_t hidden = sizes_.hidden;
    return bench_.Measure(Work("rms_norm with residual", n, hidden * (2 + 8 + 2)), [&](int64_t) {
      return bench_.ops().RmsNorm({.x = x(),
                                   .x_stride = hidden,
                                   .num_tokens = n,
                                   .dim = hidden,
                                   .weight = weight_.floats(DType::kF32).f32(),
                                   .eps = 1e-5f,
                                   .residual = residual_.floats(DType::kF32).f32(),
                                   .round_to = DType::kBF16,
                                   .out = out(),
                                   .out_stride = hidden});
    });
  }
  absl::Status MeasureRope(int64_t n) {
    const int64_t width = sizes_.heads * sizes_.dim, half = sizes_.dim / 2;
    return bench_.Measure(Work("rope", n, 4 * width + 8 * half), [&](int64_t) {
      return bench_.ops().Rope({.x = x(),
                                .x_stride = width,
                                .num_tokens = n,
                                .num_heads = sizes_.heads,
                                .head_dim = sizes_.dim,
                                .rotary_dim = sizes_.dim,
                                .cos = angles_.floats(DType::kF32).f32(),
                                .sin = angles_.floats(DType::kF32, n * half).f32()});
    });
  }
  absl::Status MeasureActivation(int64_t n) {
    return bench_.Measure(Work("silu and product", n, 6 * sizes_.ffn), [&](int64_t) {
      return bench_.ops().ActivationAndMul({.gate_up = x(),
                                            .num_tokens = n,
                                            .dim = sizes_.ffn,
                                            .round_to = DType::kBF16,
                                            .out = out()});
    });
  }
  absl::Status MeasureCacheWrite(int64_t n) {
    const int64_t width = sizes_.kv_heads * sizes_.dim;
    return bench_.Measure(Work("cache write", n, 8 * width), [&](int64_t) {
      return bench_.ops().ReshapeAndCache({.key = x(),
                                           .key_stride = width,
                                           .value = out(),
                                           .value_stride = width,
                                           .slot_mapping = slots_.array<int64_t>(),
                                           .num_tokens = n,
                                           .k_cache = Plane(k_),
                                           .v_cache = Plane(v_)});
    });
  }
  absl::Status MeasureEmbedding(int64_t n) {
    return bench_.Measure(Work("embedding", n, 6 * sizes_.hidden), [&](int64_t) {
      return bench_.ops().Embedding({.shards = {&table_},
                                     .tokens = token_ids_.array<int32_t>(),
                                     .num_tokens = n,
                                     .out = residual_.floats(DType::kF32)});
    });
  }
  absl::Status MeasureSelection(int64_t n) {
    return bench_.Measure(Work("select rows", n, 4 * sizes_.hidden), [&](int64_t) {
      return bench_.ops().SelectRows({.from = x(),
                                      .from_stride = sizes_.hidden,
                                      .rows = rows_.array<int32_t>(),
                                      .num_rows = n,
                                      .dim = sizes_.hidden,
                                      .to = out(),
                                      .to_stride = sizes_.hidden});
    });
  }

  GpuBench& bench_;
  const Sizes sizes_;
  const std::span<const int64_t> tokens_;
  Buffer x_, out_, residual_, weight_, angles_, k_, v_, token_ids_, rows_, slots_;
  PackedMatrix table_;
};

}  // namespace

absl::Status MeasureRows(GpuBench& bench) {
  ASSIGN_OR_RETURN(RowBench rows, RowBench::Create(&bench));
  return rows.Measure();
}

}  // namespace baton::bench
