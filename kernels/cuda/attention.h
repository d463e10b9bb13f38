#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/api/attention_args.h"
#include "kernels/api/buffer.h"
#include "kernels/cuda/operands.h"

// Attention over a paged kHnd cache that already holds the K and V of the queries; arrays of
// ScoreOptions are in device memory too. q is bf16 or f16 and aligned to 16 bytes, its stride a
// multiple of 8; `out` is f32 or the type of q. Both planes have one dim, a multiple of 8 up to
// 256, and are of the type of q or fp8; their strides and data are multiples of 8 elements.
// Sparsity, dense keys, AttentionScales and a caller's partials are not served
// (kernels/cuda/generic_attention.h does). cudaErrorInvalidValue for what is not allowed.
//
// Scores are sums in steps of 16 of the head size (mma.sync), scaled into powers of two; softmax
// takes 64 keys at a time, from absolute multiples of 64, and starts anew at each multiple of 512;
// these partials are folded left to right in f32. Probabilities are rounded to the type of q before
// they are summed, by four lanes of which each adds its own keys in ascending order, and multiplied
// with V. Scales of fp8 multiply scores and results, not elements.
namespace baton::cuda {

// For few queries of long sequences: with scratch memory, so many bytes, each partial has its own
// block. The bits are the same as without. Of the arguments only the sizes are looked at.
int64_t ScratchBytes(const VarlenAttentionArgs& args);
int64_t ScratchBytes(const PagedAttentionArgs& args);

// The longest sequences for which so much scratch memory is enough.
int64_t LongestSplit(int64_t num_tokens, int64_t num_heads, int64_t dim, int64_t scratch_bytes);

// Whether the kernels below serve it, as they do what the engine asks. A matter of types, layout
// and options alone, never of lengths, so that a sequence stays with one kernel; nor of where q
// lies, which they refuse if it is not aligned.
bool FastAttentionServes(const VarlenAttentionArgs& args);
bool FastAttentionServes(const PagedAttentionArgs& args);

// What a block may have on every GPU of sm_80 and later; sm_80 and sm_90 give it more.
inline constexpr size_t kLeastSharedBytes = 99 << 10;

// Where the kernels work. The bits do not depend on it.
struct AttentionRoom {
  float* scratch = nullptr;
  size_t shared_bytes = kLeastSharedBytes;  // That a block may have here.
  // For the form of decode that sm_90a has (attention_decode_sm90.h): zeros, which each launch
  // leaves as zeros; of one launch at a time. Empty: without that form.
  std::span<uint32_t> counters = {};
};

// Of a device's own memory; the scratch memory only if it is enough for a call.
inline AttentionRoom RoomIn(const Buffer& scratch, const Buffer& counters, size_t shared_bytes,
                            int64_t scratch_bytes) {
  const bool fits = scratch_bytes <= scratch.size_bytes();
  return {.scratch = fits ? reinterpret_cast<float*>(scratch.data()) : nullptr,
          .shared_bytes = shared_bytes,
          .counters = {reinterpret_cast<uint32_t*>(counters.data()),
                       counters.size_bytes() / sizeof(uint32_t)}};
}

// On sm_90a prompts take another form of it, with the same bits (attention_sm90.h), and so do steps
// that decode (attention_decode_sm90.h).
cudaError_t VarlenAttention(const VarlenAttentionArgs& args, const AttentionRoom& room,
                            cudaStream_t stream);
cudaError_t PagedAttention(const PagedAttentionArgs& args, const AttentionRoom& room,
                           cudaStream_t stream);

// VarlenAttention's form for every GPU: mma.sync and cp.async.
cudaError_t MmaVarlenAttention(const VarlenAttentionArgs& args, const AttentionRoom& room,
                               cudaStream_t stream);

}  // namespace baton::cuda
