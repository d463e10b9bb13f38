// baton.v1.GenerateRequest as the gRPC edge reads it, up to what the scheduler takes.
#include "baton/v1/inference.pb.h"
#include "router/inference_service.h"
#include "tests/fuzz/message_mutator.h"
#include "tests/fuzz/valid_request.h"

namespace baton {
namespace {

void Run(FuzzInput input) {
  const bool has_tokenizer = input.Byte() != 0;
  const std::string_view bytes = input.Rest();
  v1::GenerateRequest message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const absl::StatusOr<GenerationRequest> request = ReadGenerateRequest(message);
  if (!request.ok()) return CheckRefusal(request.status());
  GenerationService& service = FuzzedService(has_tokenizer);
  const absl::StatusOr<PreparedGeneration> prepared = service.Prepare(*request);
  if (!prepared.ok()) return CheckRefusal(prepared.status());
  CheckValidRequest(*prepared, service.options().limits);
  BATON_CHECK(!prepared->request.score_only && prepared->request.prompts.size() == 1);
}

}  // namespace
}  // namespace baton

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  baton::Run({data, size});
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return baton::MutateAs<baton::v1::GenerateRequest>(data, size, max_size, 1, seed);
}
