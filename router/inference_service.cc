#include "router/inference_service.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_posix.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/base/status.h"
#include "common/base/this_thread.h"
#include "common/rpc/connection.h"
#include "common/rpc/server_call.h"
#include "nlohmann/json.hpp"
#include "router/error.h"
#include "router/generation/pending_deltas.h"

namespace baton {
namespace {

constexpr char kServiceName[] = "baton.v1.Inference";
constexpr int64_t kDefaultTextTokens = 16;

using GenerateCall = ServerCall<v1::GenerateEvent>;

// ---- What a client sent, as the text layer takes it ---------------------------------------------

Prompt ReadChat(const v1::Chat& chat) {
  nlohmann::json messages = nlohmann::json::array();
  for (const v1::ChatMessage& message : chat.messages()) {
    messages.push_back({{"role", message.role()}, {"content", message.content()}});
  }
  return ChatPrompt{.messages_json =
                        messages.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

template <typename Value, typename Target>
void CopyIf(bool has, Value value, std::optional<Target>* to) {
  if (has) *to = static_cast<Target>(value);
}

void ReadOptions(const v1::GenerateOptions& o, GenerationRequest* to) {
  CopyIf(o.has_max_tokens(), o.max_tokens(), &to->max_tokens);
  CopyIf(o.has_temperature(), o.temperature(), &to->temperature);
  CopyIf(o.has_top_p(), o.top_p(), &to->top_p);
  CopyIf(o.has_top_k(), o.top_k(), &to->top_k);
  CopyIf(o.has_min_p(), o.min_p(), &to->min_p);
  CopyIf(o.has_repetition_penalty(), o.repetition_penalty(), &to->repetition_penalty);
  CopyIf(o.has_frequency_penalty(), o.frequency_penalty(), &to->frequency_penalty);
  CopyIf(o.has_presence_penalty(), o.presence_penalty(), &to->presence_penalty);
  CopyIf(o.has_n(), o.n(), &to->n);
  CopyIf(o.has_seed(), o.seed(), &to->seed);
  CopyIf(o.has_min_tokens(), o.min_tokens(), &to->min_tokens);
  CopyIf(o.has_logprobs(), o.logprobs(), &to->logprobs);
  to->stop.assign(o.stop().begin(), o.stop().end());
  to->stop_token_ids.assign(o.stop_token_ids().begin(), o.stop_token_ids().end());
  for (const v1::LogitBias& bias : o.logit_bias()) {
    to->logit_bias.push_back({.token = bias.token(), .bias = bias.bias()});
  }
  to->ignore_eos = o.ignore_eos();
  to->logits_digests = o.logits_digest();
  to->skip_special_tokens = !o.has_skip_special_tokens() || o.skip_special_tokens();
}

}  // namespace

absl::StatusOr<GenerationRequest> ReadGenerateRequest(const v1::GenerateRequest& from) {
  GenerationRequest request;
  request.bytes = static_cast<int64_t>(from.ByteSizeLong());
  if (request.bytes > kMaxRequestBytes) return RequestTooLarge(request.bytes, kMaxRequestBytes);
  switch (from.input_case()) {
    case v1::GenerateRequest::kText:
      request.prompts.push_back(from.text());
      request.prompt_param = "text";
      request.default_max_tokens = kDefaultTextTokens;
      break;
    case v1::GenerateRequest::kChat:
      request.prompts.push_back(ReadChat(from.chat()));
      request.prompt_param = "chat.messages";
      break;
    case v1::GenerateRequest::kTokenIds:
      request.prompts.push_back(
          std::vector<int32_t>(from.token_ids().ids().begin(), from.token_ids().ids().end()));
      request.prompt_param = "token_ids";
      request.default_max_tokens = kDefaultTextTokens;
      break;
    case v1::GenerateRequest::INPUT_NOT_SET:
      return InvalidField("input", "input is missing: set text, chat or token_ids.");
  }
  ReadOptions(from.options(), &request);
  request.label = from.request_id();
  request.priority = from.priority();
  return request;
}

namespace {

// ---- What the text layer says, as a client receives it ------------------------------------------

const char* FinishName(FinishReason finish) {
  switch (finish) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
  }
  return "";
}

// Runs the tasks of one call in order on the pool. A session may outlive the server that started
// it, so it holds the pool; the strand goes before it.
struct InOrder {
  std::shared_ptr<boost::asio::thread_pool> pool;
  boost::asio::strand<boost::asio::thread_pool::executor_type> strand;

  void operator()(std::function<void()> task) const { boost::asio::post(strand, std::move(task)); }
};

// Streams one generation into its call: one event at a time, the next when gRPC has taken the one
// before, so that what a slow reader has not taken waits as numbers. An event that is not taken in
// time ends the call. `num_tokens_` counts each choice's tokens.
class CallSink : public GenerationSink, public std::enable_shared_from_this<CallSink> {
 public:
  CallSink(std::shared_ptr<GenerateCall> call, const PreparedGeneration& prepared,
           InOrder executor, Duration write_timeout)
      : executor_(std::move(executor)),
        write_timeout_(write_timeout),
        watchdog_(executor_.strand),
        call_(std::move(call)),
        prompt_tokens_(static_cast<int32_t>(prepared.prompt_tokens)),
        id_(prepared.request.label),
        num_tokens_(NumChoices(prepared)),
        pending_(NumChoices(prepared)) {}

  void OnPrompt(PromptLogprobs) override {}  // Never asked for.

  void OnDelta(baton::ChoiceDelta delta) override {
    pending_.Append(std::move(delta));
    Pump();
  }

  void OnEnd(const absl::Status& status, const baton::Usage& usage) override {
    ended_ = status;
    usage_ = usage;
    Pump();
  }

  // From any thread: the call has taken all that was sent, or is done.
  void OnIdle() {
    executor_([self = shared_from_this()] { self->Pump(); });
  }
  void OnDone() {
    executor_([self = shared_from_this()] { self->Disarm(); });
  }

 private:
  static size_t NumChoices(const PreparedGeneration& prepared) {
    return prepared.request.prompts.size() * static_cast<size_t>(prepared.request.num_choices);
  }

  void Pump() {
    if (call_->Idle()) Disarm();
    while (!pending_.empty() && call_->Idle()) WriteNext();
    if (!pending_.empty() || !ended_.has_value()) return;
    if (ended_->ok()) WriteUsage();
    call_->Close(*std::exchange(ended_, std::nullopt));
  }

  void Write(v1::GenerateEvent event) {
    call_->Write(std::move(event));
    const uint64_t armed = ++armed_;
    if (call_->Idle()) return;
    watchdog_.expires_after(write_timeout_);
    watchdog_.async_wait([weak = weak_from_this(), armed](boost::system::error_code cancelled) {
      const std::shared_ptr<CallSink> self = weak.lock();
      if (self != nullptr && !cancelled && self->armed_ == armed) self->call_->Abandon();
    });
  }

  // What has fired already and waits for its turn does nothing.
  void Disarm() {
    ++armed_;
    watchdog_.cancel();
  }

  void WriteNext() {
    baton::ChoiceDelta delta = pending_.Take();
    GiveBack(delta);
    v1::GenerateEvent event;
    v1::ChoiceDelta* to = event.mutable_delta();
    to->set_index(delta.choice);
    to->set_text(std::move(delta.text));
    to->mutable_token_ids()->Assign(delta.tokens.begin(), delta.tokens.end());
    to->set_finish_reason(FinishName(delta.finish));
    if (!delta.logprobs.empty() || !delta.logits_digests.empty()) {
      for (size_t i = 0; i < delta.tokens.size(); ++i) WriteOutput(delta, i, to->add_outputs());
    }
    num_tokens_[static_cast<size_t>(delta.choice)] += static_cast<int32_t>(delta.tokens.size());
    event.set_request_id(std::exchange(id_, {}));
    Write(std::move(event));
  }

  void WriteUsage() {
    v1::GenerateEvent event;
    v1::Usage* to = event.mutable_usage();
    to->set_prompt_tokens(static_cast<int32_t>(usage_.prompt_tokens));
    to->set_completion_tokens(static_cast<int32_t>(usage_.completion_tokens));
    to->set_cached_tokens(static_cast<int32_t>(usage_.cached_tokens));
    event.set_request_id(std::exchange(id_, {}));
    Write(std::move(event));
  }

  void WriteOutput(const baton::ChoiceDelta& delta, size_t i, v1::TokenOutput* to) const {
    to->set_position(prompt_tokens_ + num_tokens_[static_cast<size_t>(delta.choice)] +
                     static_cast<int32_t>(i));
    to->set_token(delta.tokens[i]);
    if (i < delta.logits_digests.size()) to->set_logits_digest(delta.logits_digests[i]);
    if (i >= delta.logprobs.size()) return;
    const TokenScores::Token scores = delta.logprobs[i];
    to->set_logprob(scores.chosen.logprob);
    for (const TokenLogprob& one : scores.top) {
      v1::TokenLogprob* top = to->add_top();
      top->set_token(one.token);
      top->set_logprob(one.logprob);
    }
  }

  const InOrder executor_;
  const Duration write_timeout_;
  boost::asio::steady_timer watchdog_;
  uint64_t armed_ = 0;  // Changes with each event and when one was taken.
  const std::shared_ptr<GenerateCall> call_;
  const int32_t prompt_tokens_;
  std::string id_;                   // Until the first event has told it.
  std::vector<int32_t> num_tokens_;  // By choice, of what was sent.
  PendingDeltas pending_;
  std::optional<absl::Status> ended_;  // Until it is told.
  baton::Usage usage_;
};

// Joins a call that may break at any moment with a generation that may not have begun, and what the
// call has taken with what waits for it. Holds the sink until the call is done.
class CallLink {
 public:
  void Break() {
    std::shared_ptr<Generation> generation;
    {
      absl::MutexLock lock(&mutex_);
      broken_ = true;
      generation = generation_;
    }
    if (generation != nullptr) generation->Cancel();
  }
  bool broken() {
    absl::MutexLock lock(&mutex_);
    return broken_;
  }
  // False when the call is done already: nothing of it may be held any more.
  bool Begin(std::shared_ptr<CallSink> sink) {
    absl::MutexLock lock(&mutex_);
    if (!done_) sink_ = std::move(sink);
    return !done_;
  }
  void Set(std::shared_ptr<Generation> generation) {
    {
      absl::MutexLock lock(&mutex_);
      generation_ = generation;
      if (!broken_) return;
    }
    generation->Cancel();
  }
  void OnIdle() {
    absl::MutexLock lock(&mutex_);
    if (sink_ != nullptr) sink_->OnIdle();
  }
  void OnDone() {
    std::shared_ptr<CallSink> sink;  // Goes without the lock.
    absl::MutexLock lock(&mutex_);
    done_ = true;
    sink.swap(sink_);
    if (sink != nullptr) sink->OnDone();
  }

 private:
  absl::Mutex mutex_;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Generation> generation_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<CallSink> sink_ ABSL_GUARDED_BY(mutex_);
};

// As over HTTP, see openai_api.cc.
constexpr size_t kLargePromptBytes = 2 << 10;

std::shared_ptr<boost::asio::thread_pool> MakePool(int num_threads) {
  const NameNewThreads named("grpc-handler");
  return std::make_shared<boost::asio::thread_pool>(num_threads);
}

}  // namespace

class InferenceServer::Impl : public v1::Inference::CallbackService {
 public:
  Impl(InferenceServerOptions options, GenerationService* service)
      : options_(std::move(options)),
        service_(service),
        pool_(MakePool(options_.num_threads)) {}

