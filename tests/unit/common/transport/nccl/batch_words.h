#pragma once

#include <vector>

#include "common/transport/nccl/batch_actions.h"

// What tests of either side of a batch speak of.
namespace baton::nccl {

inline constexpr PairId kPair = 1;
inline constexpr PairId kOther = 2;
inline constexpr BatchKey kFirst{kPair, 1};
inline constexpr BatchKey kSecond{kPair, 2};
inline constexpr BatchKey kOthers{kOther, 1};

using Kind = Action::Kind;
using Kinds = std::vector<Kind>;

inline Kinds KindsOf(const Actions& actions) {
  Kinds kinds;
  for (const Action& action : actions) kinds.push_back(action.kind);
  return kinds;
}

}  // namespace baton::nccl
