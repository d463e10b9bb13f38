#include "router/inference_service.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/rpc/connection.h"
#include "router/generation/pending_deltas.h"
#include "tests/unit/router/generation/fakes.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Answer {
  std::vector<v1::GenerateEvent> events;
  grpc::Status status;

  std::string Text() const {
    std::string text;
    for (const auto& event : events) text += event.delta().text();
    return text;
  }
};

class InferenceServiceTest : public ::testing::Test {
 protected:
  void Serve(FakeFrontend::Script script, InferenceServerOptions options = {},
             GenerationServiceOptions model = FakeModelOptions()) {
    frontend_ = std::make_unique<FakeFrontend>(std::move(script));
    service_ = std::make_unique<GenerationService>(
        std::move(model), std::make_shared<FakeTokenizer>(), frontend_.get());
    server_ = std::make_unique<InferenceServer>(std::move(options), service_.get());
    ASSERT_TRUE(server_->Start().ok());
    stub_ = v1::Inference::NewStub(
        grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                  grpc::InsecureChannelCredentials(), ClusterChannelArguments()));
  }

  Answer Generate(const v1::GenerateRequest& request, const std::string& key = "") {
    grpc::ClientContext context;
    if (!key.empty()) context.AddMetadata("authorization", key);
    auto reader = stub_->Generate(&context, request);
    Answer answer;
    v1::GenerateEvent event;
    while (reader->Read(&event)) answer.events.push_back(event);
    answer.status = reader->Finish();
    return answer;
  }

  std::unique_ptr<FakeFrontend> frontend_;
  std::unique_ptr<GenerationService> service_;
  std::unique_ptr<InferenceServer> server_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(InferenceServiceTest, StreamsTextAndTokensAndEndsWithUsage) {
  Serve(SayBytes("hello"));
  v1::GenerateRequest request;
  request.set_text("ab");
  request.mutable_options()->set_max_tokens(16);
  const Answer answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.Text(), "hello");
  ASSERT_GE(answer.events.size(), 2u);
  const auto& last = answer.events.back();
  EXPECT_EQ(last.usage().prompt_tokens(), 3);      // The begin token and two bytes.
  EXPECT_EQ(last.usage().completion_tokens(), 6);  // Five bytes and the end token.
  EXPECT_EQ(answer.events[answer.events.size() - 2].delta().finish_reason(), "stop");
}

TEST_F(InferenceServiceTest, WhatASlowReaderLeavesWaitsAndComesInBoundedEvents) {
  // 128 choices of 100 tokens, all before the client has read one.
  absl::Notification said;
  const FakeFrontend::Script say = SayBytes(std::string(200, 'x'));
  Serve([&](uint64_t key, const ValidRequest& request, ResponseSink& sink) {
    say(key, request, sink);
    said.Notify();
  });
  v1::GenerateRequest request;
  request.set_text("ab");
  request.mutable_options()->set_max_tokens(100);
  request.mutable_options()->set_n(128);
  request.mutable_options()->set_logprobs(2);
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  ASSERT_TRUE(said.WaitForNotificationWithTimeout(absl::Seconds(60)));
  std::vector<int> next(128, 3);
  std::vector<std::string> finish(128);
  int num_events = 0, completion_tokens = 0;
  v1::GenerateEvent event;
  while (reader->Read(&event)) {
    ++num_events;
    if (event.has_usage()) completion_tokens = event.usage().completion_tokens();
    if (!event.has_delta()) continue;
    const int choice = event.delta().index();
    EXPECT_LE(event.delta().outputs_size() * 3, int{PendingDeltas::kMaxScores});
    EXPECT_EQ(event.delta().outputs_size(), event.delta().token_ids_size());
    EXPECT_EQ(event.delta().text().size(), event.delta().token_ids_size());
    for (const v1::TokenOutput& output : event.delta().outputs()) {
      EXPECT_EQ(output.position(), next[choice]++);
      EXPECT_EQ(output.top_size(), 2);
    }
    finish[choice] += event.delta().finish_reason();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(next, std::vector<int>(128, 103));
  EXPECT_EQ(finish, std::vector<std::string>(128, "length"));
  EXPECT_EQ(completion_tokens, 12800);
  EXPECT_LT(num_events, 6400);
}

TEST_F(InferenceServiceTest, RefusesAnAnswerOfTooManyLogProbabilities) {
  Serve(SayBytes("x"));
  v1::GenerateRequest request;
  request.set_text("ab");
  request.mutable_options()->set_max_tokens(100);
  request.mutable_options()->set_n(128);
  request.mutable_options()->set_logprobs(20);
  EXPECT_TRUE(Generate(request).status.ok());  // 268,800.
  GenerationServiceOptions options = FakeModelOptions();
  options.limits.max_scores = 268'799;
  GenerationService strict(options, std::make_shared<FakeTokenizer>(), frontend_.get());
  InferenceServer server({}, &strict);
  ASSERT_TRUE(server.Start().ok());
  const auto stub = v1::Inference::NewStub(
      grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server.port()),
                                grpc::InsecureChannelCredentials(), ClusterChannelArguments()));
  grpc::ClientContext context;
  const grpc::Status status = stub->Generate(&context, request)->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("logprobs is 20, which asks for 268800"));
}

