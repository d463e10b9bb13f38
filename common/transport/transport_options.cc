#include "common/transport/transport_options.h"

#include "absl/strings/str_format.h"

namespace baton {

absl::Status Validate(const TransportOptions& options) {
  if (options.incarnation == 0) return absl::InvalidArgumentError("transport incarnation is 0");
  if (options.cache == nullptr || options.epochs == nullptr || !options.sink) {
    return absl::InvalidArgumentError("transport needs a cache, block epochs and a sink");
  }
  if (options.stager == nullptr && !options.cache->host()) {
    return absl::InvalidArgumentError("sockets cannot touch the KV pool of a device: no stager");
  }
  if (options.epochs->size() < static_cast<size_t>(options.cache->num_blocks())) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d block epochs for %d blocks", options.epochs->size(), options.cache->num_blocks()));
  }
  if (options.max_frame_bytes == 0 || options.max_frame_bytes > kMaxDataPayloadBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "max_frame_bytes is %d; choose 1 to %d", options.max_frame_bytes, kMaxDataPayloadBytes));
  }
  return absl::OkStatus();
}

PoolShape ShapeOf(const TransportOptions& options) {
  const KvLayout& layout = options.cache->layout();
  const int32_t heads = layout.groups.empty() ? 0 : layout.groups.front().num_kv_heads;
  return {layout.block_size, {options.first_head, heads}};
}

}  // namespace baton
