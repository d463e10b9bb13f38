#include "router/dns_name.h"

#include <netdb.h>
#include <sys/socket.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/process/command_line.h"

namespace baton {

absl::StatusOr<DnsName> ParseDnsName(absl::string_view option, absl::string_view value) {
  absl::string_view rest = value;
  if (!absl::ConsumePrefix(&rest, kDnsPrefix) ||
      rest.find_first_of("/[]@ ") != absl::string_view::npos ||
      !CheckAddress(option, rest).ok() || rest.find(':') != rest.rfind(':')) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, " ", value, ": must be dns:///NAME:PORT"));
  }
  const size_t colon = rest.find(':');
  return DnsName{.host = std::string(rest.substr(0, colon)),
                 .port = std::string(rest.substr(colon + 1))};
}

absl::StatusOr<std::vector<std::string>> SystemResolveHost(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    return absl::UnavailableError(gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(one->ai_addr, one->ai_addrlen, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      addresses.push_back(text);
    }
  }
  return addresses;
}

std::string JoinHostPort(absl::string_view address, absl::string_view port) {
  if (absl::StrContains(address, ':')) return absl::StrCat("[", address, "]:", port);
  return absl::StrCat(address, ":", port);
}

}  // namespace baton
