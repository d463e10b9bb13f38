#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/model/model_runner.h"
#include "common/node/worker_mail.h"
#include "tests/sim/tag_memory.h"
#include "tests/sim/world.h"

namespace baton::sim {

inline constexpr int32_t kVocab = 97;
inline constexpr int32_t kEos = 1;
inline constexpr int32_t kMaxLength = 64;  // Tokens of a sequence.

// The tag that a token at a position leaves in a layer after `previous`, the tag before it (0 at
// the start), and the token that follows a whole prefix of tags.
uint64_t TagOf(int32_t layer, int32_t token, int32_t position, uint64_t previous);
int32_t NextToken(uint64_t folded, const SamplingParams& params, int32_t position);

// The tokens of a fault-free run, computed without any cluster, by a model whose attention sees
// `window` tokens; 0 = all.
std::vector<int32_t> ExpectedTokens(const std::vector<int32_t>& prompt,
                                    const SamplingParams& params, int32_t window);

// The log probability of a prompt's token, which any run gives.
PromptLogprob FakeScore(const std::vector<int32_t>& prompt, int32_t position);

// A runner whose answers are a function of every tag that the sequence's last query sees, read from
// the modelled memory when a layer runs: a block that was overwritten, freed or never filled gives
// another token. Lives within one start of its host.
class FakeRunner : public ModelRunner {
 public:
  using Mail = std::function<void(WorkerMail)>;
  using OnStart = std::function<void(const StepPlan&)>;

  FakeRunner(World& world, Host& host, TagMemory& memory, int32_t window, Mail mail,
             OnStart on_start)
      : world_(world),
        host_(host),
        memory_(memory),
        window_(window),
        mail_(std::move(mail)),
        on_start_(std::move(on_start)) {}

  // Where preempted sequences keep their blocks; without it no plan has moves.
  void AttachHost(TagMemory* host_memory) { host_memory_ = host_memory; }
  void Start(std::shared_ptr<const StepPlan> plan) override;
  // The device stands still until then; the process around it lives.
  void StallUntil(Time until) { stalled_until_ = std::max(stalled_until_, until); }
  // From the next step on each layer takes so long.
  void SetLayerTime(Duration time) { layer_time_ = time; }
  bool stalled() const { return stalled_until_ > world_.now(); }
  void EndStall() { stalled_until_ = world_.now(); }
  // The blocks of the step in flight are held.
  void Check() const;

 private:
  void PoisonUncomputed();
  // The epochs of a move's two blocks.
  using MoveEpochs = std::pair<uint32_t, uint32_t>;
  void StartMoves(bool fails, Duration layer_time);
  void RunMoves(bool is_last, bool fails, Duration half, Duration layer_time);
  void CheckMoves() const;
  void RunLayer(int32_t layer, bool fails, Duration layer_time);
  void WriteAndFold(int32_t layer);
  StepDone Results() const;

  World& world_;
  Host& host_;
  TagMemory& memory_;
  TagMemory* host_memory_ = nullptr;
  int32_t window_;
  Mail mail_;
  OnStart on_start_;
  Time stalled_until_{};
  Duration layer_time_{};  // 0 = drawn for each step.
  std::shared_ptr<const StepPlan> in_flight_;
  std::vector<MoveEpochs> out_epochs_;  // When its moves began.
  std::vector<MoveEpochs> in_epochs_;
  std::vector<uint64_t> folded_;  // Per row, over the layers of the step in flight.
};

}  // namespace baton::sim
