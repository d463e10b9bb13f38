#include "tests/sim/scenario.h"

#include <algorithm>
#include <array>

#include "common/base/random.h"

namespace baton::sim {
namespace {

constexpr size_t Index(Fault fault) { return static_cast<size_t>(fault); }
constexpr size_t Index(Trouble trouble) { return static_cast<size_t>(trouble); }

void DrawFaults(Random& random, Scenario& s) {
  const auto rate = [&random](double most) {
    return random.Below(3) == 0 ? most * random.Unit() : 0.0;
  };
  s.cancel_rate = rate(0.4);
  s.stop_rate = rate(0.3);
  s.deadline_rate = rate(0.3);
  s.clock_skew = rate(0.05);
  s.faults[Index(Fault::kLazyStep)] = rate(0.5);
  // One seed in eight is free of faults, and one in three has only losses.
  const uint64_t severity = random.Below(24);
  if (severity < 3) return;
  s.faults[Index(Fault::kDuplicate)] = rate(0.1);
  s.faults[Index(Fault::kSlow)] = rate(0.1);
  s.faults[Index(Fault::kBreakTransfer)] = rate(0.05);
  s.faults[Index(Fault::kCorruptFrame)] = rate(0.05);
  s.faults[Index(Fault::kLoseAck)] = rate(0.2);
  s.faults[Index(Fault::kSlowAbort)] = rate(0.3);
  for (size_t t = 0; t <= Index(Trouble::kDrain); ++t) s.troubles[t] = rate(3.0);
  if (severity < 11) return;
  s.faults[Index(Fault::kDropCall)] = rate(0.03);
  s.faults[Index(Fault::kLoseEvent)] = rate(0.02);
  s.faults[Index(Fault::kStepError)] = rate(0.02);
}

// In half of the seeds: heads of the model, and ranks of each worker.
void DrawRanks(uint64_t seed, Scenario& s) {
  Random random(Random::Mix(seed ^ 0x7E4D5));
  if (random.Below(2) == 0) return;
  // Small numbers more often.
  const auto draw = [&random] {
    return 1 << std::min(random.Below(4), random.Below(4));
  };
  s.kv_heads = draw();
  for (int i = 0; i < 4; ++i) {
    s.prefill_tp.push_back(draw());
    s.decode_tp.push_back(draw());
  }
}

// In an eighth of the seeds. Its faults cost time, and no request.
void DrawNccl(uint64_t seed, Scenario& s) {
  Random random(Random::Mix(seed ^ 0x2CC1));
  if (random.Below(8) != 0) return;
  s.nccl = s.staged = true;
  if (random.Below(4) == 0) return;
  const auto rate = [&random](double most) {
    return random.Below(2) == 0 ? most * random.Unit() : 0.0;
  };
  s.faults[Index(Fault::kNcclNeverComes)] = rate(0.2);
  s.faults[Index(Fault::kNcclFallsSilent)] = rate(0.1);
  s.faults[Index(Fault::kNcclFails)] = rate(0.1);
  s.faults[Index(Fault::kNcclSpoils)] = rate(0.05);
  s.faults[Index(Fault::kNcclHangs)] = rate(0.02);
}

// In half of the seeds whose model has a window other layers see all: block tables by groups of
// layers.
void DrawGroups(uint64_t seed, Scenario& s) {
  Random random(Random::Mix(seed ^ 0x6120D5));
  if (s.window == 0 || random.Below(2) == 0) return;
  const std::vector<bool> kinds[] = {
      {true, false}, {true, true, false}, {true, false, true, false}, {true, true, true, false}};
  s.windowed = kinds[random.Below(std::size(kinds))];
  // What a sequence holds is then not known from outside: the books of swapped blocks need it.
  if (s.swap_blocks == 0) s.spare = static_cast<int32_t>(random.Below(3)) * 5;
}

// In an eighth of the seeds K of a sequence is another once it is long.
void DrawOriginalLen(uint64_t seed, Scenario& s) {
  Random random(Random::Mix(seed ^ 0x10276));
  if (random.Below(8) == 0) s.original_len = 2 + static_cast<int32_t>(random.Below(40));
}

Scenario DrawMost(uint64_t seed) {
  Random random(Random::Mix(seed ^ 0x5CE7A710));
  const auto pick = [&random](int64_t low, int64_t high) {
    return static_cast<int32_t>(low + static_cast<int64_t>(random.Below(high - low + 1)));
  };
  Scenario s;
  s.staged = Random(Random::Mix(seed ^ 0x57A6ED)).Below(3) == 0;
  DrawRanks(seed, s);
  DrawNccl(seed, s);
  s.num_prefill = pick(1, 4);
  s.num_decode = pick(1, 4);
  s.num_routers = pick(0, 2) == 0 ? 2 : 1;
  s.prefill_block_size = 1 << pick(0, 3);
  s.decode_block_size = 1 << pick(0, 3);
  // A sequence has at most 63 tokens: pools hold one such sequence or several.
  s.prefill_blocks = pick(64, 160) / s.prefill_block_size + 1;
  s.decode_blocks = pick(64, 200) / s.decode_block_size + 1;
  s.chunk_tokens = pick(1, 32);
  s.num_requests = pick(4, 20);
  s.submit_gap = std::chrono::milliseconds(1 << pick(3, 8));
  s.small_caps = pick(0, 3) == 0;
  s.policy = random.Below(2) == 0 ? "prefix_affinity" : "least_loaded";
  DrawFaults(random, s);
  // Drawn last: the other draws of a seed stay what they were.
  if (pick(0, 1) == 1) s.window = pick(1, 30);
  if (pick(0, 1) == 1) s.finish_together = pick(2, 8);
  // None, hardly any, or more than the pool.
  const int32_t swap = pick(0, 2);
  if (swap > 0) s.swap_blocks = swap == 1 ? pick(1, 64) / s.decode_block_size + 1 : 256;
  if (pick(0, 2) == 0) s.max_batch = pick(1, 3);
  const auto rarely = [&](double most) { return pick(0, 3) == 0 ? most * random.Unit() : 0.0; };
  s.faults[Index(Fault::kShortWrite)] = rarely(0.3);
  if (s.has_faults()) {
    s.faults[Index(Fault::kRepeatFrame)] = rarely(0.05);
    s.faults[Index(Fault::kStaleBlock)] = rarely(0.1);
  }
  if (!s.has_only_losses() && pick(0, 1) == 0) s.faults[Index(Fault::kMoveError)] = random.Unit();
  if (s.swap_blocks > 0 && pick(0, 1) == 0) {
    s.faults[Index(Fault::kCancelMoving)] = random.Unit();
    // With few rows some that come back have none in the step that brings their blocks.
    if (pick(0, 1) == 0) s.max_batch = pick(1, 2);
  }
  s.control_bytes = pick(0, 2) == 0;
  if (!s.control_bytes || s.has_only_losses()) return s;
  const auto often = [&](double most) { return pick(0, 1) == 0 ? most * random.Unit() : 0.0; };
  s.faults[Index(Fault::kFlipRequest)] = often(0.05);
  s.faults[Index(Fault::kFlipEvent)] = often(0.01);
  s.faults[Index(Fault::kFlipEnd)] = often(0.05);
  s.faults[Index(Fault::kLoseMessage)] = often(0.01);
  s.faults[Index(Fault::kRepeatMessage)] = often(0.01);
  s.faults[Index(Fault::kMisdirect)] = often(0.01);
  s.faults[Index(Fault::kMuteStream)] = often(0.003);
  return s;
}

}  // namespace

Scenario DrawScenario(uint64_t seed) {
  Scenario s = DrawMost(seed);
  DrawGroups(seed, s);
  DrawOriginalLen(seed, s);
  Random random(Random::Mix(seed ^ 0xA10E));
  if (s.has_faults() && random.Below(6) == 0) {
    s.prefill_away = std::chrono::milliseconds(1000 + random.Below(7000));
  }
  Random releases(Random::Mix(seed ^ 0x4E1E));
  if (s.has_faults() && releases.Below(6) == 0) s.upgrades = releases.Next();
  Random steps(Random::Mix(seed ^ 0x57E9));
  if (steps.Below(4) == 0) s.steps_in_flight = 1;
  if (steps.Below(2) == 0) s.follow_up_lead = std::chrono::microseconds(50 << steps.Below(8));
  Random sessions(Random::Mix(seed ^ 0x5E55));
  if (s.has_faults() && sessions.Below(2) == 0) {
    s.troubles[Index(Trouble::kEndSession)] = 5.0 * sessions.Unit();
  }
  return s;
}

bool Scenario::has_faults() const {
  const auto is_set = [](double rate) { return rate > 0; };
  auto of_messages = faults;
  of_messages[Index(Fault::kLazyStep)] = of_messages[Index(Fault::kShortWrite)] = 0;
  of_messages[Index(Fault::kCancelMoving)] = 0;
  return std::ranges::any_of(of_messages, is_set) || std::ranges::any_of(troubles, is_set) ||
         prefill_away > Duration::zero();
}

bool Scenario::has_only_nccl_faults() const {
  Scenario others = *this;
  for (auto f = Index(Fault::kNcclNeverComes); f <= Index(Fault::kNcclHangs); ++f) {
    others.faults[f] = 0;
  }
  return nccl && !others.has_faults();
}

bool Scenario::has_only_losses() const {
  constexpr std::array kMore = {
      Fault::kDropCall,    Fault::kLoseEvent,     Fault::kStepError, Fault::kMoveError,
      Fault::kFlipRequest, Fault::kFlipEvent,     Fault::kFlipEnd,   Fault::kLoseMessage,
      Fault::kMisdirect,   Fault::kRepeatMessage, Fault::kMuteStream};
  return std::ranges::all_of(kMore, [this](Fault fault) { return faults[Index(fault)] == 0; });
}

}  // namespace baton::sim
