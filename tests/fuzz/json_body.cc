// A body of /v1/completions or /v1/chat/completions, up to what the scheduler takes.
#include "router/openai/api_request.h"
#include "router/openai/error_response.h"
#include "tests/fuzz/valid_request.h"

namespace baton {
namespace {

void CheckError(const absl::Status& status) {
  CheckRefusal(status);
  const absl::StatusOr<Json> answer = ParseJson(ErrorResponse(status).body);
  BATON_CHECK(answer.ok() && (*answer)["error"]["message"].is_string());
}

void Run(FuzzInput input) {
  const uint8_t kind = input.Byte();
  const bool chat = (kind & 1) != 0;
  const absl::StatusOr<Json> body = ParseJson(input.Rest());
  if (!body.ok()) return CheckError(body.status());
  const absl::StatusOr<Json> again = ParseJson(Dump(*body));
  BATON_CHECK(again.ok() && *again == *body);

  absl::StatusOr<ApiRequest> api = chat ? ParseChatRequest(*body) : ParseCompletionRequest(*body);
  if (!api.ok()) return CheckError(api.status());
  GenerationService& service = FuzzedService((kind & 2) == 0);
  const absl::StatusOr<PreparedGeneration> prepared = service.Prepare(api->generation);
  if (!prepared.ok()) return CheckError(prepared.status());
  CheckValidRequest(*prepared, service.options().limits);
}

}  // namespace
}  // namespace baton

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  baton::Run({data, size});
  return 0;
}
