#pragma once

#include "router/frontend.h"
#include "router/openai/json.h"

namespace baton {

// How K/V goes between the workers of a cluster, for operators: {"kv_pairs", "kv_pairs_left_out"}.
// A pair is a healthy prefill and a healthy decode worker that compute the same bits:
// {"prefill", "decode": their addresses, "transport", "security", "nccl", "decode_nccl":
// "2.23.4" or "", "links_over_nccl", "links_over_tcp", "why"}.
// transport: "none" (they do not pair: why, with the cure), "tcp" (why not NCCL), "nccl",
// "nccl+tcp" (why not all), or "nccl?" (both have it, and nothing went between them yet).
// security, of what goes over TCP: "tls" or "authenticated"; NCCL does not encrypt.
Json KvPairsJson(const RouterView& view);

// Of more pairs the rest is counted: those that do not pair are the first.
inline constexpr size_t kMostKvPairs = 256;

}  // namespace baton
