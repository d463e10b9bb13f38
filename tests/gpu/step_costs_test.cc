// What a decode step of the smallest model takes on GPU 0 with one and with two steps in flight,
// and how much of that is the way from one step to the next: its gap, the time beside that of the
// device, which does the same steps behind each other where nobody waits for one. One line of JSON,
// microseconds, and no verdict.

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/checkpoint/model_files.h"
#include "nlohmann/json.hpp"
#include "tests/unit/common/model/follow_up_steps.h"

namespace baton {
namespace {

#if defined(BATON_CUDA_DEVICE)
constexpr int kSteps = 500;
#else
constexpr int kSteps = 1;
#endif

const std::string kModel = std::string(BATON_SOURCE_DIR) + "/deploy/models/tiny-kjv";

template <typename T>
T Made(absl::StatusOr<T> value) {
  EXPECT_TRUE(value.ok()) << value.status();
  BATON_CHECK(value.ok());
  return *std::move(value);
}

std::shared_ptr<const SamplingContext> Context() {
  auto context = std::make_shared<SamplingContext>();
  context->prompt = {1, 2, 3};
  return context;
}

// All that a step enqueues, behind each other. On the device of a runner that is idle.
class DeviceSteps {
 public:
  explicit DeviceSteps(LoadedRunner* runner)
      : runner_(*runner), device_(runner->device()), files_(Made(LoadModelFiles(kModel))) {
    Device* const devices[] = {&device_};
    transformer_ =
        Made(Transformer::Create({.config = files_.config,
                                  .weights = std::make_shared<PackedRanks>(Made(PackModel(
                                      files_.config, files_.weights, DType::kBF16, devices))),
                                  .compute = DType::kBF16,
                                  .device = &device_,
                                  .max_tokens = 1}));
    metadata_ = std::make_unique<StepMetadata>(Made(StepMetadata::Create(device_, kCapacity)));
    results_ = Made(StepResults::Create(device_, *cpu_, runner_.info(), kCapacity));
    BuildStep();
  }

  double MicrosecondsPerStep() {
    Seconds(1);  // What comes first loads things.
    return 1e6 * Seconds(kSteps) / kSteps;
  }

 private:
  static constexpr int32_t kRowBlocks = 48;
  static constexpr StepCapacity kCapacity = {
      .max_tokens = 1, .max_rows = 1, .max_row_blocks = kRowBlocks};

  // Of the middle one's length.
  void BuildStep() {
    StepRow row{.tokens = {5},
                .context_len = 3 + kSteps / 2,
                .sample = true,
                .sampling = Context(),
                .num_emitted = 1 + kSteps / 2};
    const int32_t block_size = runner_.info().layout.block_size;
    for (int32_t b = 0; b * block_size <= row.context_len; ++b) row.block_table.push_back(b);
    plan_.rows.push_back(std::move(row));
    metadata_
        ->Build(plan_,
                {.vocab_size = runner_.info().vocab_size,
                 .max_model_len = runner_.info().max_model_len,
                 .block_size = block_size,
                 .num_blocks = runner_.cache().num_blocks()},
                1)
        .IgnoreError();
    results_->Build(plan_);
    Enqueue([&] { return Pass(); });  // Loads kernels, which a capture may not.
    graph_ = Made(device_.Capture([&] { return Pass(); }));
  }
  absl::Status Pass() {
    return transformer_->Forward(*metadata_, runner_.cache(),
                                 [](int32_t) { return absl::OkStatus(); });
  }
  template <typename Call>
  void Enqueue(const Call& pass) {
    BATON_CHECK(metadata_->Upload(results_->upload()).ok());
    BATON_CHECK(pass().ok());
    BATON_CHECK(results_->Enqueue(0, 1, Made(transformer_->Logits(0, 1))).ok());
  }
  double Seconds(int steps) {
    const Time begin = SteadyNow();
    for (int i = 0; i < steps; ++i) {
      Enqueue([&] { return transformer_->Replay(graph_.get(), 1); });
    }
    const Mark mark = Made(device_.MarkNow(Lane::kCompute));
    while (!Made(device_.IsDone(mark))) {
    }
    return ToSeconds(SteadyNow() - begin);
  }

  LoadedRunner& runner_;
  Device& device_;
  const ModelFiles files_;
  const std::unique_ptr<CpuKernels> cpu_ = Made(MakeCpuKernels({}));
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<StepMetadata> metadata_;
  std::unique_ptr<StepResults> results_;
  StepPlan plan_;
  std::unique_ptr<Graph> graph_;
};

// Of each step, the prompt's among them.
double MicrosecondsPerStep(FollowUpSteps& steps, bool two, FollowUpSteps::Outputs* outputs) {
  const Time begin = SteadyNow();
  *outputs = steps.Run(two);
  return 1e6 * ToSeconds(SteadyNow() - begin) / (1 + kSteps);
}

TEST(StepCostsTest, OneSequenceIsMeasured) {
  FollowUpSteps steps({.model_dir = kModel,
                       .compute_dtype = DType::kBF16,
                       .num_blocks = 48,
                       .device = "cuda",
                       .max_step_tokens = 8,
                       .max_step_rows = 1},
                      {Context()}, {1 + kSteps});
  steps.set_starts_at_once();
#if defined(BATON_CUDA_DEVICE)
  steps.Run(false);  // What comes first loads things.
#endif
  FollowUpSteps::Outputs of_one, of_two;
  const double one = MicrosecondsPerStep(steps, false, &of_one);
  const double two = MicrosecondsPerStep(steps, true, &of_two);
  ASSERT_TRUE(steps.status().ok()) << steps.status();
  EXPECT_EQ(of_one, of_two);
  const double device = DeviceSteps(&steps.runner()).MicrosecondsPerStep();
  for (const double measured : {one, two, device}) EXPECT_GT(measured, 0);
  std::puts(nlohmann::json{{"steps", kSteps},
                           {"device_time", device},
                           {"decode_step", one},
                           {"gap", one - device},
                           {"decode_step_of_two", two},
                           {"gap_of_two", two - device}}
                .dump()
                .c_str());
}

}  // namespace
}  // namespace baton
