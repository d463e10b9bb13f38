#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/node/message.h"
#include "router/sequence.h"

// What the conversion of a worker's event (common/rpc) cannot judge, because it depends on what was
// asked. DATA_LOSS names the field, its value and what would be right: the call that told it is
// lost, like one that broke. Nothing of it reaches a client.
namespace baton {

// `decode` was asked to reserve for `base` tokens.
absl::Status CheckReserved(const ReservedEvent& event, Incarnation decode, int32_t base);

// What an event of that name says was cached of `base` tokens: at least the last one is computed.
absl::Status CheckCached(const char* event, int32_t cached, int32_t base);

// The position that follows is `next`.
absl::Status SkippedError(int32_t next, int32_t position);
// One log probability of the sequence's prompt.
absl::Status CheckScore(const PromptLogprob& score, const SequenceState& sequence);
// Before anything of the event counts.
absl::Status CheckFirst(const PrefilledEvent& event, const SequenceState& sequence);
// The same; of a decode worker that computes the prompt itself: its scores come before its tokens.
absl::Status CheckAlone(const TokensEvent& event, const SequenceState& sequence);
// A position that the client has is no news, whatever else is said of it.
absl::Status CheckNext(const TokenOutput& output, const SequenceState& sequence);

}  // namespace baton
