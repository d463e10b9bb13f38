#include "common/transport/push_plan.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_format.h"

namespace baton {

absl::Status CheckStart(const TransportOptions& options, const StartArgs& start) {
  const KvCache& cache = *options.cache;
  if (start.ticket.empty() || start.receiver == 0 || start.sender != options.incarnation) {
    return absl::InvalidArgumentError("Start without a ticket, a receiver, or of another sender");
  }
  if (!CanHold(start.receiver_place, KvHeads(options))) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "Start to rank %d of %d, which cannot hold parts of %d KV heads",
        start.receiver_place.rank, start.receiver_place.size, KvHeads(options)));
  }
  return CheckBlocks(cache, "Start", {start.first_token, start.num_tokens}, start.blocks);
}

absl::StatusOr<std::vector<FrameRange>> PlanPush(const TransportOptions& options,
                                                 const StartArgs& start, const PushArgs& push,
                                                 int32_t receiver_block_size) {
  const KvLayout& layout = options.cache->layout();
  const bool is_layer = push.layer >= 0 && push.layer < NumLayers(layout);
  const int32_t first =
      is_layer ? FirstSent(layout, push.layer, start.first_token, start.num_tokens) : 0;
  if (!is_layer || push.first_token < first || push.num_tokens < 0 ||
      int64_t{push.first_token} + push.num_tokens > int64_t{start.num_tokens}) {
    return absl::InvalidArgumentError(
        absl::StrFormat("Push of layer %d tokens [%d, +%d) outside the ticket's [%d, %d)",
                        push.layer, push.first_token, push.num_tokens, first, start.num_tokens));
  }
  return PlanFrames({.layer = push.layer,
                     .tokens = {push.first_token, push.num_tokens},
                     .heads = Sent(options.place, start.receiver_place, KvHeads(options)),
                     .k_bytes = HeadTokenBytes(layout, push.layer, KvPlane::kK),
                     .v_bytes = HeadTokenBytes(layout, push.layer, KvPlane::kV),
                     .align_tokens = std::max(layout.block_size, receiver_block_size),
                     .max_payload_bytes = options.max_frame_bytes});
}

}  // namespace baton
