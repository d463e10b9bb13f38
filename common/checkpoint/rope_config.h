#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/checkpoint/json_fields.h"
#include "common/checkpoint/rope.h"

namespace baton {

// What the rotary embedding of a config.json depends on besides its own fields.
struct RopeContext {
  int32_t max_position_embeddings = 0;
  int32_t rotary_dim = 0;
  double theta = 10000;            // Where the config names none. So too
  int32_t original_positions = 0;  // original_max_position_embeddings; 0: max_position_embeddings.
  bool only_longrope = false;      // No other scaled form is allowed.
  // Of models with a rope for each type of layer: this one's object in rope_parameters, the field
  // that older files have for its theta, and whether their rope_scaling is its.
  const char* layer_type = nullptr;
  const char* theta_field = "rope_theta";
  bool scaled = true;
};

// The share of a head's elements that is rotated.
struct RotaryShare {
  double factor = 1;   // Where the config names none.
  bool fixed = false;  // No other is allowed.
};

// How many elements of a head are rotated, by partial_rotary_factor (of rope_scaling or
// rope_parameters, or beside them): rounded down, at least 1.
absl::StatusOr<int32_t> ParseRotaryDim(JsonFields& config, int32_t head_dim,
                                       const RotaryShare& share);

// Reads rope_theta, rope_scaling, rope_parameters and original_max_position_embeddings from a
// config.json, with transformers' defaults and precedence: rope_scaling before rope_parameters,
// values inside before values beside. A form or a field that is not known is refused by name.
absl::StatusOr<RopeForm> ParseRopeForm(JsonFields& config, const RopeContext& context);

inline constexpr int32_t kMaxModelLen = 1 << 20;

// Positions that Baton accepts, at most kMaxModelLen: max_position_embeddings, or the length that
// yarn stretches to, since much of the field sets yarn without raising max_position_embeddings.
// With longrope factors below 1, of either list, it ends where the angles, position / factor, reach
// 2^20.
int32_t MaxModelLen(const RopeForm& form, int32_t max_position_embeddings);

}  // namespace baton
