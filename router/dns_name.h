#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton {

// A name whose addresses are workers, each at the same port.
struct DnsName {
  std::string host;
  std::string port;
};

inline constexpr absl::string_view kDnsPrefix = "dns:///";

// Of "dns:///NAME:PORT"; INVALID_ARGUMENT says what is wrong with it.
absl::StatusOr<DnsName> ParseDnsName(absl::string_view option, absl::string_view value);

// The addresses of a host, as numbers, an IPv6 address without brackets. An error, or nothing at
// all, says nothing of what there is. May block for as long as the system's resolver does.
using ResolveHost = std::function<absl::StatusOr<std::vector<std::string>>(const std::string&)>;

// By getaddrinfo.
absl::StatusOr<std::vector<std::string>> SystemResolveHost(const std::string& host);

// "ADDRESS:PORT", an IPv6 address in brackets.
std::string JoinHostPort(absl::string_view address, absl::string_view port);

}  // namespace baton
