#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/time.h"
#include "common/node/message.h"
#include "tests/sim/fake_model.h"
#include "tests/sim/world.h"

namespace baton::sim {

// Faults of processes and links: they begin at drawn moments and last for a drawn time.
enum class Trouble : uint8_t {
  kCrashWorker,
  kCrashRouter,
  kPauseWorker,
  kPauseRouter,
  kCutControl,  // Between a router and a worker, one way or both.
  kCutData,     // Between two workers, one way or both.
  kSlowControl,
  kSlowData,
  kStall,       // The device of a worker stands still, its process lives.
  kDrain,       // An orderly restart: drain, then the calls that are left are closed.
  kEndSession,  // Between a router and a worker: their processes and the link live.
  kCount
};
inline constexpr size_t kNumTroubles = static_cast<size_t>(Trouble::kCount);

// What a seed draws.
struct Scenario {
  int32_t num_prefill = 1;
  int32_t num_decode = 1;
  int32_t num_routers = 1;
  int32_t prefill_blocks = 64;
  int32_t decode_blocks = 64;
  int32_t prefill_block_size = 4;
  int32_t decode_block_size = 4;
  int32_t chunk_tokens = 8;
  int32_t max_batch = 8;        // Rows of a step.
  int32_t finish_together = 0;  // As EngineOptions, of prefill workers.
  int32_t swap_blocks = 0;      // As EngineOptions, of decode workers.
  int32_t steps_in_flight = 2;  // Likewise,
  Duration follow_up_lead = std::chrono::hours(1);  // and this: at once.
  int32_t window = 0;           // The model's sliding window in tokens, 0 = none,
  std::vector<bool> windowed = {true, true};  // of these layers;
  int32_t spare = 0;            // and what is kept beyond it beside layers that see all.
  int32_t kv_heads = 1;         // Of the model.
  int32_t original_len = 0;     // As ModelInfo's.
  std::vector<int> prefill_tp;  // Ranks of each worker; 1 where it names none.
  std::vector<int> decode_tp;
  Duration token_time{};          // Of each token of a step, beside what the step takes anyhow.
  int32_t max_length = kMaxLength;          // Tokens of a sequence.
  int64_t max_pending_prefill_tokens = 64;  // As RouterNodeOptions,
  size_t max_directory_entries = 256;       // and this.
  int32_t num_requests = 20;
  int32_t max_prompt_tokens = 40;
  int32_t max_answer_tokens = 24;
  Duration submit_gap = std::chrono::milliseconds(20);  // At most, between two requests.
  bool small_caps = false;                              // Queues so short that they overflow.
  std::string policy = "prefix_affinity";
  bool control_bytes = false;  // Control messages travel as bytes, else as structs.
  bool staged = false;         // Pools are reached by way of a stager, as a device's.
  bool nccl = false;           // And most of them by NCCL.
  Duration prefill_away{};     // Once, so long, all prefill workers are gone.
  uint64_t upgrades = 0;       // Of workers as they restart, by this seed; 0: none.
  double clock_skew = 0;       // At most, of a node's clock.
  double cancel_rate = 0;
  double stop_rate = 0;  // Of choices that the client stops.
  double deadline_rate = 0;
  std::array<double, kNumFaults> faults{};      // Per message, frame or step.
  std::array<double, kNumTroubles> troubles{};  // Per second.

  FakeArch arch() const {
    FakeArch arch{
        .windows = {}, .spare = spare, .kv_heads = kv_heads, .original_len = original_len};
    for (const bool has_window : windowed) arch.windows.push_back(has_window ? window : 0);
    return arch;
  }
  // Ranks of the i-th worker of that role.
  int TpOf(Role role, int i) const {
    const std::vector<int>& tp = role == Role::kPrefill ? prefill_tp : decode_tp;
    return i < static_cast<int>(tp.size()) ? tp[i] : 1;
  }
  bool has_faults() const;
  bool has_only_nccl_faults() const;
  // Faults that say nothing against a healthy worker: what is lost is a process, a link or a
  // transfer, and no request may fail for it while a healthy pair is there.
  bool has_only_losses() const;
};
Scenario DrawScenario(uint64_t seed);

}  // namespace baton::sim
