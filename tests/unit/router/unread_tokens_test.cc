// What gRPC readers leave unread is held up to a bound.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/rpc/connection.h"
#include "router/inference_service.h"
#include "tests/unit/router/generation/fakes.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

// Tokens come in batches, each more than what is free of an answer and less than all there is.
class UnreadTokensTest : public ::testing::Test {
 protected:
  static constexpr int32_t kBatch = 1000;

  void Begin() {
    GenerationServiceOptions options = FakeModelOptions();
    options.limits.max_answer_bytes = kBatch * HeldBytes(1, 3);
    service_ = std::make_unique<GenerationService>(options, std::make_shared<FakeTokenizer>(),
                                                   &frontend_);
    server_ = std::make_unique<InferenceServer>(InferenceServerOptions(), service_.get());
    ASSERT_TRUE(server_->Start().ok());
    stub_ = v1::Inference::NewStub(
        grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                  grpc::InsecureChannelCredentials(), ClusterChannelArguments()));
    v1::GenerateRequest request;
    request.set_text("ab");
    reader_ = stub_->Generate(&context_, request);
    while (frontend_.requests().empty()) absl::SleepFor(absl::Milliseconds(1));
    sink_ = frontend_.sink(1);
  }
  void Say() {
    ChoiceTokens tokens{.choice = 0};
    for (int32_t i = 0; i < kBatch; ++i) {
      const auto position = static_cast<int32_t>(3 + num_said_++);
      tokens.outputs.push_back(
          FakeOutput(frontend_.requests()[0], FakeTokenizer::kTheA, position));
    }
    sink_->OnEvent(std::move(tokens));
  }

  FakeFrontend frontend_;
  std::unique_ptr<GenerationService> service_;
  std::unique_ptr<InferenceServer> server_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::shared_ptr<ResponseSink> sink_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> reader_;
  int64_t num_said_ = 0;
};

TEST_F(UnreadTokensTest, OfAReaderThatKeepsUpAreGivenBack) {
  Begin();
  int64_t num_read = 0;
  v1::GenerateEvent event;
  for (int batch = 0; batch < 6; ++batch) {
    Say();
    while (num_read < num_said_) {
      ASSERT_TRUE(reader_->Read(&event)) << batch << ": " << reader_->Finish().error_message();
      num_read += event.delta().token_ids_size();
    }
  }
  frontend_.Cancel(1);
  while (reader_->Read(&event)) {
  }
  EXPECT_EQ(reader_->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(UnreadTokensTest, OfASlowReaderEndItsAnswerWhenThereIsNoMoreRoom) {
  Begin();
  // gRPC takes some before the client does, at its own pace.
  const absl::Time limit = absl::Now() + absl::Minutes(1);
  while (frontend_.cancelled().empty() && absl::Now() < limit) {
    Say();
    absl::SleepFor(absl::Milliseconds(1));
  }
  if (frontend_.cancelled().empty()) {
    context_.TryCancel();
    FAIL() << "after " << num_said_ << " tokens that nobody took";
  }
  EXPECT_LE(service_->answer_bytes(), kBatch * HeldBytes(1, 3));
  v1::GenerateEvent event;
  while (reader_->Read(&event)) {
  }
  const grpc::Status status = reader_->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("readers that do not take it"));
}

}  // namespace
}  // namespace baton
