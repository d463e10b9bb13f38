#include "common/process/command_line.h"

#include <arpa/inet.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace baton {
namespace {

int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

// The first word that looks like an option and is none of `app`; empty if there is no such word.
std::string UnknownOption(const std::vector<std::string>& names, int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string word(argv[i]);
    const std::string name = word.substr(0, word.find('='));
    const bool is_option = absl::StartsWith(name, "-") && !absl::StartsWith(name, "-h");
    if (is_option && std::find(names.begin(), names.end(), name) == names.end()) return name;
  }
  return "";
}

// One line about what is wrong with the command line, and the cure.
std::string Explain(const CLI::App& app, const CLI::Error& error, int argc, char** argv) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const bool extras = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
  const std::string unknown = extras ? UnknownOption(names, argc, argv) : "";
  if (unknown.empty()) {
    return absl::StrCat(absl::StrReplaceAll(error.what(), {{"\n", " "}}),
                        "; --help lists the options");
  }
  const std::string nearest = NearestName(unknown, names);
  return absl::StrCat("unknown option ", unknown,
                      nearest.empty() ? "; --help lists the options"
                                      : absl::StrCat(" (did you mean ", nearest, "?)"));
}

}  // namespace

std::string NearestName(absl::string_view word, const std::vector<std::string>& candidates) {
  std::string nearest;
  int best = std::max<int>(2, static_cast<int>(word.size()) / 3) + 1;
  for (const std::string& candidate : candidates) {
    const int distance = EditDistance(word, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv) {
  app.set_version_flag("--version", std::string(kVersion));
  app.get_formatter()->column_width(34);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::Error& error) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(),
                 Explain(app, error, argc, argv).c_str());
    return kStartErrorExit;
  }
  return std::nullopt;
}

int FailToStart(absl::string_view program, const absl::Status& status) {
  const std::string line =
      absl::StrReplaceAll(absl::StrCat(program, ": ", status.message()), {{"\n", " "}});
  std::fprintf(stderr, "%s\n", line.c_str());
  return kStartErrorExit;
}

absl::Status CheckOption(absl::string_view option, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, " ", value, ": must be ", low, " to ", high));
}

absl::Status CheckRankCount(absl::string_view option, int size) {
  if (size == 1 || size == 2 || size == 4 || size == 8) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, " ", size, ": must be one of 1, 2, 4, 8"));
}

absl::Status CheckKvTransport(absl::string_view transport) {
  if (transport == "auto" || transport == "tcp" || transport == "nccl") return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--kv-transport ", transport, ": must be one of auto, tcp, nccl"));
}

absl::Status CheckAddress(absl::string_view option, absl::string_view address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon != absl::string_view::npos && colon > 0 &&
      absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 1 && port <= 65535) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(option, " ", address, ": must be host:port of a worker"));
}

bool IsLoopback(absl::string_view host) {
  in_addr address{};
  const bool is_address = inet_pton(AF_INET, std::string(host).c_str(), &address) == 1;
  return host == "localhost" || (is_address && (ntohl(address.s_addr) >> 24) == 127);
}

absl::Status CheckHost(absl::string_view host, bool has_tls) {
  if (IsLoopback(host)) return absl::OkStatus();
  in_addr address{};
  if (inet_pton(AF_INET, std::string(host).c_str(), &address) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--host ", host, ": must be an IPv4 address of this machine, or localhost"));
  }
  if (has_tls) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--host ", host,
                   ": beyond loopback --tls-dir is needed; `baton certs` makes what it holds, or "
                   "use 127.0.0.1"));
}

}  // namespace baton
