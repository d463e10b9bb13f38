// Ranks as one runner: what is reported when, and how they end.
#include "common/model/tensor_parallel_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/select_kernel_set.h"
#include "tests/unit/common/model/runner_harness.h"

namespace baton {
namespace {

// Called before a rank writes the K/V of a layer.
using Hook = std::function<absl::Status(int rank, int layer)>;

class HookedKernels : public CpuKernels {
 public:
  HookedKernels(int rank, const Hook* hook)
      : CpuKernels(*SelectKernelSet("auto"), 1), rank_(rank), hook_(hook) {}
  absl::Status Embedding(const EmbeddingArgs& args) override {
    layer_ = 0;
    return CpuKernels::Embedding(args);
  }
  absl::Status ReshapeAndCache(const ReshapeAndCacheArgs& args) override {
    if (*hook_) {
      const absl::Status status = (*hook_)(rank_, layer_++);
      if (!status.ok()) return status;
    }
    return CpuKernels::ReshapeAndCache(args);
  }

 private:
  const int rank_;
  const Hook* const hook_;
  int layer_ = 0;
};

struct KernelsOwner {
  std::unique_ptr<CpuKernels> kernels;
};

class HookedDevice : private KernelsOwner, public CpuDevice {
 public:
  explicit HookedDevice(std::unique_ptr<CpuKernels> made)
      : KernelsOwner{std::move(made)}, CpuDevice(kernels.get()) {}
};

// What rank 0 reads logits with; it may refuse them.
class RefusingHost : public CpuKernels {
 public:
  explicit RefusingHost(const std::atomic<bool>* refuses)
      : CpuKernels(*SelectKernelSet("auto"), 1), refuses_(refuses) {}
  absl::Status Sample(const SampleArgs& args) override {
    return *refuses_ ? absl::InvalidArgumentError("no sample") : CpuKernels::Sample(args);
  }
  absl::Status Score(const ScoreArgs& args) override {
    return *refuses_ ? absl::InvalidArgumentError("no score") : CpuKernels::Score(args);
  }

 private:
  const std::atomic<bool>* const refuses_;
};

// A model of 6 layers on two ranks.
class TensorParallelRunnerTest : public testing::Test {
 protected:
  RunnerOptions Options() {
    return {.model_dir = BATON_SOURCE_DIR "/deploy/models/tiny-kjv",
            .num_blocks = 256,
            .tp = 2,
            .make_device = [this] {
              return std::make_unique<HookedDevice>(
                  std::make_unique<HookedKernels>(num_devices_++, &hook_));
            }};
  }
  static StepRow Row() {
    return {.tokens = {5, 6, 7}, .block_table = {0}, .sample = true,
            .sampling = std::make_shared<SamplingContext>()};
  }
  static std::shared_ptr<StepPlan> Plan(uint64_t step, std::vector<StepRow> rows) {
    auto plan = std::make_shared<StepPlan>();
    plan->step = step;
    plan->rows = std::move(rows);
    return plan;
  }

  // A runner that is lost is told as a step that ended so, lest a test wait for it.
  static LostFn EndsInsteadOfAStep(RecordingSink* sink) {
    return [sink](const absl::Status& status) {
      sink->OnStepDone({.status = absl::DataLossError(status.ToString())});
    };
  }

