#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baton::emulation::nccl {

// How the emulated NCCL of a process behaves, in all of its communicators.
struct Options {
  enum class Init { kOk, kHang, kFail };
  enum class Abort { kOk, kSlow, kHang };

  uint64_t seed = 1;
  int64_t delay_us = 0;  // Each message comes late by a drawn time up to it.
  int version = 22304;
  Init init = Init::kOk;
  Abort abort = Abort::kOk;  // kHang: until another Configure() says otherwise.
  int64_t abort_ms = 1000;   // What slow means.
  bool silent = false;       // That the other rank is gone is not noticed, as over NVLink.
  bool one_device = false;   // Both ranks may have the same device.
  // At the n-th work (a group, or a call outside of one) of this process, 0 being never:
  int64_t fail = 0;   // an asynchronous error;
  int64_t cut = 0;    // the connection is closed, for both;
  int64_t lose = 0;   // what it sends never arrives;
  int64_t spoil = 0;  // what it receives has a wrong bit.
  // The process gets that signal at the n-th passing of a moment: "kill=sending:2".
  std::string moment;
  int64_t passing = 0;
  int signal = 0;
};

// Of words like "seed=3 init=hang kill=ready". Nothing if one of them is not understood.
std::optional<Options> ParseOptions(std::string_view text);

// Of BATON_EMULATED_NCCL until Configure(); ends the process if it is not understood.
Options CurrentOptions();
// False: not understood. Counts of works and passings begin anew.
bool Configure(std::string_view text);

// Returns when another Configure() has made abort something else than kHang.
void WaitWhileAbortsHang();

// Counts this process's works.
int64_t NextWork();

// A moment of a communicator's life, which the signal may hit: "id", "connect", "init", "ready",
// "send", "sending", "receive", "landed", "taken", "abort".
void Pass(std::string_view moment);

}  // namespace baton::emulation::nccl
