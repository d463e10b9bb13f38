// A chat template over messages and variables: "TEMPLATE<NUL>MESSAGES<NUL>KWARGS" after one byte of
// options. Whatever it says, it ends within its limits, in text or in a refusal.
#include "tests/fuzz/text_codecs.h"

namespace baton {
namespace {

void Run(FuzzInput in) {
  static const std::unique_ptr<TextCodec> codec = LoadTinyKjv();
  const uint8_t how = in.Byte();
  std::string_view rest = in.Rest();
  const auto next = [&rest] {
    const std::string_view part = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    return part;
  };
  RenderOptions options{.add_generation_prompt = (how & 1) != 0,
                        .chat_template = std::string(next()),
                        .now_s = 1700000000};
  std::string_view messages = next();
  if ((how & 2) != 0) messages = R"([{"role": "user", "content": "Hi"}])";
  options.kwargs_json = next();
  const auto text = codec->ApplyChatTemplate(messages, options);
  if (!text.ok()) return CheckRefusal(text.status());
  BATON_CHECK(IsValidUtf8(*text));
}

}  // namespace
}  // namespace baton

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  baton::Run({data, size});
  return 0;
}
