#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/base/clock.h"
#include "common/rpc/connection.h"
#include "router/inference_service.h"
#include "tests/unit/router/generation/fakes.h"

// Who waits for the threads of texts, and for how long.
namespace baton {
namespace {

// Tasks of texts that wait until the test runs them.
class HeldTexts {
 public:
  std::function<void(const std::string&, std::function<void()>)> Executor() {
    return [this](const std::string& client, std::function<void()> task) {
      EXPECT_EQ(client, "key a");
      absl::MutexLock lock(&mutex_);
      tasks_.push_back(std::move(task));
    };
  }
  void Await(size_t num_tasks) {
    const auto are_here = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return tasks_.size() >= num_tasks;
    };
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&are_here), absl::Seconds(60)));
  }
  size_t RunAll() {
    std::vector<std::function<void()>> tasks;
    {
      absl::MutexLock lock(&mutex_);
      tasks.swap(tasks_);
    }
    for (const auto& task : tasks) task();
    return tasks.size();
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
};

class TextWaitsServiceTest : public ::testing::Test {
 protected:
  void Serve(InferenceServerOptions options) {
    server_ = std::make_unique<InferenceServer>(std::move(options), &service_);
    ASSERT_TRUE(server_->Start().ok());
    stub_ = v1::Inference::NewStub(
        grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                  grpc::InsecureChannelCredentials(), ClusterChannelArguments()));
  }

  const std::shared_ptr<CountingTokenizer> tokenizer_ = std::make_shared<CountingTokenizer>();
  FakeFrontend frontend_{SayBytes("x")};
  GenerationService service_{FakeModelOptions(), tokenizer_, &frontend_};
  HeldTexts texts_;
  std::unique_ptr<InferenceServer> server_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(TextWaitsServiceTest, TextsOfStrangersDoNotWaitAmongOthers) {
  InferenceServerOptions options;
  options.authorize = [](std::string_view) -> absl::StatusOr<std::string> {
    return absl::UnauthenticatedError("not known");
  };
  options.text_executor = texts_.Executor();
  Serve(std::move(options));
  grpc::ClientContext tokenize;
  tokenize.set_deadline(DeadlineAfter(std::chrono::seconds(20)));
  v1::TokenizeRequest text;
  text.set_text(std::string(100'000, 'a'));
  v1::TokenizeResponse tokens;
  EXPECT_EQ(stub_->Tokenize(&tokenize, text, &tokens).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  grpc::ClientContext generate;
  v1::GenerateRequest request;
  request.set_text(text.text());
  EXPECT_EQ(stub_->Generate(&generate, request)->Finish().error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(texts_.RunAll(), 0u);
}

TEST_F(TextWaitsServiceTest, NothingIsTokenizedForAClientThatHasGone) {
  InferenceServerOptions options;
  options.authorize = [](std::string_view) { return "a"; };
  options.text_executor = texts_.Executor();
  Serve(std::move(options));
  const auto tokenize = [&](const std::string& text, bool gives_up) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer any");
    v1::TokenizeRequest request;
    request.set_text(text);
    v1::TokenizeResponse tokens;
    std::jthread done([&] { (void)stub_->Tokenize(&context, request, &tokens); });
    texts_.Await(1);
    if (gives_up) context.TryCancel();
    if (gives_up) done.join();
    const int before = tokenizer_->num_texts;
    texts_.RunAll();
    if (!gives_up) done.join();
    return tokenizer_->num_texts - before;
  };
  EXPECT_EQ(tokenize("a", /*gives_up=*/false), 1);
  // The server hears of it a little after the client has gone.
  const auto give_up = SteadyNow() + std::chrono::seconds(20);
  bool was_spared = false;
  while (!was_spared && SteadyNow() < give_up) was_spared = tokenize("b", /*gives_up=*/true) == 0;
  EXPECT_TRUE(was_spared);
}

}  // namespace
}  // namespace baton
