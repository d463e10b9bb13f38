#include "common/transport/transfer_plan.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/base/check.h"

namespace baton {
namespace {

void PlanPlane(const PlanArgs& args, KvPlane plane, int64_t head_token_bytes,
               std::vector<FrameRange>* frames) {
  const int64_t heads_per_frame =
      std::min<int64_t>(args.heads.count, args.max_payload_bytes / head_token_bytes);
  const int64_t tokens_per_frame = args.max_payload_bytes / (heads_per_frame * head_token_bytes);
  const int64_t end = int64_t{args.tokens.first} + args.tokens.count;
  for (int64_t token = args.tokens.first; token < end;) {
    int64_t stop = std::min(end, token + tokens_per_frame);
    if (stop < end) {
      const int64_t aligned = stop / args.align_tokens * args.align_tokens;
      if (aligned > token) stop = aligned;
    }
    for (int64_t head = 0; head < args.heads.count; head += heads_per_frame) {
      frames->push_back(
          {.layer = args.layer,
           .plane = plane,
           .first_token = static_cast<int32_t>(token),
           .num_tokens = static_cast<int32_t>(stop - token),
           .first_head = static_cast<int32_t>(args.heads.first + head),
           .num_heads = static_cast<int32_t>(std::min(heads_per_frame, args.heads.count - head))});
    }
    token = stop;
  }
}

}  // namespace

HeadRange Intersect(HeadRange a, HeadRange b) {
  const int32_t first = std::max(a.first, b.first);
  const int32_t end = std::min(a.first + a.count, b.first + b.count);
  return {first, std::max(0, end - first)};
}

absl::StatusOr<std::vector<FrameRange>> PlanFrames(const PlanArgs& args) {
  if (args.tokens.first < 0 || args.tokens.count < 0 || args.heads.first < 0 ||
      args.heads.count < 0 || args.align_tokens < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tokens [%d, +%d), heads [%d, +%d), align_tokens %d is not a range", args.tokens.first,
        args.tokens.count, args.heads.first, args.heads.count, args.align_tokens));
  }
  const int64_t largest = std::max(args.k_bytes, args.v_bytes);
  if (largest > args.max_payload_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("one head of one token has %d bytes, a frame at most %d; raise max_frame",
                        largest, args.max_payload_bytes));
  }
  std::vector<FrameRange> frames;
  if (args.heads.count == 0) return frames;
  if (args.k_bytes > 0) PlanPlane(args, KvPlane::kK, args.k_bytes, &frames);
  if (args.v_bytes > 0) PlanPlane(args, KvPlane::kV, args.v_bytes, &frames);
  return frames;
}

std::vector<Segment> MapFrame(const FrameRange& range, const PoolSide& side,
                              int64_t head_token_bytes) {
  BATON_CHECK(side.block_size > 0 && range.first_token >= 0 &&
              range.first_head >= side.heads.first &&
              range.first_head + range.num_heads <= side.heads.first + side.heads.count);
  std::vector<Segment> segments;
  const int32_t end = range.first_token + range.num_tokens;
  const int32_t blocks_touched =
      range.num_tokens == 0 ? 0
                            : (end - 1) / side.block_size - range.first_token / side.block_size + 1;
  segments.reserve(size_t{1} * blocks_touched * range.num_heads);
  for (int32_t h = 0; h < range.num_heads; ++h) {
    for (int32_t token = range.first_token; token < end;) {
      const int32_t block = token / side.block_size;
      const int64_t block_end = (int64_t{block} + 1) * side.block_size;
      const int32_t stop = static_cast<int32_t>(std::min<int64_t>(end, block_end));
      segments.push_back({.block_index = block,
                          .head = range.first_head - side.heads.first + h,
                          .offset = (token % side.block_size) * head_token_bytes,
                          .bytes = (stop - token) * head_token_bytes});
      token = stop;
    }
  }
  return segments;
}

int64_t HeadTokenBytes(const KvLayout& layout, int32_t layer, KvPlane plane) {
  return HeadBlockBytes(layout, layer, plane) / layout.block_size;
}

int32_t FirstSent(const KvLayout& layout, int32_t layer, int32_t first_token, int32_t num_tokens) {
  return std::max(first_token, TokensLeftOut(GroupOfLayer(layout, layer), num_tokens));
}

absl::Status CheckBlocks(const KvCache& cache, const char* call, HandoffTokens tokens,
                         const std::vector<BlockId>& blocks) {
  const KvLayout& layout = cache.layout();
  const size_t num_groups = layout.groups.size();
  const int64_t capacity = static_cast<int64_t>(blocks.size() / num_groups) * layout.block_size;
  if (tokens.first < 0 || tokens.first > tokens.end || tokens.end > capacity ||
      blocks.size() % num_groups != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s of tokens [%d, %d) in %d blocks of %d tokens for %d groups of layers", call,
        tokens.first, tokens.end, blocks.size(), layout.block_size, num_groups));
  }
  for (int32_t g = 0; g < NumGroups(layout); ++g) {
    const int32_t first = std::max(tokens.first, TokensLeftOut(layout.groups[g], tokens.end));
    for (const BlockId block : RowOf(layout, g, blocks).subspan(first / layout.block_size)) {
      if (block < 0 || block >= cache.num_blocks()) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s with block %d of a pool of %d", call, block, cache.num_blocks()));
      }
    }
  }
  return absl::OkStatus();
}

std::vector<PoolPiece> FramePieces(const KvCache& cache, const FrameRange& range,
                                   const std::vector<BlockId>& blocks, int32_t first_head) {
  const KvLayout& layout = cache.layout();
  const int32_t heads = GroupOfLayer(layout, range.layer).num_kv_heads;
  const auto row = RowOf(layout, PlaceOf(layout, range.layer).group, blocks);
  std::vector<PoolPiece> pieces;
  for (const Segment& s : MapFrame(range, {layout.block_size, {first_head, heads}},
                                   HeadTokenBytes(layout, range.layer, range.plane))) {
    BATON_CHECK(static_cast<size_t>(s.block_index) < row.size());
    const int64_t start =
        cache.HeadBlockOffset(range.layer, range.plane, row[s.block_index], s.head) + s.offset;
    if (!pieces.empty() && pieces.back().offset + pieces.back().bytes == start) {
      pieces.back().bytes += s.bytes;
    } else {
      pieces.push_back({start, s.bytes});
    }
  }
  return pieces;
}

std::vector<iovec> FrameMemory(const KvCache& cache, const FrameRange& range,
                               const std::vector<BlockId>& blocks, int32_t first_head) {
  BATON_CHECK(cache.host());
  std::vector<iovec> memory;
  for (const PoolPiece& piece : FramePieces(cache, range, blocks, first_head)) {
    memory.push_back({cache.base() + piece.offset, static_cast<size_t>(piece.bytes)});
  }
  return memory;
}

}  // namespace baton
