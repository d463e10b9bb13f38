#include "common/transport/transport_options.h"

#include "absl/strings/str_format.h"

namespace baton {
namespace {

int32_t PoolHeads(const TransportOptions& options) {
  const KvLayout& layout = options.cache->layout();
  return layout.groups.empty() ? 0 : layout.groups.front().num_kv_heads;
}

}  // namespace

int32_t KvHeads(const TransportOptions& options) {
  return options.kv_heads == 0 && options.place.size == 1 ? PoolHeads(options) : options.kv_heads;
}

HeadRange HeadsAt(const TransportOptions& options, RankPlace place) {
  return HeadsOf(place.rank, place.size, KvHeads(options));
}

absl::Status Validate(const TransportOptions& options) {
  if (options.incarnation == 0) return absl::InvalidArgumentError("transport incarnation is 0");
  if (options.cache == nullptr || options.epochs == nullptr || !options.sink) {
    return absl::InvalidArgumentError("transport needs a cache, block epochs and a sink");
  }
  if (options.stager == nullptr && !options.cache->host()) {
    return absl::InvalidArgumentError("sockets cannot touch the KV pool of a device: no stager");
  }
  if (options.carrier != nullptr && options.stager == nullptr) {
    return absl::InvalidArgumentError("what goes beside connections needs a stager for the rest");
  }
  if (options.epochs->size() < static_cast<size_t>(options.cache->num_blocks())) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d block epochs for %d blocks", options.epochs->size(), options.cache->num_blocks()));
  }
  if (const int32_t heads = KvHeads(options);
      !CanHold(options.place, heads) ||
      PoolHeads(options) != HeadsAt(options, options.place).count) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rank %d of %d with %d of the model's %d KV heads", options.place.rank,
                        options.place.size, PoolHeads(options), heads));
  }
  if (options.max_frame_bytes == 0 || options.max_frame_bytes > kMaxDataPayloadBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "max_frame_bytes is %d; choose 1 to %d", options.max_frame_bytes, kMaxDataPayloadBytes));
  }
  return absl::OkStatus();
}

PoolShape ShapeOf(const TransportOptions& options) {
  return {options.cache->layout().block_size, HeadsAt(options, options.place)};
}

}  // namespace baton