TEST_F(InferenceServiceTest, TakesTokenIdsAndChat) {
  Serve(SayBytes("x"));
  v1::GenerateRequest ids;
  ids.mutable_token_ids()->add_ids(7);
  ids.mutable_token_ids()->add_ids(8);
  EXPECT_TRUE(Generate(ids).status.ok());
  EXPECT_THAT(frontend_->requests().back().prompts, ElementsAre(ElementsAre(7, 8)));
  v1::GenerateRequest chat;
  v1::ChatMessage* message = chat.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("a \"quoted\" word");
  EXPECT_TRUE(Generate(chat).status.ok());
  EXPECT_GT(frontend_->requests().back().prompts[0].size(), 20u);
}

TEST_F(InferenceServiceTest, TheFirstEventTellsTheIdThatTheSchedulerKnows) {
  Serve(SayBytes("hello"));
  v1::GenerateRequest request;
  request.set_text("a");
  const Answer drawn = Generate(request);
  ASSERT_GE(drawn.events.size(), 2u);
  EXPECT_EQ(drawn.events[0].request_id().size(), 32u);
  EXPECT_EQ(drawn.events[1].request_id(), "");
  EXPECT_EQ(frontend_->requests().back().label, drawn.events[0].request_id());
  request.set_request_id("mine");
  const Answer named = Generate(request);
  EXPECT_EQ(named.events[0].request_id(), "mine");
  EXPECT_EQ(frontend_->requests().back().label, "mine");
}

TEST_F(InferenceServiceTest, AMessageThatIsAlwaysTooLargeIsInvalidAndNotBusy) {
  Serve(SayBytes("x"));
  v1::GenerateRequest request;
  request.set_text(std::string(size_t{7} << 20, 'a'));
  const auto unlimited = [this] {
    grpc::ChannelArguments arguments;
    arguments.SetMaxSendMessageSize(-1);
    return v1::Inference::NewStub(
        grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                  grpc::InsecureChannelCredentials(), arguments));
  };
  stub_ = unlimited();
  const Answer answer = Generate(request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("at most 4194304"));
  // The library's own word, before anything of ours is called: without a reason.
  request.set_text(std::string(size_t{9} << 20, 'a'));
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateEvent event;
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_FALSE(context.GetServerTrailingMetadata().contains("baton-reason"));
  EXPECT_TRUE(frontend_->requests().empty());
}

