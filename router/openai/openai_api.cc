#include "router/openai/openai_api.h"

#include <cctype>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "router/error.h"
#include "router/openai/api_request.h"
#include "router/openai/error_response.h"
#include "router/openai/full_answer.h"
#include "router/openai/piece_sender.h"
#include "router/openai/status_json.h"
#include "router/openai/stream_answer.h"

namespace baton {
namespace {

// A prompt of less is tokenized in less time than it takes to hand it over twice.
constexpr size_t kLargeBodyBytes = 2 << 10;

using http::Request;
using Writer = std::shared_ptr<http::ResponseWriter>;

class OpenAiApi {
 public:
  OpenAiApi(OpenAiOptions options, GenerationService* service)
      : options_(std::move(options)), service_(service) {}

  void Generate(Request request, Writer writer, bool chat) const {
    if (absl::Status status = TryGenerate(std::move(request), writer, chat); !status.ok()) {
      writer->Respond(ErrorResponse(status));
    }
  }

  void AnswerTokenize(const Request& request, const Writer& writer) const {
    absl::StatusOr<TextPieces> answer = Tokenize(request);
    if (!answer.ok()) return writer->Respond(ErrorResponse(answer.status()));
    SendPieces(writer, http::Response{}, *std::move(answer), nullptr);
  }

  absl::StatusOr<Json> Models() const {
    return Json{{"object", "list"}, {"data", Json::array({ModelJson()})}};
  }

  absl::StatusOr<Json> Model(const Request& request) const {
    constexpr std::string_view kPrefix = "/v1/models/";
    RETURN_IF_ERROR(service_->CheckModel(request.path.substr(kPrefix.size())));
    return ModelJson();
  }

  // Written piece by piece: texts take far more than the prompt did.
  absl::StatusOr<TextPieces> Tokenize(const Request& request) const {
    ASSIGN_OR_RETURN(const Json body, ParseBody(request));
    std::optional<bool> add_special_tokens;
    bool token_strings = false;
    RETURN_IF_ERROR(ReadField(body, "add_special_tokens", &add_special_tokens));
    RETURN_IF_ERROR(ReadField(body, "return_token_strs", &token_strings));
    Prompt prompt;
    const bool chat = FindField(body, "messages") != nullptr;
    if (chat) {
      ASSIGN_OR_RETURN(prompt, ParseChatPrompt(body));
    } else {
      std::optional<std::string> text;
      RETURN_IF_ERROR(ReadField(body, "prompt", &text));
      if (!text.has_value()) {
        return InvalidField("prompt", "prompt is missing; send prompt or messages.");
      }
      prompt = *std::move(text);
    }
    ASSIGN_OR_RETURN(std::vector<int32_t> tokens,
                     service_->Tokenize(prompt, add_special_tokens, chat ? "messages" : "prompt"));
    const auto ids = std::make_shared<const std::vector<int32_t>>(std::move(tokens));
    TextPieces answer;
    answer.Add(absl::StrFormat("{\"count\":%d,\"max_model_len\":%d,\"tokens\":", ids->size(),
                               service_->options().limits.max_model_len));
    answer.AddArray(ids->size(), [ids](size_t i, std::string& out) {
      absl::StrAppend(&out, (*ids)[i]);
    });
    answer.Add(",\"token_strs\":");
    if (token_strings) {
      answer.AddArray(ids->size(), [ids, service = service_](size_t i, std::string& out) {
        out += Dump(service->TokenString((*ids)[i]));
      });
    } else {
      answer.Add("null");
    }
    answer.Add("}");
    return answer;
  }

