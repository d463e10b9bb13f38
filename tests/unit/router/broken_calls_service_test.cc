// Calls of router/inference_service.h that break before their request has begun, and unread ones.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/rpc/connection.h"
#include "router/inference_service.h"
#include "tests/unit/router/generation/fakes.h"

namespace baton {
namespace {

// Encode waits until it may go on.
class SlowTokenizer : public FakeTokenizer {
 public:
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool special) const override {
    if (++num_begun == 1) begun.Notify();
    go_on.WaitForNotification();
    return FakeTokenizer::Encode(text, special);
  }
  mutable std::atomic<int> num_begun = 0;
  mutable absl::Notification begun;
  absl::Notification go_on;
};

// A server whose calls hold bytes of the budget, with one thread for all of them.
class SlowServerTest : public ::testing::Test {
 protected:
  SlowServerTest() {
    EXPECT_TRUE(server_.Start().ok());
    stub_ = v1::Inference::NewStub(
        grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_.port()),
                                  grpc::InsecureChannelCredentials(), ClusterChannelArguments()));
    request_.set_text("a");
    request_.mutable_options()->set_max_tokens(50);
    request_.mutable_options()->set_logprobs(5);
  }
  // After it what a client did before is known to the server: these calls wait for no thread of the
  // pool, and come behind it on the same connection.
  void LetTheServerHear() const {
    for (int i = 0; i < 100; ++i) {
      grpc::ClientContext context;
      v1::Model model;
      EXPECT_TRUE(stub_->GetModel(&context, {}, &model).ok());
    }
    absl::SleepFor(absl::Milliseconds(100));
  }
  // After it no thread of the server does anything more.
  void Shutdown() { server_.Shutdown(std::chrono::seconds(10)); }

  const std::shared_ptr<SlowTokenizer> tokenizer_ = std::make_shared<SlowTokenizer>();
  absl::Notification submitted_;
  absl::Notification go_on_;
  FakeFrontend frontend_{[this](uint64_t, const ValidRequest&, ResponseSink&) {
    if (!submitted_.HasBeenNotified()) submitted_.Notify();
    go_on_.WaitForNotification();
  }};
  GenerationService service_{FakeModelOptions(), tokenizer_, &frontend_};
  InferenceServer server_{{.num_threads = 1}, &service_};
  std::unique_ptr<v1::Inference::Stub> stub_;
  v1::GenerateRequest request_;
};

TEST_F(SlowServerTest, ACallThatIsDoneBeforeItsRequestIsReadLeavesNothing) {
  go_on_.Notify();
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request_);
  tokenizer_->begun.WaitForNotification();
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  LetTheServerHear();
  tokenizer_->go_on.Notify();
  Shutdown();
  EXPECT_EQ(service_.answer_bytes(), 0);
}

TEST_F(SlowServerTest, ACallThatEndedWellLeavesNothing) {
  tokenizer_->go_on.Notify();
  go_on_.Notify();
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request_);
  submitted_.WaitForNotification();
  EXPECT_GT(service_.answer_bytes(), 0);
  SayBytes("hello")(1, frontend_.requests().at(0), *frontend_.sink(1));
  v1::GenerateEvent event;
  while (reader->Read(&event)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  Shutdown();
  EXPECT_EQ(service_.answer_bytes(), 0);
}

TEST_F(SlowServerTest, ACallThatBreaksWhileItWaitsForAThreadIsNotBegun) {
  go_on_.Notify();
  grpc::ClientContext first_context;
  auto first = stub_->Generate(&first_context, request_);
  tokenizer_->begun.WaitForNotification();
  grpc::ClientContext second_context;
  auto second = stub_->Generate(&second_context, request_);
  LetTheServerHear();
  second_context.TryCancel();
  EXPECT_EQ(second->Finish().error_code(), grpc::StatusCode::CANCELLED);
  LetTheServerHear();
  tokenizer_->go_on.Notify();
  submitted_.WaitForNotification();
  first_context.TryCancel();
  first->Finish();
  Shutdown();
  EXPECT_EQ(tokenizer_->num_begun, 1);
  EXPECT_EQ(service_.answer_bytes(), 0);
}

TEST_F(SlowServerTest, ACallThatBreaksWhileItsRequestIsSubmittedIsCancelled) {
  tokenizer_->go_on.Notify();
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request_);
  submitted_.WaitForNotification();
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  LetTheServerHear();
  go_on_.Notify();
  EXPECT_TRUE(frontend_.WaitForCancel(1));
  Shutdown();
  EXPECT_EQ(service_.answer_bytes(), 0);
}

TEST(UnreadCallTest, AClientThatTakesNothingLosesItsCallAndItsShareOfTheBudget) {
  absl::Notification said;
  const FakeFrontend::Script say = SayBytes(std::string(200, 'x'));
  FakeFrontend frontend([&](uint64_t key, const ValidRequest& request, ResponseSink& sink) {
    say(key, request, sink);
    said.Notify();
  });
  GenerationService service(FakeModelOptions(), std::make_shared<FakeTokenizer>(), &frontend);
  InferenceServer server({.write_timeout = std::chrono::milliseconds(300)}, &service);
  ASSERT_TRUE(server.Start().ok());
  v1::GenerateRequest request;
  request.set_text("ab");
  request.mutable_options()->set_max_tokens(100);
  request.mutable_options()->set_n(128);
  request.mutable_options()->set_logprobs(20);
  grpc::ChannelArguments small = ClusterChannelArguments();
  small.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  small.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 10);
  const auto stub = v1::Inference::NewStub(
      grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server.port()),
                                grpc::InsecureChannelCredentials(), small));
  grpc::ClientContext context;
  auto reader = stub->Generate(&context, request);
  ASSERT_TRUE(said.WaitForNotificationWithTimeout(absl::Seconds(60)));
  const absl::Time patience = absl::Now() + absl::Seconds(60);
  while (service.answer_bytes() > 0 && absl::Now() < patience) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(service.answer_bytes(), 0);
  v1::GenerateEvent event;
  while (reader->Read(&event)) {}
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace baton
