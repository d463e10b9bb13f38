#include "kernels/cuda/sm90_check.h"

#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_sm90.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_sm90.h"
#include "kernels/cuda/hard_numbers.h"
#include "kernels/cuda/sm90_forms.h"
#include "kernels/cuda/small_gemm_sm90.h"

namespace baton::cuda {
namespace {

constexpr int kFewTokens = 8;  // By the narrowest of the products that the forms have,
constexpr int kWide = 4;       // and by the widest.

// Every form's results, its own after that for every GPU.
struct Results {
  float products[5][HardNumbers::kTokens][HardNumbers::kWeights];
  float attention[2][HardNumbers::kTokens][HardNumbers::kDim];
};
static_assert(sizeof(HardNumbers) % alignof(Results) == 0);
static_assert(sizeof(HardNumbers) + sizeof(Results) <= kSm90CheckBytes);

// The operands of one type and the results, as they lie in the device's memory.
struct Arrays {
  DType dtype;
  HardNumbers* in;
  Results* out;
};

cudaError_t Multiply(const Arrays& arrays, cudaStream_t stream) {
  const int64_t bytes = sizeof(arrays.in->weights);
  const PackedMatrix weights(
      HardNumbers::kWeights, HardNumbers::kDepth, arrays.dtype, WeightFormat::kCuda,
      Buffer(reinterpret_cast<std::byte*>(arrays.in->weights), bytes, nullptr));
  GemmArgs args{.a = {arrays.in->tokens, arrays.dtype},
                .a_stride = HardNumbers::kDepth,
                .m = HardNumbers::kTokens,
                .weights = &weights,
                .out_stride = HardNumbers::kWeights};
  const auto with = [&](int form, const auto& launch) {
    args.out = Floats(arrays.out->products[form], DType::kF32);
    return launch(args);
  };
  cudaError_t error = with(0, [&](const GemmArgs& all) { return MmaGemm(all, {}, stream); });
  if (error != cudaSuccess) return error;
  error = with(1, [&](const GemmArgs& all) { return GemmSm90(all, stream); });
  if (error != cudaSuccess) return error;
  error = with(2, [&](const GemmArgs& all) { return SmallGemmSm90(all, stream); });
  if (error != cudaSuccess) return error;
  error = with(kWide, [&](const GemmArgs& all) { return WideGemmSm90(all, stream); });
  if (error != cudaSuccess) return error;
  args.m = kFewTokens;
  return with(3, [&](const GemmArgs& few) { return SmallGemmSm90(few, stream); });
}

// Every query sees every key.
cudaError_t Attend(const Arrays& arrays, cudaStream_t stream) {
  const auto plane = [&](void* data) {
    return CachePlane{.data = static_cast<std::byte*>(data),
                      .dtype = arrays.dtype,
                      .num_blocks = HardNumbers::kBlocks,
                      .num_heads = 1,
                      .block_size = HardNumbers::kBlockKeys,
                      .dim = HardNumbers::kDim,
                      .block_stride = HardNumbers::kBlockKeys * HardNumbers::kDim};
  };
  VarlenAttentionArgs args{.q = {arrays.in->queries, arrays.dtype},
                           .q_stride = HardNumbers::kDim,
                           .num_heads = 1,
                           .num_seqs = 1,
                           .cu_seqlens_q = arrays.in->query_starts,
                           .num_tokens = HardNumbers::kTokens,
                           .max_seqlen_q = HardNumbers::kTokens,
                           .seq_lens = arrays.in->lengths,
                           .max_seqlen_k = HardNumbers::kKeys,
                           .block_table = arrays.in->table,
                           .max_blocks = HardNumbers::kBlocks,
                           .k_cache = plane(arrays.in->keys),
                           .v_cache = plane(arrays.in->values),
                           .scores = {.scale = HardNumbers::kScale, .causal = false},
                           .out_stride = HardNumbers::kDim};
  args.out = Floats(arrays.out->attention[0], DType::kF32);
  const cudaError_t error = MmaVarlenAttention(args, {}, stream);
  if (error != cudaSuccess) return error;
  args.out = Floats(arrays.out->attention[1], DType::kF32);
  return AttentionSm90(args, stream);
}

std::vector<std::string> DifferencesOf(DType dtype, const Results& results) {
  std::vector<std::string> differences;
  const auto compare = [&](const auto& one, const auto& other, size_t bytes, const char* what) {
    if (std::memcmp(one, other, bytes) == 0) return;
    differences.push_back(absl::StrCat(std::string(ToString(dtype)), " ", what));
  };
  const auto& products = results.products;
  compare(products[0], products[1], sizeof(products[0]), "products of many rows");
  compare(products[0], products[2], sizeof(products[0]), "products of few rows");
  compare(products[0], products[3], kFewTokens * sizeof(products[0][0]), "products of 8 rows");
  compare(products[0], products[kWide], sizeof(products[0]), "products of wide tiles");
  compare(results.attention[0], results.attention[1], sizeof(results.attention[0]), "attention");
  return differences;
}

absl::StatusOr<std::vector<std::string>> CompareOf(DType dtype, const CheckRoom& room) {
  const auto in = std::make_unique<HardNumbers>(dtype);
  const auto out = std::make_unique<Results>();
  std::byte* const memory = room.memory.data();
  const Arrays arrays{dtype, reinterpret_cast<HardNumbers*>(memory),
                      reinterpret_cast<Results*>(memory + sizeof(HardNumbers))};
  RETURN_IF_ERROR(
      ToStatus(cudaMemcpyAsync(memory, in.get(), sizeof(*in), cudaMemcpyHostToDevice, room.stream),
               "cudaMemcpyAsync"));
  RETURN_IF_ERROR(ToStatus(Multiply(arrays, room.stream), "Gemm"));
  RETURN_IF_ERROR(ToStatus(Attend(arrays, room.stream), "VarlenAttention"));
  // With a limit, which the copy has none of: to memory of this kind it waits for its own end.
  RETURN_IF_ERROR(room.wait());
  RETURN_IF_ERROR(ToStatus(
      cudaMemcpyAsync(out.get(), arrays.out, sizeof(*out), cudaMemcpyDeviceToHost, room.stream),
      "cudaMemcpyAsync"));
  return DifferencesOf(dtype, *out);
}

// Of a device of the process.
struct Verdict {
  std::mutex mutex;
  std::optional<std::string> differences;  // Nothing: nobody has compared.
};

}  // namespace

absl::StatusOr<std::string> CompareSm90Forms(const CheckRoom& room) {
  BATON_CHECK(room.memory.size_bytes() >= kSm90CheckBytes);
  std::vector<std::string> differences;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    ASSIGN_OR_RETURN(const std::vector<std::string> found, CompareOf(dtype, room));
    differences.insert(differences.end(), found.begin(), found.end());
  }
  // Nobody is to find numbers there that look like results.
  RETURN_IF_ERROR(ToStatus(cudaMemsetAsync(room.memory.data(), 0xff, kSm90CheckBytes, room.stream),
                           "cudaMemsetAsync"));
  return absl::StrJoin(differences, ", ");
}

absl::StatusOr<std::string> CheckSm90Forms(int device, const CheckRoom& room) {
  if (!IsSm90() || device >= kMostSm90Devices) return std::string();
  static std::array<Verdict, kMostSm90Devices> verdicts;
  Verdict& verdict = verdicts[device];
  const std::lock_guard lock(verdict.mutex);
  if (!verdict.differences.has_value()) {
    ASSIGN_OR_RETURN(verdict.differences, CompareSm90Forms(room));
    if (!verdict.differences->empty()) ForgoSm90Forms();
  }
  return *verdict.differences;
}

}  // namespace baton::cuda