  absl::StatusOr<Json> Detokenize(const Request& request) const {
    ASSIGN_OR_RETURN(const Json body, ParseBody(request));
    if (FindField(body, "tokens") == nullptr) {
      return InvalidField("tokens", "tokens is missing; send a list of token ids.");
    }
    std::vector<int64_t> tokens;
    RETURN_IF_ERROR(ReadField(body, "tokens", &tokens));
    std::vector<int32_t> ids;
    for (const int64_t id : tokens) {
      // Out of range either way; the service's message names the range.
      ids.push_back(id == static_cast<int32_t>(id) ? static_cast<int32_t>(id) : -1);
    }
    ASSIGN_OR_RETURN(const std::string text, service_->Detokenize(ids, "tokens"));
    return Json{{"prompt", text}};
  }

  absl::StatusOr<Json> Version() const { return Json{{"version", options_.version}}; }

  absl::StatusOr<Json> Health() const {
    if (!service_->frontend().Alive()) return absl::UnavailableError("The router stands still.");
    return Json{{"status", "ok"}};
  }

  absl::StatusOr<Json> Ready() const {
    if (!service_->frontend().Ready()) {
      return absl::UnavailableError("The cluster has not produced a token yet.");
    }
    return Json{{"status", "ready"}};
  }

  absl::StatusOr<Json> Status() const {
    const RouterFrontend& frontend = service_->frontend();
    return StatusJson(frontend.View(), frontend.Ready(), service_->options().model_name);
  }

  absl::StatusOr<Json> Audit() const {
    ASSIGN_OR_RETURN(const RouterAudit audit, service_->frontend().Audit());
    return AuditJson(audit);
  }

  http::Response Metrics() const {
    return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
            .body = options_.metrics_text ? options_.metrics_text() : std::string()};
  }

 private:
  Json ModelJson() const {
    const std::string& name = service_->options().model_name;
    return {{"id", name},
            {"object", "model"},
            {"created", options_.created},
            {"owned_by", "baton"},
            {"root", name},
            {"parent", nullptr},
            {"max_model_len", service_->options().limits.max_model_len}};
  }

  // A JSON object whose model, if any, is ours.
  absl::StatusOr<Json> ParseBody(const Request& request) const {
    ASSIGN_OR_RETURN(Json body, ParseJson(request.body));
    if (!body.is_object()) return absl::InvalidArgumentError("The body must be a JSON object.");
    std::string model;
    RETURN_IF_ERROR(ReadField(body, "model", &model));
    RETURN_IF_ERROR(service_->CheckModel(model));
    return body;
  }

  absl::StatusOr<ApiRequest> ParseRequest(const Request& request, bool chat) const {
    ASSIGN_OR_RETURN(const Json body, ParseBody(request));
    absl::StatusOr<ApiRequest> api = chat ? ParseChatRequest(body) : ParseCompletionRequest(body);
    if (api.ok()) {
      api->generation.tenant = request.principal;
      api->generation.bytes = static_cast<int64_t>(request.body.size());
    }
    return api;
  }

  // What answers of workers with the same numerics id and build have in common.
  std::string Fingerprint() const {
    return absl::StrCat("baton-", options_.version, "-", service_->frontend().NumericsId());
  }

  AnswerContext MakeContext(ApiRequest request, const PreparedGeneration& prepared) const {
    AnswerContext context;
    context.id = prepared.request.label;
    request.generation.prompts.clear();
    context.created = options_.unix_seconds ? options_.unix_seconds() : 0;
    context.model = service_->options().model_name;
    context.system_fingerprint = Fingerprint();
    if (request.return_token_ids) context.prompt_ids = prepared.request.prompts;
    context.prompt_texts = prepared.prompt_texts;
    context.tokenizer = service_->tokenizer();
    context.request = std::move(request);
    return context;
  }

