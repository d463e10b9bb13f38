#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv_cache/kv_cache.h"
#include "common/kv_cache/kv_heads.h"
#include "common/kv_cache/kv_layout.h"

namespace baton {

struct TokenRange {
  int32_t first = 0;
  int32_t count = 0;
};

// The heads both sides hold; count is 0 when there are none.
HeadRange Intersect(HeadRange a, HeadRange b);

// One frame's worth of one plane. On the wire its payload is [num_heads, num_tokens, dim].
struct FrameRange {
  int32_t layer = 0;
  KvPlane plane = KvPlane::kK;
  int32_t first_token = 0;
  int32_t num_tokens = 0;
  int32_t first_head = 0;  // In the whole model.
  int32_t num_heads = 0;
  bool operator==(const FrameRange&) const = default;
};

struct PlanArgs {
  int32_t layer = 0;
  TokenRange tokens;
  HeadRange heads;      // Intersect(sender's, receiver's).
  int64_t k_bytes = 0;  // Bytes of one head of one token; 0 = this plane does not exist.
  int64_t v_bytes = 0;
  int32_t align_tokens = 1;  // Frames end at multiples of it where the bound leaves room: the
                             // larger block size, so that most segments are whole blocks.
  int64_t max_payload_bytes = 0;
};

// Cuts the range into frames: every (plane, token, head) in exactly one frame, K before V, tokens
// ascending. INVALID_ARGUMENT when one head of one token is larger than max_payload_bytes or the
// range is not one.
absl::StatusOr<std::vector<FrameRange>> PlanFrames(const PlanArgs& args);

// How one side's pool is cut.
struct PoolSide {
  int32_t block_size = 0;
  HeadRange heads;  // Head 0 of the pool is heads.first of the model.
};

// Contiguous bytes of one head of one block.
struct Segment {
  int32_t block_index = 0;  // In the sequence's block table.
  int32_t head = 0;         // In the pool.
  int64_t offset = 0;       // Bytes from the start of the head's part of the block.
  int64_t bytes = 0;
  bool operator==(const Segment&) const = default;
};

// The memory of a frame on one side, in the wire's payload order [head][token][dim]. The range must
// lie within the side's heads. `head_token_bytes`: one head of one token of the frame's plane.
std::vector<Segment> MapFrame(const FrameRange& range, const PoolSide& side,
                              int64_t head_token_bytes);

// Bytes of one head of one token of a plane.
int64_t HeadTokenBytes(const KvLayout& layout, int32_t layer, KvPlane plane);

// The first token of a layer that a handoff of tokens [first_token, num_tokens) carries: what the
// layer's window leaves out is not sent, nor waited for.
int32_t FirstSent(const KvLayout& layout, int32_t layer, int32_t first_token, int32_t num_tokens);

// A handoff's blocks are the rows of a table, one after the other (BlockTable::Flat). The row of a
// group.
template <typename T>
std::span<const T> RowOf(const KvLayout& layout, int32_t group, const std::vector<T>& blocks) {
  const size_t entries = blocks.size() / layout.groups.size();
  return std::span(blocks).subspan(group * entries, entries);
}

// Whether the blocks can hold what comes or goes; INVALID_ARGUMENT names `call`, range and block.
struct HandoffTokens {
  int32_t first = 0;
  int32_t end = 0;
};
absl::Status CheckBlocks(const KvCache& cache, const char* call, HandoffTokens tokens,
                         const std::vector<BlockId>& blocks);

// Contiguous bytes of a pool.
struct PoolPiece {
  int64_t offset = 0;  // From KvCache::base().
  int64_t bytes = 0;
  bool operator==(const PoolPiece&) const = default;
};

// As FrameMemory, without the memory: it may be a device's.
std::vector<PoolPiece> FramePieces(const KvCache& cache, const FrameRange& range,
                                   const std::vector<BlockId>& blocks, int32_t first_head);

// MapFrame in a cache: addresses in payload order, neighbours merged. `blocks` as of a handoff;
// `first_head` is the model's index of the pool's head 0. The range must be within both.
std::vector<iovec> FrameMemory(const KvCache& cache, const FrameRange& range,
                               const std::vector<BlockId>& blocks, int32_t first_head);

}  // namespace baton
