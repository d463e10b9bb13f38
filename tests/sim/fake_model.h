#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/model/model_runner.h"
#include "tests/sim/any_mail.h"
#include "tests/sim/tag_memory.h"
#include "tests/sim/world.h"

namespace baton::sim {

inline constexpr int32_t kVocab = 97;
inline constexpr int32_t kEos = 1;
inline constexpr int32_t kMaxLength = 64;  // Tokens of a sequence.

// The tag that a token at a position leaves in a head of a layer after `previous`, the tag before
// it (0 at the start), and the token that follows a whole prefix of tags. Those of a long sequence
// are others.
uint64_t TagOf(int32_t layer, int32_t head, int32_t token, int32_t position, uint64_t previous,
               bool is_long);
int32_t NextToken(uint64_t folded, const SamplingParams& params, int32_t position);

// The tokens of a fault-free run, computed without any cluster.
std::vector<int32_t> ExpectedTokens(const std::vector<int32_t>& prompt,
                                    const SamplingParams& params, const FakeArch& arch);

// The log probability of a prompt's token, which any run gives.
PromptLogprob FakeScore(const std::vector<int32_t>& prompt, int32_t position);

// A runner whose answers are a function of every tag that the sequence's last query sees, read from
// the modelled memory when a layer runs: a block that was overwritten, freed or never filled gives
// another token. Of several ranks each computes its heads in its own memory, in its own time, and
// no layer begins before the one before it has ended on all. Lives within one start of its host.
class FakeRunner : public ModelRunner {
 public:
  using Mail = std::function<void(AnyWorkerMail)>;
  using OnStart = std::function<void(const StepPlan&)>;

  using OnViolation = TagMemory::OnViolation;
  // One memory per rank.
  using Memories = std::vector<std::unique_ptr<TagMemory>>;

  FakeRunner(World& world, Host& host, const Memories& ranks, const FakeArch& arch,
             OnViolation violation, Mail mail, OnStart on_start)
      : world_(world),
        host_(host),
        ranks_(ranks),
        arch_(arch),
        violation_(std::move(violation)),
        mail_(std::move(mail)),
        on_start_(std::move(on_start)) {}

  // Where preempted sequences keep their blocks; without it no plan swaps.
  void AttachHost(const Memories* host_ranks) { host_ranks_ = host_ranks; }
  void Start(std::shared_ptr<const StepPlan> plan) override;
  // The device stands still until then; the process around it lives.
  void StallUntil(Time until) { stalled_until_ = std::max(stalled_until_, until); }
  // From the next step on each layer takes so long.
  void SetLayerTime(Duration time) { layer_time_ = time; }
  // And each token of a step so much more in each layer.
  void SetTokenTime(Duration time) { token_time_ = time; }
  bool stalled() const { return stalled_until_ > world_.now(); }
  void EndStall() { stalled_until_ = world_.now(); }
  // The blocks of the step in flight are held.
  void Check() const;

 private:
  void Begin(std::shared_ptr<const StepPlan> plan);
  void End(StepDone done);
  void PoisonUncomputed();
  // The epochs of a move's two blocks.
  using MoveEpochs = std::pair<uint32_t, uint32_t>;
  void StartMoves(bool fails, Duration layer_time);
  void RunMoves(bool is_last, bool fails, Duration half, Duration layer_time);
  void CheckMoves() const;
  void CheckCopies() const;
  void MoveOnRank(size_t rank, bool fails);
  void RunLayer(int32_t layer, bool fails, Duration layer_time);
  void RunRank(size_t rank, int32_t layer, bool fails, Duration layer_time);
  void WriteAndFold(TagMemory& memory, int32_t layer);
  uint64_t Fold(TagMemory& memory, int32_t layer, int32_t head, const StepRow& row);
  StepDone Results() const;

  World& world_;
  Host& host_;
  const Memories& ranks_;
  const Memories* host_ranks_ = nullptr;
  FakeArch arch_;
  OnViolation violation_;
  Mail mail_;
  OnStart on_start_;
  Time stalled_until_{};
  Duration layer_time_{};  // 0 = drawn for each step.
  Duration token_time_{};
  std::shared_ptr<const StepPlan> in_flight_;
  std::shared_ptr<const StepPlan> follow_up_;  // Of that one.
  StepOutcome before_;                         // Of the last step that has ended.
  std::vector<MoveEpochs> out_epochs_;  // When its moves began.
  std::vector<MoveEpochs> in_epochs_;
  std::vector<MoveEpochs> copy_epochs_;
  std::vector<uint64_t> folded_;  // Per row, over the layers of the step in flight.
  size_t ranks_left_ = 0;         // That have not computed the layer yet,
  std::vector<uint64_t> seen_;    // of which each head of each row was folded to this; 0 = not yet.
};

}  // namespace baton::sim
