#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace CLI {
class App;
}

// The command lines of the programs: CLI11 with help by groups, and errors that end in one line
// which says what is wrong and what to do.
namespace baton {

inline constexpr char kVersion[] = "0.1.0";

// Parses into the variables bound to `app`. Absent: go on. Else the program's exit code: 0 after
// --help or --version, 2 after one line on stderr that names the option and suggests the nearest.
std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv);

// The candidate with the smallest edit distance, if that is small enough to be a typing error;
// else empty.
std::string NearestName(absl::string_view word, const std::vector<std::string>& candidates);

// How a program ends that does not start as it was asked to: the same again would end the same.
inline constexpr int kStartErrorExit = 2;

// Prints "PROGRAM: MESSAGE" as one line on stderr; returns kStartErrorExit.
int FailToStart(absl::string_view program, const absl::Status& status);

// INVALID_ARGUMENT "--OPTION VALUE: must be LOW to HIGH".
absl::Status CheckOption(absl::string_view option, int64_t value, int64_t low, int64_t high);

// Sizes of a tensor-parallel group.
absl::Status CheckRankCount(absl::string_view option, int size);

// What carries K/V between workers: tcp, or NCCL where both ends can, by auto and nccl alike; the
// latter warns of a worker that cannot.
absl::Status CheckKvTransport(absl::string_view transport);

// "host:port" with a port of 1 to 65535; INVALID_ARGUMENT names option and value.
absl::Status CheckAddress(absl::string_view option, absl::string_view address);

// "localhost", or 127.0.0.0/8.
bool IsLoopback(absl::string_view host);

// A host that a server may listen on: loopback, or with TLS any IPv4 address of this machine.
absl::Status CheckHost(absl::string_view host, bool has_tls);

}  // namespace baton