  ~Impl() override { Shutdown(Duration::zero()); }

  absl::Status Start() {
    grpc::ServerBuilder builder;
    ApplyServerSettings(options_.max_streams_per_connection, &builder, options_.ping_limit);
    // Beyond its own limit the library answers RESOURCE_EXHAUSTED, as if trying again would help,
    // and asks nobody. To read everything would let clients fill the memory.
    builder.SetMaxReceiveMessageSize(2 * kMaxRequestBytes);
    builder.SetResourceQuota(
        grpc::ResourceQuota("inference").Resize(static_cast<size_t>(options_.max_library_bytes)));
    builder.RegisterService(this);
    GrpcFrontOptions front = options_.front;
    // Twice: a client may open streams before it has read what it may.
    front.streams.most_open_of_connection = 2 * options_.max_streams_per_connection;
    front.write_limit = options_.write_timeout;
    front.serve = [this](int fd) { grpc::AddInsecureChannelFromFd(server_.get(), fd); };
    ASSIGN_OR_RETURN(front_, GrpcFront::Create(std::move(front)));
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::InternalError("the gRPC library does not start");
    server_->GetHealthCheckService()->SetServingStatus(true);
    SetReady(service_->frontend().Ready());
    front_->Start();
    return absl::OkStatus();
  }

