#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/transport/transfer_plan.h"
#include "common/transport/transport_options.h"

namespace baton {

// What a sender checks of its own node's calls; INVALID_ARGUMENT names the field.
absl::Status CheckStart(const TransportOptions& options, const StartArgs& start);

// The frames of one push, for a receiver whose pool has such blocks. INVALID_ARGUMENT when the push
// lies outside the ticket or the model.
absl::StatusOr<std::vector<FrameRange>> PlanPush(const TransportOptions& options,
                                                 const StartArgs& start, const PushArgs& push,
                                                 int32_t receiver_block_size);

}  // namespace baton
