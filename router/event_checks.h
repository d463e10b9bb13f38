#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/node/message.h"

// What the conversion of a worker's event (common/rpc) cannot judge, because it depends on what was
// asked. DATA_LOSS names the field, its value and what would be right: the call that told it is
// lost, like one that broke. Nothing of it reaches a client.
namespace baton {

// `decode` was asked to reserve for `base` tokens.
absl::Status CheckReserved(const ReservedEvent& event, Incarnation decode, int32_t base);

// `base` tokens were to be prefilled.
absl::Status CheckPrefilled(const PrefilledEvent& event, int32_t base);

// The next token of an answer; `num_emitted` counts it.
absl::Status CheckOutput(const TokenOutput& output, const SamplingParams& params,
                         int32_t num_emitted);

}  // namespace baton