  const GrpcFront& front() const { return *front_; }

  void SetReady(bool ready) {
    server_->GetHealthCheckService()->SetServingStatus(kServiceName, ready);
  }

  void Shutdown(Duration grace) {
    if (server_ == nullptr) return;
    server_->GetHealthCheckService()->SetServingStatus(false);
    front_->Drain();
    server_->Shutdown(DeadlineAfter(grace));
    server_->Wait();
    front_->Stop();
    pool_->join();
    server_.reset();
  }

  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override {
    auto link = std::make_shared<CallLink>();
    auto call = GenerateCall::Create(context, {.on_broken = [link] { link->Break(); },
                                               .on_idle = [link] { link->OnIdle(); },
                                               .on_done = [link] { link->OnDone(); }});
    absl::StatusOr<GenerationRequest> read = ReadAllowed(context, *request);
    if (!read.ok()) {
      call->Close(read.status());
      return call.get();
    }
    read->timeout = TimeLeft(context->raw_deadline());  // Zero: the service's default.
    const bool is_long = request->has_chat() || request->ByteSizeLong() >= kLargePromptBytes;
    const std::string tenant = read->tenant;
    Post(tenant, is_long, [this, call, link, work = *std::move(read)] {
      if (link->broken()) return;
      if (absl::Status status = Run(call, link, work); !status.ok()) call->Close(std::move(status));
    });
    return call.get();
  }

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const auto finish = [context, reactor](const absl::Status& status) {
      if (!status.ok()) context->AddTrailingMetadata(kReasonKey, ReasonOf(status.code()));
      reactor->Finish(ToGrpc(status));
    };
    const absl::StatusOr<std::string> tenant = Authorize(context);
    if (!tenant.ok()) {
      finish(tenant.status());
      return reactor;
    }
    // The reactor and the messages live until Finish.
    Post(*tenant, /*is_long=*/true, [this, context, request, response, finish] {
      const bool is_gone = context->IsCancelled();  // While others' texts were in front.
      finish(is_gone ? absl::CancelledError("the client is gone")
                     : RunTokenize(*request, response));
    });
    return reactor;
  }

  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest*, v1::Model* model) override {
    const absl::Status status = Authorize(context).status();
    const GenerationServiceOptions& options = service_->options();
    model->set_name(options.model_name);
    model->set_max_model_len(options.limits.max_model_len);
    model->set_vocab_size(options.limits.vocab_size);
    model->set_has_tokenizer(service_->has_tokenizer());
    model->set_has_chat_template(options_.has_chat_template);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (!status.ok()) context->AddTrailingMetadata(kReasonKey, ReasonOf(status.code()));
    reactor->Finish(ToGrpc(status));
    return reactor;
  }