  Hook hook_;
  int num_devices_ = 0;
};

std::vector<int32_t> LayersOf(const std::vector<LayerDone>& reports) {
  std::vector<int32_t> layers;
  for (const LayerDone& done : reports) layers.push_back(done.layer);
  return layers;
}

TEST_F(TensorParallelRunnerTest, ALayerIsReportedOnceAndInItsOrder) {
  RunnerHarness harness(Options());
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(harness.Step({Row()}).status.ok());
    EXPECT_THAT(LayersOf(harness.sink().TakeLayers()), testing::ElementsAre(0, 1, 2, 3, 4, 5));
  }
}

// Each rank in its turn is the last: of a layer that one has not written nothing is reported.
TEST_F(TensorParallelRunnerTest, ALayerIsReportedWhenAllRanksHaveWrittenIt) {
  for (const int late : {0, 1}) {
    num_devices_ = 0;
    RecordingSink sink;
    std::vector<LayerDone> before;
    std::atomic<bool> other_is_there = false;
    hook_ = [&, late](int rank, int layer) {
      if (layer != 3) return absl::OkStatus();
      if (rank != late) {
        other_is_there = true;
        return absl::OkStatus();
      }
      // The other has time to write layer 3 and waits for this one's sums.
      const auto yield_while = [](Duration limit, const auto& condition) {
        for (const Time end = SteadyNow() + limit; condition() && SteadyNow() < end;) {
          std::this_thread::yield();
        }
      };
      yield_while(std::chrono::seconds(10), [&] { return !other_is_there; });
      yield_while(std::chrono::milliseconds(300), [] { return true; });
      before = sink.TakeLayers();
      return absl::OkStatus();
    };
    RunnerHarness harness(Options(), &sink);
    ASSERT_TRUE(harness.Step({Row()}).status.ok());
    EXPECT_THAT(LayersOf(before), testing::ElementsAre(0, 1, 2)) << late;
    EXPECT_THAT(LayersOf(sink.TakeLayers()), testing::ElementsAre(3, 4, 5)) << late;
  }
}

// Starts the next step from within OnStepDone, until so many have been.
class RestartingSink : public RecordingSink {
 public:
  void OnStepDone(StepDone done) override {
    if (done.step < 300) {
      runner->Start(plan(done.step + 1));
    } else {
      RecordingSink::OnStepDone(std::move(done));
    }
  }
  LoadedRunner* runner = nullptr;
  std::function<std::shared_ptr<StepPlan>(uint64_t step)> plan;
};

TEST_F(TensorParallelRunnerTest, TheNextStepMayStartFromWithinTheReportOfTheLast) {
  RestartingSink sink;
  auto runner = *LoadedRunner::Create(Options(), &sink);
  sink.runner = runner.get();
  sink.plan = [](uint64_t step) { return Plan(step, {Row()}); };
  runner->Start(sink.plan(1));
  EXPECT_EQ(sink.WaitForStep().step, 300u);
}

TEST_F(TensorParallelRunnerTest, AStopEndsTheStepOfAllRanks) {
  RunnerHarness harness(Options());
  harness.runner().Stop();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(harness.Step({Row()}).status.code(), absl::StatusCode::kCancelled);
  }
}

// Stops its runner at the first RowsDone.
class StoppingSink : public RecordingSink {
 public:
  void OnRowsDone(const RowsDone& done) override {
    RecordingSink::OnRowsDone(done);
    runner->Stop();
  }
  LoadedRunner* runner = nullptr;
};

