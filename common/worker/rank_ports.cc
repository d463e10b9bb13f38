#include "common/worker/rank_ports.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/process/command_line.h"

namespace baton {
namespace {

constexpr char kPort[] = "--data-port";
constexpr char kAddress[] = "--advertise-data-address";
constexpr int kMaxPort = 65535;

absl::Status Refuse(const char* option, const std::string& text, const std::string& rule) {
  return absl::InvalidArgumentError(absl::StrCat(option, " ", text, ": ", rule));
}

absl::Status RefuseCount(const char* option, const std::string& text, size_t count, int size,
                         const char* what) {
  return Refuse(option, text,
                absl::StrCat("has ", count, " ", what, "; give one of each rank of --tp ", size,
                             ", or only the first"));
}

template <typename T>
bool HasRepeated(std::vector<T> values) {
  std::ranges::sort(values);
  return std::ranges::adjacent_find(values) != values.end();
}

absl::StatusOr<int> ParsePort(const std::string& text, absl::string_view port, int low) {
  int value = 0;
  if (absl::SimpleAtoi(port, &value) && value >= low && value <= kMaxPort) return value;
  return Refuse(kPort, text, absl::StrCat("must be ", low, " to ", kMaxPort,
                                          low == 0 ? "" : " each where there are several"));
}

}  // namespace

absl::StatusOr<std::vector<int>> ParseDataPorts(const std::string& text, int size) {
  const std::vector<std::string> words = absl::StrSplit(text, ',');
  std::vector<int> ports;
  if (words.size() == 1) {
    ASSIGN_OR_RETURN(const int first, ParsePort(text, text, 0));
    if (first != 0 && first + size - 1 > kMaxPort) {
      return Refuse(kPort, text, absl::StrCat("the ports of ", size, " ranks from there on end at ",
                                              kMaxPort, "; give a lower one"));
    }
    for (int r = 0; r < size; ++r) ports.push_back(first == 0 ? 0 : first + r);
    return ports;
  }
  for (const std::string& word : words) {
    ASSIGN_OR_RETURN(ports.emplace_back(), ParsePort(text, word, 1));
  }
  if (std::ssize(ports) != size) return RefuseCount(kPort, text, ports.size(), size, "ports");
  if (HasRepeated(ports)) return Refuse(kPort, text, "each rank needs a port of its own");
  return ports;
}

absl::StatusOr<std::vector<std::string>> ParseDataAddresses(const std::string& text, int size) {
  if (text.empty()) return std::vector<std::string>();
  std::vector<std::string> addresses = absl::StrSplit(text, ',');
  for (const std::string& address : addresses) RETURN_IF_ERROR(CheckAddress(kAddress, address));
  if (addresses.size() == 1) {
    const size_t colon = text.rfind(':') + 1;
    ASSIGN_OR_RETURN(const std::vector<int> ports, ParseDataPorts(text.substr(colon), size));
    addresses.clear();
    for (const int port : ports) addresses.push_back(absl::StrCat(text.substr(0, colon), port));
  }
  if (std::ssize(addresses) != size) {
    return RefuseCount(kAddress, text, addresses.size(), size, "addresses");
  }
  if (HasRepeated(addresses)) {
    return Refuse(kAddress, text, "each rank needs an address of its own");
  }
  return addresses;
}

}  // namespace baton