 private:
  // Texts of a tenant are in one line, whether they come here or over HTTP.
  void Post(const std::string& tenant, bool is_long, std::function<void()> task) {
    if (is_long && options_.text_executor) {
      return options_.text_executor(absl::StrCat("key ", tenant), std::move(task));
    }
    boost::asio::post(*pool_, std::move(task));
  }

  // Who may not ask, or not now, costs nothing more.
  absl::StatusOr<GenerationRequest> ReadAllowed(const grpc::CallbackServerContext* context,
                                                const v1::GenerateRequest& request) const {
    ASSIGN_OR_RETURN(const std::string tenant, Authorize(context));
    RETURN_IF_ERROR(service_->CheckRoom(tenant));
    RETURN_IF_ERROR(service_->CheckModel(request.model()));
    ASSIGN_OR_RETURN(GenerationRequest read, ReadGenerateRequest(request));
    read.tenant = tenant;
    return read;
  }

  // The tenant that the call's metadata names.
  absl::StatusOr<std::string> Authorize(const grpc::CallbackServerContext* context) const {
    if (!options_.authorize) return std::string();
    const auto& metadata = context->client_metadata();
    const auto it = metadata.find("authorization");
    if (it == metadata.end()) return options_.authorize("");
    return options_.authorize({it->second.data(), it->second.size()});
  }

