#include "kernels/cpu/kernel_set.h"

#include "kernels/cpu/attention.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gather_kv.h"
#include "kernels/cpu/generic_attention.h"
#include "kernels/cpu/moe.h"
#include "kernels/cpu/row_math.h"
#include "kernels/cpu/weight_gemm.h"

namespace baton::BATON_KERNEL_SET {
namespace {

constexpr KernelSet kSet = {
    .name = BATON_KERNEL_SET_NAME,
    .tiling = kTiling,
    .bf16_tiling = kBf16Tiling,
    .bf16_numerics = kBf16Numerics,
    .pack_activations = PackActivations,
    .weight_gemm = WeightGemm,
    .rms_norm = RmsNorm,
    .layer_norm = LayerNorm,
    .rope = Rope,
    .activation = Activation,
    .activation_and_mul = ActivationAndMul,
    .softcap = Softcap,
    .moe_routing = MoeRouting,
    .moe_combine = MoeCombine,
    .fold_partials = FoldPartials,
    .reshape_and_cache = ReshapeAndCache,
    .gather_kv = GatherKv,
    .attention_scratch = AttentionScratch,
    .attention = Attention,
    .reduce_attention = ReduceAttention,
    .generic_attention_scratch = GenericAttentionScratch,
    .generic_attention = GenericAttention,
    .reduce_generic_attention = ReduceGenericAttention,
    .merge_attention_states = MergeAttentionStates,
    .row_math = RowMathTable,
};

}  // namespace

const KernelSet* Table() { return &kSet; }

}  // namespace baton::BATON_KERNEL_SET
