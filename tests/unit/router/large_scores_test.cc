// A score far beyond one message, from a prefill worker's node over real sockets to the client's
// edge.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/node/node_thread.h"
#include "common/rpc/connection.h"
#include "common/rpc/worker_server.h"
#include "prefill_worker/node.h"
#include "router/router_service.h"
#include "tests/unit/common/engine/worker_fakes.h"

namespace baton {
namespace {

constexpr int32_t kPrompt = 100'000;
constexpr int32_t kTop = 20;

PromptLogprob ScoreAt(const std::vector<int32_t>& prompt, int32_t position) {
  PromptLogprob score{.position = position,
                      .token = prompt[position],
                      .logprob = -0.001f * static_cast<float>(position),
                      .rank = 1 + position % 7};
  for (int32_t i = 0; i < kTop; ++i) {
    score.top.push_back({.token = (position + i) % 1000, .logprob = -static_cast<float>(i)});
  }
  return score;
}

// A model that computes nothing.
class InstantRunner : public ModelRunner {
 public:
  explicit InstantRunner(Inbox<PrefillMail>* inbox) : inbox_(inbox) {}
  void Start(std::shared_ptr<const StepPlan> plan) override {
    StepDone done{.step = plan->step};
    for (const StepRow& row : plan->rows) {
      const auto end = row.context_len + static_cast<int32_t>(row.tokens.size());
      const auto& prompt = row.sampling->prompt;
      RowResult result{.sequence = row.sequence};
      for (int32_t p = row.context_len + 1; p <= end && p < kPrompt; ++p) {
        result.prompt_logprobs.push_back(ScoreAt(prompt, p));
      }
      done.rows.push_back(std::move(result));
    }
    inbox_->Post(std::move(done));
  }

 private:
  Inbox<PrefillMail>* const inbox_;
};

class LargeWorker {
 public:
  LargeWorker()
      : model_(Model()),
        runner_(&thread_),
        server_({.hello = {.role = Role::kPrefill,
                           .incarnation = 7,
                           .numerics_id = "test",
                           .block_size = 4,
                           .num_blocks = 30'000,
                           .max_model_len = model_.max_model_len,
                           .vocab_size = model_.vocab_size},
                 .status =
                     [] {
                       WorkerStatus status;
                       status.incarnation = 7;
                       return status;
                     }},
                &thread_),
        node_({7, {}, model_, pool_, runner_, transport_, server_}, {}) {
    EXPECT_TRUE(server_.Start().ok());
    thread_.Start(&node_, [this](Time) { server_.Flush(); });
  }
  ~LargeWorker() {
    server_.Shutdown(Duration::zero());
    thread_.Stop();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", server_.port()); }

 private:
  static ModelInfo Model() {
    ModelInfo model = SmallModel();
    model.max_model_len = kPrompt + 10;
    return model;
  }

  const ModelInfo model_;
  NodeThread<PrefillMail> thread_{{.name = "prefill"}};
  BlockAllocator pool_{30'000, 4, 3};
  InstantRunner runner_;
  RecordingTransport transport_;
  WorkerServer server_;
  PrefillNode node_;
};

class ScoreSink : public ResponseSink {
 public:
  void OnEvent(ClientEvent event) override {
    if (auto* piece = std::get_if<PromptScored>(&event)) {
      ++pieces;
      for (PromptLogprob& one : piece->logprobs) scores.push_back(std::move(one));
    } else if (auto* last = std::get_if<RequestEnded>(&event)) {
      status = last->status;
      ended.Notify();
    }
  }
  std::vector<PromptLogprob> scores;
  int pieces = 0;
  absl::Status status;
  absl::Notification ended;
};

TEST(LargeScoresTest, AScoreBeyondAMessageArrivesPieceByPieceAndOnce) {
  LargeWorker worker;
  RouterService router(
      {.node = {.incarnation = 99}, .workers = {{Role::kPrefill, worker.address()}}},
      *MakeRoutingPolicy("least_loaded"));
  router.Start({});
  ValidRequest request;
  request.prompts.emplace_back();
  for (int32_t i = 0; i < kPrompt; ++i) request.prompts[0].push_back(i % 500);
  request.score_only = true;
  request.sampling.num_prompt_logprobs = kTop;
  request.timeout = std::chrono::seconds(300);
  const std::vector<int32_t> prompt = request.prompts[0];
  const auto sink = std::make_shared<ScoreSink>();
  ASSERT_TRUE(router.Submit(std::move(request), sink).ok());
  ASSERT_TRUE(sink->ended.WaitForNotificationWithTimeout(absl::Seconds(240)));
  ASSERT_TRUE(sink->status.ok()) << sink->status;
  ASSERT_EQ(sink->scores.size(), size_t{kPrompt} - 1);
  for (int32_t p = 1; p < kPrompt; ++p) ASSERT_EQ(sink->scores[p - 1], ScoreAt(prompt, p)) << p;
  // Each log probability is ten bytes at least on the wire.
  EXPECT_GT(int64_t{kPrompt} * (kTop + 1) * 10, kMaxGrpcMessageBytes);
  EXPECT_GT(sink->pieces, 1);
  router.Stop();
}

}  // namespace
}  // namespace baton
