#pragma once

#include "gtest/gtest.h"
#include "router/worker_directory.h"

namespace baton {

constexpr Time At(int64_t ms) { return Time(std::chrono::milliseconds(ms)); }

inline HelloInfo Hello(Role role, Incarnation incarnation) {
  return {.role = role,
          .incarnation = incarnation,
          .numerics_id = "n",
          .layout_digest = 1,
          .model_digest = 2,
          .block_size = 16,
          .num_blocks = 10,
          .max_model_len = 100};
}

// Workers 0 and 1 prefill, 2 and 3 decode.
class WorkerDirectoryTest : public testing::Test {
 protected:
  void AllUp() {
    for (int32_t i = 0; i < 4; ++i) {
      directory_.OnUp(i, Hello(i < 2 ? Role::kPrefill : Role::kDecode, 10 + i), At(0));
    }
  }
  RoutingSnapshot Snapshot(const RouteNeed& need, int64_t ms = 0) {
    return directory_.Snapshot(need, 50, At(ms));
  }
  static constexpr RouteNeed kNeed = {.prompt_tokens = 20, .total_tokens = 30};
  WorkerDirectory directory_{{Role::kPrefill, Role::kPrefill, Role::kDecode, Role::kDecode},
                             std::chrono::milliseconds(2500), std::chrono::seconds(2)};
};

}  // namespace baton