  absl::Status TryGenerate(Request request, const Writer& writer, bool chat) const {
    ASSIGN_OR_RETURN(ApiRequest api, ParseRequest(request, chat));
    std::string().swap(request.body);
    ASSIGN_OR_RETURN(PreparedGeneration prepared, service_->Prepare(api.generation));
    const bool stream = api.stream;
    const size_t choices =
        prepared.request.prompts.size() * static_cast<size_t>(prepared.request.num_choices);
    const std::string id = api.generation.label.empty() ? service_->NewId() : api.generation.label;
    prepared.request.label = (chat ? "chatcmpl-" : "cmpl-") + id;
    AnswerContext context = MakeContext(std::move(api), prepared);
    // Text alone is made in less time than it takes to hand it over.
    if (prepared.answer_bytes == 0 && !prepared.counts_tokens) writer->MakeQuick();
    std::shared_ptr<GenerationSink> sink;
    if (stream) {
      sink = std::make_shared<StreamAnswer>(std::move(context), choices, prepared.prompt_tokens,
                                            writer);
    } else {
      sink = std::make_shared<FullAnswer>(std::move(context), choices, writer);
    }
    ASSIGN_OR_RETURN(
        std::shared_ptr<Generation> generation,
        service_->Start(std::move(prepared), std::move(sink),
                        [writer](std::function<void()> task) { writer->Post(std::move(task)); }));
    writer->OnDisconnect([generation] { generation->Cancel(); });
    return absl::OkStatus();
  }

  const OpenAiOptions options_;
  GenerationService* const service_;
};

using JsonHandler = std::function<absl::StatusOr<Json>(const Request&)>;

http::Handler Answering(JsonHandler handler) {
  return [handler = std::move(handler)](Request request, Writer writer) {
    absl::StatusOr<Json> answer = handler(request);
    writer->Respond(answer.ok() ? JsonResponse(*answer) : ErrorResponse(answer.status()));
  };
}

// Whether the router lives, and what operators ask.
std::vector<http::Route> ProbeRoutes(std::shared_ptr<const OpenAiApi> api, http::Executor ops) {
  return {
      {"GET", "/health", Answering([api](const Request&) { return api->Health(); }), true},
      {"GET", "/ready", Answering([api](const Request&) { return api->Ready(); }), true},
      {"GET", "/metrics", [api](const Request&, Writer w) { w->Respond(api->Metrics()); }, false,
       std::move(ops)},
  };
}

}  // namespace

std::vector<http::Route> OpsRoutes(OpenAiOptions options, GenerationService* service) {
  const http::Executor ops = options.ops_executor;
  return ProbeRoutes(std::make_shared<const OpenAiApi>(std::move(options), service), ops);
}

std::vector<http::Route> OpenAiRoutes(OpenAiOptions options, GenerationService* service) {
  const http::Executor text = options.text_executor, ops = options.ops_executor;
  auto api = std::make_shared<const OpenAiApi>(std::move(options), service);
  const auto generate = [api](bool chat) {
    return [api, chat](Request r, Writer w) { api->Generate(std::move(r), std::move(w), chat); };
  };
  const auto answer = [](JsonHandler handler) { return Answering(std::move(handler)); };
  std::vector<http::Route> routes = ProbeRoutes(api, ops);
  routes.insert(
      routes.end(),
      {
          {"POST", "/v1/completions", generate(false), false, text, kLargeBodyBytes,
           kLargeBodyBytes},
          {"POST", "/v1/chat/completions", generate(true), false, text},
          {"GET", "/v1/models", answer([api](const Request&) { return api->Models(); }), true},
          {"GET", "/v1/models/*", answer([api](const Request& r) { return api->Model(r); }), true},
          {"POST", "/tokenize", [api](const Request& r, Writer w) { api->AnswerTokenize(r, w); },
           false, text},
          {"POST", "/detokenize", answer([api](const Request& r) { return api->Detokenize(r); }),
           false, text, kLargeBodyBytes},
          {"GET", "/version", answer([api](const Request&) { return api->Version(); }), true},
          {"GET", "/status", answer([api](const Request&) { return api->Status(); }), false, ops},
          {"GET", "/audit", answer([api](const Request&) { return api->Audit(); }), false, ops},
      });
  return routes;
}

}  // namespace baton
