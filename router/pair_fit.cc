#include "router/pair_fit.h"

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "common/process/command_line.h"

namespace baton {

uint64_t GroupOf(const HelloInfo& hello) {
  return absl::HashOf(hello.numerics_id, hello.model_digest);
}

uint64_t PairOf(const HelloInfo& hello) {
  return absl::HashOf(GroupOf(hello), hello.layout_digest, hello.kv_wire_version, hello.kv_tls);
}

std::string WhyNoPair(const HelloInfo& prefill, const HelloInfo& decode) {
  if (prefill.kv_tls != decode.kv_tls) {
    return absl::StrCat("--kv-security is ", KvSecurityOf(prefill), " at the prefill worker and ",
                        KvSecurityOf(decode), " at the decode worker: give both the same");
  }
  if (prefill.layout_digest != decode.layout_digest) {
    return "their K/V has another layout: give both the same --kv-dtype";
  }
  if (prefill.kv_wire_version != decode.kv_wire_version) {
    return absl::StrCat("they speak versions ", prefill.kv_wire_version, " and ",
                        decode.kv_wire_version, " of the K/V connection: update the older one");
  }
  return "";
}

const char* KvSecurityOf(const HelloInfo& hello) {
  return hello.kv_tls.value_or(false) ? "tls" : "authenticated";
}

bool DefaultKvTls(absl::string_view address) {
  return !IsLoopback(address.substr(0, address.rfind(':')));
}

}  // namespace baton