TEST_F(TensorParallelRunnerTest, AStopAmidALongPromptsScoresEndsTheStepOfAllRanks) {
  StoppingSink sink;
  auto runner = *LoadedRunner::Create(Options(), &sink);
  sink.runner = runner.get();
  auto prompt = std::make_shared<SamplingContext>();
  prompt->prompt.assign(1000, 5);
  prompt->params.num_prompt_logprobs = 1;
  StepRow row{.tokens = prompt->prompt, .block_table = {}, .sampling = prompt};
  for (BlockId block = 0; block < 63; ++block) row.block_table.push_back(block);
  runner->Start(Plan(4, {row}));
  EXPECT_EQ(sink.WaitForStep().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(sink.TakeMarks().size(), 1u);
}

TEST_F(TensorParallelRunnerTest, TheEndOfARunnerAwaitsItsStep) {
  RecordingSink sink;
  for (int i = 0; i < 20; ++i) {
    num_devices_ = 0;
    auto runner = *LoadedRunner::Create(Options(), &sink);
    runner->Start(Plan(i, {Row()}));
    for (int spin = 0; spin < i * 100; ++spin) std::this_thread::yield();
    runner.reset();
    EXPECT_EQ(sink.WaitForStep().step, static_cast<uint64_t>(i));
  }
}

// Sizes that an operator refuses, say: all ranks stand at the same place, and the next step is as
// good as any.
TEST_F(TensorParallelRunnerTest, AnErrorOfAllRanksEndsItsStepAlone) {
  std::atomic<int> broken_layer = -1;
  hook_ = [&](int, int layer) {
    return layer == broken_layer ? absl::InternalError("too wide") : absl::OkStatus();
  };
  RecordingSink sink;
  auto runner = *LoadedRunner::Create(Options(), &sink, EndsInsteadOfAStep(&sink));
  uint64_t step = 0;
  for (const int layer : {-1, 0, -1, 3, 5, -1}) {
    broken_layer = layer;
    runner->Start(Plan(++step, {Row()}));
    ASSERT_EQ(sink.WaitForStep().status,
              layer < 0 ? absl::OkStatus() : absl::InternalError("too wide"));
    EXPECT_EQ(sink.TakeLayers().size(), layer < 0 ? 6u : layer) << layer;
  }
}

// The others have done their part and know of nothing.
TEST_F(TensorParallelRunnerTest, AnErrorOfWhoReadsTheLogitsEndsItsStepAlone) {
  std::atomic<bool> refuses = false;
  RunnerOptions options = Options();
  options.make_host = [&] { return std::make_unique<RefusingHost>(&refuses); };
  RecordingSink sink;
  auto runner = *LoadedRunner::Create(options, &sink, EndsInsteadOfAStep(&sink));
  auto prompt = std::make_shared<SamplingContext>();
  prompt->prompt.assign(1000, 5);
  prompt->params.num_prompt_logprobs = 1;
  StepRow scored{.tokens = prompt->prompt, .block_table = {}, .sampling = prompt};
  for (BlockId block = 1; block < 64; ++block) scored.block_table.push_back(block);
  uint64_t step = 0;
  for (const StepRow& row : {Row(), scored}) {
    for (const bool is_refused : {false, true, false}) {
      refuses = is_refused;
      runner->Start(Plan(++step, {row}));
      ASSERT_EQ(sink.WaitForStep().status.code(), is_refused ? absl::StatusCode::kInvalidArgument
                                                             : absl::StatusCode::kOk);
    }
  }
}

// Whatever the error, the ranks are no longer of one mind: the worker ends as with a lost device.
TEST_F(TensorParallelRunnerTest, AnErrorOfOneRankEndsThemAllOnce) {
  for (const auto& [broken, error] : {std::pair(0, absl::InternalError("rank is broken")),
                                      std::pair(1, absl::InternalError("rank is broken")),
                                      std::pair(1, absl::UnavailableError("its device is lost"))}) {
    const Time begin = SteadyNow();
    num_devices_ = 0;
    hook_ = [&](int rank, int layer) {
      return rank == broken && layer == 2 ? error : absl::OkStatus();
    };
    RecordingSink sink;
    std::mutex mutex;
    std::vector<absl::Status> lost;
    std::promise<void> is_lost;
    {
      auto runner = *LoadedRunner::Create(Options(), &sink, [&](const absl::Status& status) {
        const std::lock_guard lock(mutex);
        lost.push_back(status);
        if (lost.size() == 1) is_lost.set_value();
      });
      runner->Start(Plan(1, {Row()}));
      is_lost.get_future().wait();
    }
    EXPECT_THAT(lost, testing::ElementsAre(error));
    EXPECT_THAT(LayersOf(sink.TakeLayers()), testing::ElementsAre(0, 1));
    EXPECT_FALSE(sink.HasStep());
    // The others are told, and do not wait until they lose patience.
    ASSERT_LT(SteadyNow() - begin, Patience::kMost / 2);
  }
}

// Starts the next step until one is cancelled.
class StubbornSink : public RecordingSink {
 public:
  void OnStepDone(StepDone done) override {
    if (done.status.ok()) {
      steps = done.step;
      steps.notify_one();
      runner->Start(plan(done.step + 1));
    } else {
      RecordingSink::OnStepDone(std::move(done));
    }
  }
  LoadedRunner* runner = nullptr;
  std::function<std::shared_ptr<StepPlan>(uint64_t step)> plan;
  std::atomic<uint64_t> steps = 0;
};

TEST_F(TensorParallelRunnerTest, TheEndOfARunnerAwaitsStepsThatItsSinkStarts) {
  for (int i = 0; i < 10; ++i) {
    num_devices_ = 0;
    StubbornSink sink;
    auto runner = *LoadedRunner::Create(Options(), &sink);
    sink.runner = runner.get();
    sink.plan = [](uint64_t step) { return Plan(step, {Row()}); };
    runner->Start(sink.plan(1));
    sink.steps.wait(0);
    runner.reset();
    EXPECT_EQ(sink.WaitForStep().status.code(), absl::StatusCode::kCancelled);
  }
}

// Nobody waits for its sums or its logits any more: it is missed at the end of the step.
TEST_F(TensorParallelRunnerTest, ARankThatHangsBehindTheLastSumsEndsThemAll) {
  std::promise<absl::Status> lost;
  std::promise<void> release;
  std::atomic<bool> hangs = false;
  hook_ = [&, go_on = release.get_future().share()](int rank, int layer) {
    if (hangs && rank == 1 && layer == 5) go_on.wait();
    return absl::OkStatus();
  };
  RecordingSink sink;
  auto runner = *LoadedRunner::Create(
      Options(), &sink, [&](const absl::Status& status) { lost.set_value(status); });
  for (uint64_t step = 1; step <= 2; ++step) {
    runner->Start(Plan(step, {Row()}));
    ASSERT_TRUE(sink.WaitForStep().status.ok());
  }
  hangs = true;
  StepRow row = Row();
  row.sample = false;
  runner->Start(Plan(3, {row}));
  std::future<absl::Status> why = lost.get_future();
  const bool ended = why.wait_for(Patience::kMost / 2) == std::future_status::ready;
  release.set_value();
  ASSERT_TRUE(ended);
  EXPECT_EQ(why.get(),
            absl::UnavailableError("rank 1 of 2 has not come to the others within 2500 ms"));
}

TEST_F(TensorParallelRunnerTest, DevicesThatCannotBeAGroupAreRefused) {
  class Different : public HookedDevice {
   public:
    Different(std::unique_ptr<CpuKernels> kernels, std::string arithmetic, absl::Status peer)
        : HookedDevice(std::move(kernels)), arithmetic_(std::move(arithmetic)), peer_(peer) {}
    std::string Arithmetic(DType) const override { return arithmetic_; }
    absl::Status EnablePeer(const Device&) override { return peer_; }

   private:
    const std::string arithmetic_;
    const absl::Status peer_;
  };
  const auto refusal = [&](const std::string& other, const absl::Status& first,
                           const absl::Status& second) {
    num_devices_ = 0;
    RunnerOptions options = Options();
    options.make_device = [&] {
      const int rank = num_devices_++;
      return std::make_unique<Different>(std::make_unique<HookedKernels>(rank, &hook_),
                                         rank == 0 ? "a" : other, rank == 0 ? first : second);
    };
    RecordingSink sink;
    return LoadedRunner::Create(options, &sink).status();
  };
  const absl::Status far = absl::FailedPreconditionError("too far");
  EXPECT_EQ(refusal("a", absl::OkStatus(), absl::OkStatus()), absl::OkStatus());
  EXPECT_EQ(refusal("b", absl::OkStatus(), absl::OkStatus()),
            absl::InvalidArgumentError("tp = 2: rank 0 computes as a, rank 1 as b: all must be of "
                                       "one kind; choose neighbouring GPUs by --device cuda:N"));
  EXPECT_EQ(refusal("a", far, absl::OkStatus()), absl::FailedPreconditionError("tp = 2: too far"));
  EXPECT_EQ(refusal("a", absl::OkStatus(), far), absl::FailedPreconditionError("tp = 2: too far"));
}

}  // namespace
}  // namespace baton