  absl::Status Run(const std::shared_ptr<GenerateCall>& call,
                   const std::shared_ptr<CallLink>& link, const GenerationRequest& request) {
    ASSIGN_OR_RETURN(PreparedGeneration prepared, service_->Prepare(request));
    if (prepared.request.label.empty()) prepared.request.label = service_->NewId();
    const InOrder executor{pool_, boost::asio::make_strand(*pool_)};
    auto sink = std::make_shared<CallSink>(call, prepared, executor, options_.write_timeout);
    if (!link->Begin(sink)) return absl::CancelledError("the client is gone");
    ASSIGN_OR_RETURN(std::shared_ptr<Generation> generation,
                     service_->Start(std::move(prepared), std::move(sink), executor));
    link->Set(std::move(generation));
    return absl::OkStatus();
  }

  absl::Status RunTokenize(const v1::TokenizeRequest& request, v1::TokenizeResponse* response) {
    RETURN_IF_ERROR(service_->CheckModel(request.model()));
    Prompt prompt;
    if (request.has_text()) {
      prompt = request.text();
    } else if (request.has_chat()) {
      prompt = ReadChat(request.chat());
    } else {
      return InvalidField("input", "input is missing: set text or chat.");
    }
    ASSIGN_OR_RETURN(
        const std::vector<int32_t> ids,
        service_->Tokenize(prompt, std::nullopt, request.has_text() ? "text" : "chat.messages"));
    response->mutable_token_ids()->Assign(ids.begin(), ids.end());
    return absl::OkStatus();
  }

  const InferenceServerOptions options_;
  GenerationService* const service_;
  const std::shared_ptr<boost::asio::thread_pool> pool_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<GrpcFront> front_;
};

InferenceServer::InferenceServer(InferenceServerOptions options, GenerationService* service)
    : impl_(std::make_unique<Impl>(std::move(options), service)) {}

InferenceServer::~InferenceServer() = default;

absl::Status InferenceServer::Start() { return impl_->Start(); }

const GrpcFront& InferenceServer::front() const { return impl_->front(); }

void InferenceServer::SetReady(bool ready) { impl_->SetReady(ready); }

void InferenceServer::Shutdown(Duration grace) { impl_->Shutdown(grace); }

}  // namespace baton