TEST_F(InferenceServiceTest, EveryOptionReachesTheRequest) {
  Serve(SayBytes("x"));
  v1::GenerateRequest request;
  request.set_text("a");
  request.set_priority(3);
  request.set_request_id("label");
  v1::GenerateOptions* o = request.mutable_options();
  o->set_max_tokens(5);
  o->set_temperature(0.5f);
  o->set_top_p(0.25f);
  o->set_top_k(7);
  o->set_min_p(0.125f);
  o->set_repetition_penalty(1.5f);
  o->set_frequency_penalty(0.75f);
  o->set_presence_penalty(-0.5f);
  o->set_n(2);
  o->set_seed(42);
  o->add_stop_token_ids(9);
  o->add_logit_bias()->set_token(11);
  o->set_min_tokens(2);
  o->set_ignore_eos(true);
  o->set_logprobs(1);
  o->set_logits_digest(true);
  const Answer answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const ValidRequest valid = frontend_->requests().back();
  EXPECT_EQ(valid.label, "label");
  EXPECT_EQ(valid.priority, 3);
  EXPECT_EQ(valid.num_choices, 2);
  EXPECT_EQ(valid.sampling.max_tokens, 5);
  EXPECT_EQ(valid.sampling.temperature, 0.5f);
  EXPECT_EQ(valid.sampling.top_p, 0.25f);
  EXPECT_EQ(valid.sampling.top_k, 7);
  EXPECT_EQ(valid.sampling.min_p, 0.125f);
  EXPECT_EQ(valid.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(valid.sampling.frequency_penalty, 0.75f);
  EXPECT_EQ(valid.sampling.presence_penalty, -0.5f);
  EXPECT_EQ(valid.sampling.seed, 42u);
  EXPECT_THAT(valid.sampling.stop_token_ids, ElementsAre(9));
  EXPECT_EQ(valid.sampling.logit_bias.at(0).token, 11);
  EXPECT_EQ(valid.sampling.min_tokens, 2);
  EXPECT_TRUE(valid.sampling.ignore_eos);
  EXPECT_EQ(valid.sampling.num_logprobs, 1);
  EXPECT_TRUE(valid.sampling.logits_digest);
  const v1::TokenOutput& output = answer.events[0].delta().outputs(0);
  EXPECT_EQ(output.position(), 2);  // After the begin token and one byte.
  EXPECT_EQ(output.logprob(), -0.5f);
  EXPECT_NE(output.logits_digest(), 0u);
}

TEST_F(InferenceServiceTest, ABadRequestIsRefusedByFieldWithAReason) {
  Serve(SayBytes("x"));
  v1::GenerateRequest empty;
  EXPECT_EQ(Generate(empty).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  v1::GenerateRequest bad;
  bad.set_text("a");
  bad.mutable_options()->set_top_p(std::numeric_limits<float>::quiet_NaN());
  const grpc::Status status = Generate(bad).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("top_p"));
  v1::GenerateRequest other;
  other.set_text("a");
  other.set_model("other");
  EXPECT_EQ(Generate(other).status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_TRUE(frontend_->requests().empty());
}

TEST_F(InferenceServiceTest, CancellingTheCallCancelsTheRequest) {
  absl::Notification submitted;
  Serve([&submitted](uint64_t, const ValidRequest&, ResponseSink&) { submitted.Notify(); });
  grpc::ClientContext context;
  v1::GenerateRequest request;
  request.set_text("a");
  auto reader = stub_->Generate(&context, request);
  submitted.WaitForNotification();
  context.TryCancel();
  EXPECT_TRUE(frontend_->WaitForCancel(1));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(InferenceServiceTest, TheCallsDeadlineIsTheRequests) {
  Serve(nullptr);  // Never answers.
  grpc::ClientContext context;
  context.set_deadline(DeadlineAfter(std::chrono::milliseconds(300)));
  v1::GenerateRequest request;
  request.set_text("a");
  auto reader = stub_->Generate(&context, request);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(frontend_->WaitForCancel(1));
  // gRPC rounds a timeout up on the wire; the service's own default is an hour.
  EXPECT_LE(frontend_->requests().at(0).timeout, std::chrono::milliseconds(310));
}

TEST_F(InferenceServiceTest, AsksForAKeyWhenKeysAreConfigured) {
  InferenceServerOptions options;
  options.authorize = [](std::string_view value) -> absl::StatusOr<std::string> {
    if (value == "Bearer good") return "alice";
    return absl::UnauthenticatedError("no");
  };
  Serve(SayBytes("x"), std::move(options));
  v1::GenerateRequest request;
  request.set_text("a");
  EXPECT_EQ(Generate(request).status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Generate(request, "Bearer bad").status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(Generate(request, "Bearer good").status.ok());
  EXPECT_EQ(frontend_->requests().at(0).tenant, "alice");
}

TEST_F(InferenceServiceTest, ATenantWithoutRoomIsRefusedBeforeItsRequestIsLookedAt) {
  GenerationServiceOptions model = FakeModelOptions();
  model.tenants["alice"] = {.requests_per_s = 0.001, .burst = 1};
  InferenceServerOptions options;
  options.authorize = [](std::string_view value) { return std::string(value); };
  Serve(SayBytes("x"), std::move(options), std::move(model));
  v1::GenerateRequest request;
  request.set_text("a");
  EXPECT_TRUE(Generate(request, "alice").status.ok());
  const v1::GenerateRequest invalid;
  EXPECT_EQ(Generate(invalid, "alice").status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Generate(invalid, "bob").status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(InferenceServiceTest, EveryMethodAsksForTheKey) {
  InferenceServerOptions options;
  options.authorize = [](std::string_view) { return absl::UnauthenticatedError("no"); };
  Serve(SayBytes("x"), std::move(options));
  grpc::ClientContext tokenize;
  v1::TokenizeRequest request;
  request.set_text("a");
  v1::TokenizeResponse tokens;
  EXPECT_EQ(stub_->Tokenize(&tokenize, request, &tokens).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  grpc::ClientContext describe;
  v1::Model model;
  EXPECT_EQ(stub_->GetModel(&describe, {}, &model).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(InferenceServiceTest, StopsAtAStringAndShowsSpecialTokensIfAsked) {
  Serve(SayBytes("hello"));
  v1::GenerateRequest request;
  request.set_text("a");
  request.mutable_options()->add_stop("l");
  EXPECT_EQ(Generate(request).Text(), "he");
  server_.reset();
  Serve([](uint64_t, const ValidRequest& request, ResponseSink& sink) {
    for (const int32_t token : {FakeTokenizer::kBegin, FakeTokenizer::kTheA}) {
      TokenOutput output = FakeOutput(request, token, token == FakeTokenizer::kBegin ? 2 : 3);
      if (token == FakeTokenizer::kTheA) output.finish = FinishReason::kLength;
      sink.OnEvent(ChoiceTokens{0, {output}});
    }
    sink.OnEvent(RequestEnded{});
  });
  request.mutable_options()->clear_stop();
  EXPECT_EQ(Generate(request).Text(), "the");
  request.mutable_options()->set_skip_special_tokens(false);
  EXPECT_EQ(Generate(request).Text(), "<s>the");
  request.mutable_options()->set_skip_special_tokens(true);
  EXPECT_EQ(Generate(request).Text(), "the");
}

TEST_F(InferenceServiceTest, AFailureIsToldAfterWhatCameAndWithoutUsage) {
  Serve([](uint64_t, const ValidRequest& request, ResponseSink& sink) {
    sink.OnEvent(ChoiceTokens{0, {FakeOutput(request, FakeTokenizer::kTheA, 2)}});
    sink.OnEvent(RequestEnded{absl::UnavailableError("a worker was lost")});
  });
  v1::GenerateRequest request;
  request.set_text("a");
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  std::string text;
  v1::GenerateEvent event;
  while (reader->Read(&event)) {
    text += event.delta().text();
    EXPECT_FALSE(event.has_usage());
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(text, "the");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "a worker was lost");
  EXPECT_EQ(ReasonIn(context), "WORKER_UNAVAILABLE");
}

TEST_F(InferenceServiceTest, WithoutADeadlineTheServicesOwnHolds) {
  Serve(SayBytes("x"));
  v1::GenerateRequest request;
  request.set_text("a");
  EXPECT_TRUE(Generate(request).status.ok());
  EXPECT_EQ(frontend_->requests().at(0).timeout, FakeModelOptions().limits.default_timeout);
}

TEST_F(InferenceServiceTest, HealthIsReadinessOfTheService) {
  Serve(SayBytes("x"));
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()),
                          grpc::InsecureChannelCredentials()));
  const auto check = [&](const std::string& service) {
    grpc::ClientContext context;
    const grpc::Slice bytes(std::string("\x0a") + static_cast<char>(service.size()) + service);
    const grpc::ByteBuffer request(&bytes, 1);
    grpc::ByteBuffer response;
    absl::Notification done;
    stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &response,
                   [&](const grpc::Status& status) {
                     EXPECT_TRUE(status.ok()) << status.error_message();
                     done.Notify();
                   });
    done.WaitForNotification();
    std::vector<grpc::Slice> slices;
    EXPECT_TRUE(response.Dump(&slices).ok());
    return slices.empty() ? -1 : *(slices[0].begin() + 1);
  };
  EXPECT_EQ(check("baton.v1.Inference"), 1);  // SERVING
  server_->SetReady(false);
  EXPECT_EQ(check("baton.v1.Inference"), 2);  // NOT_SERVING
  EXPECT_EQ(check(""), 1);
  frontend_->ready = false;
  InferenceServer second({}, service_.get());
  ASSERT_TRUE(second.Start().ok());
  stub = grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer>(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", second.port()), grpc::InsecureChannelCredentials()));
  EXPECT_EQ(check("baton.v1.Inference"), 2);
}

TEST_F(InferenceServiceTest, APortInUseIsAnErrorThatNamesTheSetting) {
  Serve(SayBytes("x"));
  InferenceServerOptions options;
  options.front.port = static_cast<uint16_t>(server_->port());
  InferenceServer second(options, service_.get());
  const absl::Status status = second.Start();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--grpc-port"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("choose a free port, or 0 for any"));
}

TEST_F(InferenceServiceTest, TokenizesChatsAndRefusesTheRestByField) {
  Serve(SayBytes("x"), {.has_chat_template = true});
  const auto tokenize = [&](const v1::TokenizeRequest& request) {
    grpc::ClientContext context;
    v1::TokenizeResponse tokens;
    grpc::Status status = stub_->Tokenize(&context, request, &tokens);
    EXPECT_EQ(ReasonIn(context),
              status.ok() ? "" : ReasonOf(absl::StatusCode(status.error_code())));
    EXPECT_EQ(tokens.token_ids_size() > 0, status.ok());
    return status;
  };
  v1::TokenizeRequest chat;
  v1::ChatMessage* message = chat.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("x");
  EXPECT_TRUE(tokenize(chat).ok());
  message->set_content("refuse me");
  EXPECT_THAT(tokenize(chat).error_message(), HasSubstr("chat.messages"));
  v1::TokenizeRequest other;
  other.set_text("a");
  other.set_model("other");
  EXPECT_EQ(tokenize(other).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(tokenize({}).error_message(), HasSubstr("input is missing"));
  grpc::ClientContext describe;
  v1::Model model;
  ASSERT_TRUE(stub_->GetModel(&describe, {}, &model).ok());
  EXPECT_TRUE(model.has_chat_template());
}

TEST_F(InferenceServiceTest, TokenizesAndDescribesTheModel) {
  Serve(SayBytes("x"));
  grpc::ClientContext tokenize;
  v1::TokenizeRequest request;
  request.set_text("a");
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(stub_->Tokenize(&tokenize, request, &tokens).ok());
  EXPECT_THAT(tokens.token_ids(), ElementsAre(FakeTokenizer::kBegin, FakeTokenizer::Byte('a')));
  grpc::ClientContext describe;
  v1::Model model;
  ASSERT_TRUE(stub_->GetModel(&describe, {}, &model).ok());
  EXPECT_EQ(model.name(), "fake");
  EXPECT_EQ(model.max_model_len(), 128);
  EXPECT_EQ(model.vocab_size(), FakeTokenizer::kSize);
  EXPECT_TRUE(model.has_tokenizer());
}

}  // namespace
}  // namespace baton
