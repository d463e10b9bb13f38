// A chat template over messages and variables: "TEMPLATE<NUL>MESSAGES<NUL>KWARGS" after one byte of
// options. Whatever it says, it ends within its limits, in text or in a refusal.
#include <sys/resource.h>
#include <unistd.h>

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

// As limits.rs: in the fuzz build templates run on this thread, because a thread for each input
// took most of its time. Where the stack ends is settled when a program starts.
void StartWithDeepStack(char** argv) {
  constexpr rlim_t kStackBytes = rlim_t{256} << 20;
  rlimit limit;
  BATON_CHECK(::getrlimit(RLIMIT_STACK, &limit) == 0);
  if (limit.rlim_cur >= kStackBytes) return;
  limit.rlim_cur = kStackBytes;
  BATON_CHECK(::setrlimit(RLIMIT_STACK, &limit) == 0);
  ::execv("/proc/self/exe", argv);
  BATON_CHECK(false);
}

}  // namespace
}  // namespace baton

extern "C" int LLVMFuzzerInitialize(int*, char*** argv) {
  baton::StartWithDeepStack(*argv);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  baton::Run({data, size});
  return 0;
}
