#include "kernels/cpu/cpu_kernels.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cpu/check_args.h"
#include "kernels/cpu/lane_convert.h"

namespace baton {
namespace {

// Below this many elements (or products) waking the pool costs more than it saves.
constexpr int64_t kInlineElements = 1 << 13;
constexpr int64_t kInlineProducts = 1 << 19;
// Rows of a matrix product whose activations stay in the cache while panels pass by.
constexpr int64_t kGemmRows = 96;
// Query rows (tokens x heads of a group) of one attention task.
constexpr int64_t kAttentionRows = 96;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

float LoadElement(DType dtype, const std::byte* base, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      return LoadOne<DType::kF32>(base, index);
    case DType::kF16:
      return LoadOne<DType::kF16>(base, index);
    case DType::kBF16:
      return LoadOne<DType::kBF16>(base, index);
  }
  return 0;
}

// Where element (row, column) of a packed matrix lies.
int64_t PackedIndex(const PackedMatrix& m, int64_t row, int64_t column) {
  constexpr int64_t kRows = PackedMatrix::kPanelRows;
  return (row / kRows * m.k() + column) * kRows + row % kRows;
}

void CopyBlock(const CachePlane& from, int64_t source, const CachePlane& to, int64_t destination) {
  const int64_t size = SizeOf(from.dtype);
  const int64_t bytes = int64_t{from.num_heads} * from.block_size * from.dim * size;
  std::memcpy(to.data + destination * to.block_stride * size,
              from.data + source * from.block_stride * size, bytes);
}

// Copies rows [begin, end) of a part to `first_row` + begin and after, converting only where the
// dtypes differ.
void PackRows(const WeightRows& part, int64_t begin, int64_t end, int64_t first_row,
              PackedMatrix& to) {
  const int64_t size = SizeOf(to.dtype());
  const int64_t panel_step = PackedMatrix::kPanelRows * size;
  for (int64_t r = begin; r < end; ++r) {
    std::byte* out = to.data() + PackedIndex(to, first_row + r, 0) * size;
    const int64_t from = r * to.k();
    for (int64_t k = 0; k < to.k(); ++k) {
      if (part.dtype != to.dtype()) {
        const float x = LoadElement(part.dtype, part.data, from + k);
        std::memcpy(out + k * panel_step, &x, sizeof(x));
      } else if (size == 2) {
        std::memcpy(out + k * panel_step, part.data + (from + k) * 2, 2);
      } else {
        std::memcpy(out + k * panel_step, part.data + (from + k) * 4, 4);
      }
    }
  }
}

}  // namespace

CpuKernels::CpuKernels(const KernelSet* set, int num_threads)
    : set_(set), pool_(num_threads), scratch_(num_threads) {}

template <typename Body>
void CpuKernels::ForTokens(int64_t num_tokens, int64_t elements, const Body& body) {
  if (elements < kInlineElements) return body(0, num_tokens);
  const int64_t tasks = std::min<int64_t>(num_tokens, pool_.num_threads() * 4);
  const int64_t each = CeilDiv(num_tokens, std::max<int64_t>(tasks, 1));
  pool_.ParallelFor(CeilDiv(num_tokens, each), [&](int64_t task, int) {
    body(task * each, std::min(num_tokens, (task + 1) * each));
  });
}

absl::Status CpuKernels::ReshapeAndCache(const ReshapeAndCacheArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  const int64_t elements = int64_t{args.k_cache.num_heads} * args.k_cache.dim * args.num_tokens;
  ForTokens(args.num_tokens, elements,
            [&](int64_t begin, int64_t end) { set_->reshape_and_cache(args, begin, end); });
  return absl::OkStatus();
}

absl::Status CpuKernels::CopyBlocks(const CopyBlocksArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  for (int64_t p = 0; p < args.num_planes; ++p) {
    for (int64_t i = 0; i < args.num_pairs; ++i) {
      CopyBlock(args.planes[p], args.pairs[i].source, args.planes[p], args.pairs[i].destination);
    }
  }
  return absl::OkStatus();
}

absl::Status CpuKernels::SwapBlocks(const SwapBlocksArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  for (int64_t p = 0; p < args.num_planes; ++p) {
    for (int64_t i = 0; i < args.num_pairs; ++i) {
      CopyBlock(args.sources[p], args.pairs[i].source, args.destinations[p],
                args.pairs[i].destination);
    }
  }
  return absl::OkStatus();
}

