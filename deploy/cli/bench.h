#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "deploy/cli/api_server.h"
#include "nlohmann/json.hpp"

namespace baton::cli {

// An open-loop load: requests arrive at random times of a given mean rate whether or not earlier
// ones have ended, as users do. Random prompts of token ids, so that any model will do.
struct BenchOptions {
  ApiServerOptions server;
  double rate = 4;  // Mean requests per second (Poisson arrivals).
  int num_requests = 64;
  int prompt_tokens = 128;
  int max_tokens = 64;
  uint64_t seed = 1;          // Of arrivals and prompts.
  double ttft_slo_ms = 1000;  // A request is good when it met both limits.
  double itl_slo_ms = 100;    // On the mean of its gaps.
  std::string json;           // File for the results; empty = the table only.

  absl::Status Validate() const;
};

// What became of one request.
struct BenchSample {
  bool ok = false;
  std::string error;
  double ttft_ms = 0;
  double e2e_ms = 0;
  std::vector<double> gaps_ms;  // Between two pieces of text.
};

// `baton bench`: 0 when every request ended well.
int Bench(const BenchOptions& options);

// Counts, rates and the 50th, 90th and 99th percentiles of TTFT, ITL and E2E.
nlohmann::json Summarize(const BenchOptions& options, const std::vector<BenchSample>& samples,
                         double wall_s);

// The q-quantile (0 <= q <= 1) by the nearest-rank rule; 0 when there is no value.
double Quantile(std::vector<double> values, double q);

}  // namespace baton::cli