absl::Status CpuKernels::VarlenAttention(const VarlenAttentionArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  if (args.num_seqs == 0) return absl::OkStatus();
  const int64_t group = args.num_heads / args.k_cache.num_heads;
  const int64_t tile = std::max<int64_t>(1, kAttentionRows / group);
  tasks_.clear();
  int64_t products = 0;
  int64_t longest = 0;
  for (int64_t s = 0; s < args.num_seqs; ++s) {
    const int64_t end = args.cu_seqlens_q[s + 1];
    products += (end - args.cu_seqlens_q[s]) * args.seq_lens[s] * args.num_heads * args.k_cache.dim;
    // Later queries see more keys: the longest tasks start first.
    for (int64_t at = args.cu_seqlens_q[s]; at < end; at += tile) {
      longest = std::max(longest, std::min(tile, end - at));
      for (int64_t h = 0; h < args.k_cache.num_heads; ++h) {
        tasks_.push_back({s, h, at, std::min(end, at + tile)});
      }
    }
  }
  std::reverse(tasks_.begin(), tasks_.end());
  const size_t floats =
      set_->attention_scratch({longest, group, args.k_cache.dim, args.v_cache.dim});
  for (std::vector<float>& scratch : scratch_) {
    if (scratch.size() < floats) scratch.resize(floats);
  }
  const auto run = [&](int64_t task, int thread) {
    set_->attention(args, tasks_[task], scratch_[thread].data());
  };
  const int64_t num_tasks = tasks_.size();
  if (products < kInlineProducts) {
    for (int64_t i = 0; i < num_tasks; ++i) run(i, 0);
  } else {
    pool_.ParallelFor(num_tasks, run);
  }
  return absl::OkStatus();
}

absl::Status CpuKernels::RmsNorm(const RmsNormArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  ForTokens(args.num_tokens, args.num_tokens * args.rows_per_token * args.dim,
            [&](int64_t begin, int64_t end) { set_->rms_norm(args, begin, end); });
  return absl::OkStatus();
}

absl::Status CpuKernels::Rope(const RopeArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  ForTokens(args.num_tokens, args.num_tokens * args.num_heads * args.rotary_dim,
            [&](int64_t begin, int64_t end) { set_->rope(args, begin, end); });
  return absl::OkStatus();
}

absl::Status CpuKernels::ActivationAndMul(const ActivationAndMulArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  ForTokens(args.num_tokens, args.num_tokens * args.dim,
            [&](int64_t begin, int64_t end) { set_->activation_and_mul(args, begin, end); });
  return absl::OkStatus();
}

absl::Status CpuKernels::Embedding(const EmbeddingArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  const PackedMatrix& table = *args.table;
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t d = 0; d < table.k(); ++d) {
        args.out[t * table.k() + d] =
            LoadElement(table.dtype(), table.data(), PackedIndex(table, args.tokens[t], d));
      }
    }
  };
  if (args.num_tokens > 0) ForTokens(args.num_tokens, args.num_tokens * table.k(), body);
  return absl::OkStatus();
}

absl::Status CpuKernels::Gemm(const GemmArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  const PackedMatrix& w = *args.weights;
  const int64_t panels = w.num_panels();
  const auto run = [&](int64_t row, int64_t rows, int64_t panel, int64_t num_panels) {
    const int64_t column = panel * PackedMatrix::kPanelRows;
    set_->gemm({.a = args.a + row * args.a_stride,
                .a_stride = args.a_stride,
                .m = rows,
                .k = w.k(),
                .panels = w.data() + column * w.k() * SizeOf(w.dtype()),
                .dtype = w.dtype(),
                .panel_stride = w.k() * PackedMatrix::kPanelRows,
                .num_panels = num_panels,
                .bias = args.bias == nullptr ? nullptr : args.bias + column,
                .out = args.out + row * args.out_stride + column,
                .out_stride = args.out_stride,
                .n = std::min(w.n() - column, num_panels * PackedMatrix::kPanelRows)});
  };
  const int64_t row_blocks = CeilDiv(args.m, kGemmRows);
  const bool small = args.m * w.n() * w.k() < kInlineProducts;
  // Four tasks per thread even out cores of different speed.
  const int64_t parts = small ? 1
                              : CeilDiv(pool_.num_threads() == 1 ? 1 : pool_.num_threads() * 4,
                                        std::max<int64_t>(row_blocks, 1));
  const int64_t each = CeilDiv(CeilDiv(panels, parts), 4) * 4;
  const int64_t panel_blocks = CeilDiv(panels, each);
  pool_.ParallelFor(row_blocks * panel_blocks, [&](int64_t task, int) {
    const int64_t row = task % row_blocks * kGemmRows;
    const int64_t panel = task / row_blocks * each;
    run(row, std::min(kGemmRows, args.m - row), panel, std::min(each, panels - panel));
  });
  return absl::OkStatus();
}

absl::StatusOr<PackedMatrix> CpuKernels::PackWeights(const PackWeightsArgs& args) {
  RETURN_IF_ERROR(CheckArgs(args));
  int64_t n = 0;
  DType dtype = args.parts[0].dtype;
  for (int64_t i = 0; i < args.num_parts; ++i) {
    n += args.parts[i].num_rows;
    if (args.parts[i].dtype != dtype) dtype = DType::kF32;
  }
  PackedMatrix packed(n, args.k, dtype);
  if (packed.data() == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a weight matrix of ", PackedMatrix::SizeBytes(n, args.k, dtype),
                     " bytes: use a smaller model or a machine with more memory"));
  }
  std::memset(packed.data(), 0, PackedMatrix::SizeBytes(n, args.k, dtype));
  int64_t row = 0;
  for (int64_t i = 0; i < args.num_parts; ++i) {
    const WeightRows& part = args.parts[i];
    ForTokens(part.num_rows, part.num_rows * args.k,
              [&](int64_t begin, int64_t end) { PackRows(part, begin, end, row, packed); });
    row += part.num_rows;
  }
  return packed;
}

}  // namespace baton
