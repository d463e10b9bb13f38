#include "deploy/cli/bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "boost/asio/steady_timer.hpp"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "deploy/cli/http_client.h"
#include "deploy/cli/server_events.h"

namespace baton::cli {
namespace {

using nlohmann::json;

constexpr int kFirstPlainToken = 64;  // Lower ids are special or single bytes in most vocabularies.
constexpr int kPlainTokens = 256;
constexpr size_t kMaxInFlight = 1000;  // One below the router's default cap on connections.

double Ms(Duration d) { return ToSeconds(d) * 1e3; }

// One request on its way: turns its stream into a sample.
struct InFlight {
  Time sent;
  Time last;
  BenchSample sample;
  bool saw_done = false;
  std::unique_ptr<ServerEvents> events;

  void OnData(absl::string_view data) {
    if (data == "[DONE]") {
      saw_done = true;
      return;
    }
    const json chunk = json::parse(data, nullptr, /*allow_exceptions=*/false);
    if (chunk.is_object() && chunk.contains("error")) {
      sample.error = ErrorMessageOf({.code = 200, .body = std::string(data)});
      return;
    }
    const Time now = SteadyNow();
    if (last == Time()) {
      sample.ttft_ms = Ms(now - sent);
    } else {
      sample.gaps_ms.push_back(Ms(now - last));
    }
    last = now;
  }
};

// Sends the requests of one run and collects what becomes of them.
class Load {
 public:
  Load(const BenchOptions& options, ApiServer server, std::string model)
      : options_(options),
        server_(std::move(server)),
        model_(std::move(model)),
        random_(options.seed),
        timer_(io_) {}

  std::vector<BenchSample> Run() {
    Arrive();
    io_.run();
    return std::move(samples_);
  }

 private:
  void Arrive() {
    StartCall();
    if (++sent_ == options_.num_requests) return;
    const double gap_s = -std::log1p(-random_.Unit()) / options_.rate;
    timer_.expires_after(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(gap_s)));
    timer_.async_wait([this](boost::system::error_code) { Arrive(); });
  }

  std::string Body() {
    json prompt = json::array();
    for (int i = 0; i < options_.prompt_tokens; ++i) {
      prompt.push_back(kFirstPlainToken + static_cast<int>(random_.Below(kPlainTokens)));
    }
    return json({{"model", model_},
                 {"prompt", std::move(prompt)},
                 {"max_tokens", options_.max_tokens},
                 {"ignore_eos", true},
                 {"temperature", 0},
                 {"stream", true}})
        .dump();
  }

  void StartCall() {
    if (in_flight_ >= kMaxInFlight) {
      samples_.push_back({.error = "not sent: too many requests in flight"});
      return;
    }
    ++in_flight_;
    auto call = std::make_shared<InFlight>();
    call->sent = SteadyNow();
    call->events = std::make_unique<ServerEvents>(
        [raw = call.get()](absl::string_view data) { raw->OnData(data); });
    StartHttpCall(io_,
                  {.url = server_.url,
                   .target = "/v1/completions",
                   .body = Body(),
                   .api_key = server_.api_key,
                   .trust = server_.trust},
                  {.on_body = [call](absl::string_view bytes) { call->events->Feed(bytes); },
                   .on_done = [this, call](auto result) { Take(*call, std::move(result)); }});
  }

  void Take(InFlight& call, absl::StatusOr<HttpResult> result) {
    --in_flight_;
    call.sample.e2e_ms = Ms(SteadyNow() - call.sent);
    if (!result.ok()) {
      call.sample.error = std::string(result.status().message());
    } else if (result->code != 200) {
      call.sample.error = ErrorMessageOf(*result);
    } else if (call.sample.error.empty() && !call.saw_done) {
      call.sample.error = "the stream broke off";
    }
    call.sample.ok = call.sample.error.empty();
    samples_.push_back(std::move(call.sample));
  }

  const BenchOptions options_;
  const ApiServer server_;
  const std::string model_;
  Random random_;
  boost::asio::io_context io_;
  boost::asio::steady_timer timer_;
  int sent_ = 0;
  size_t in_flight_ = 0;
  std::vector<BenchSample> samples_;
};

json Percentiles(const std::vector<double>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {{"count", values.size()},
          {"mean", values.empty() ? 0.0 : sum / static_cast<double>(values.size())},
          {"p50", Quantile(values, 0.5)},
          {"p90", Quantile(values, 0.9)},
          {"p99", Quantile(values, 0.99)}};
}

void PrintTable(const json& summary) {
  std::printf("%-10s %10s %10s %10s %10s\n", "ms", "mean", "p50", "p90", "p99");
  for (const char* row : {"ttft_ms", "itl_ms", "e2e_ms"}) {
    const json& p = summary[row];
    std::printf("%-10s %10.2f %10.2f %10.2f %10.2f\n", row, p["mean"].get<double>(),
                p["p50"].get<double>(), p["p90"].get<double>(), p["p99"].get<double>());
  }
  std::printf("%d ok, %d failed in %.1f s; %.2f requests/s, %.1f tokens/s, goodput %.1f%%\n",
              summary["ok"].get<int>(), summary["failed"].get<int>(),
              summary["wall_s"].get<double>(), summary["requests_per_s"].get<double>(),
              summary["tokens_per_s"].get<double>(), 100 * summary["goodput"].get<double>());
  if (summary.contains("first_error")) {
    std::printf("first error: %s\n", summary["first_error"].get<std::string>().c_str());
  }
}

absl::Status Run(const BenchOptions& options, bool& all_ok) {
  RETURN_IF_ERROR(options.Validate());
  ASSIGN_OR_RETURN(const ApiServer server, FindApiServer(options.server));
  ASSIGN_OR_RETURN(const std::string model, FirstModel(server));
  std::printf("%d requests of %d + %d tokens at %.2f/s to %s\n", options.num_requests,
              options.prompt_tokens, options.max_tokens, options.rate, server.url.c_str());
  std::fflush(stdout);
  const Time begin = SteadyNow();
  const std::vector<BenchSample> samples = Load(options, server, model).Run();
  const json summary = Summarize(options, samples, ToSeconds(SteadyNow() - begin));
  PrintTable(summary);
  all_ok = summary["failed"] == json(0);
  if (options.json.empty()) return absl::OkStatus();
  std::ofstream out(options.json);
  out << summary.dump(2) << "\n";
  out.flush();
  if (!out) return absl::UnavailableError(absl::StrCat("--json ", options.json, ": cannot write"));
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchOptions::Validate() const {
  const auto check = [](bool is_good, const char* what) {
    return is_good ? absl::OkStatus() : absl::InvalidArgumentError(what);
  };
  RETURN_IF_ERROR(check(rate > 0 && rate <= 1e5, "--rate must be above 0 and at most 100000"));
  RETURN_IF_ERROR(check(num_requests >= 1, "--num-requests must be at least 1"));
  RETURN_IF_ERROR(check(prompt_tokens >= 1, "--prompt-tokens must be at least 1"));
  return check(max_tokens >= 1, "--max-tokens must be at least 1");
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const double rank = std::ceil(q * static_cast<double>(values.size()));
  const size_t index = static_cast<size_t>(std::max(rank, 1.0)) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(index), values.end());
  return values[index];
}

json Summarize(const BenchOptions& options, const std::vector<BenchSample>& samples,
               double wall_s) {
  std::vector<double> ttft, itl, e2e;
  int good = 0;
  int ok = 0;
  json summary = json::object();
  for (const BenchSample& sample : samples) {
    if (!sample.ok) {
      if (!summary.contains("first_error")) summary["first_error"] = sample.error;
      continue;
    }
    ++ok;
    ttft.push_back(sample.ttft_ms);
    e2e.push_back(sample.e2e_ms);
    itl.insert(itl.end(), sample.gaps_ms.begin(), sample.gaps_ms.end());
    const double gap_sum = std::accumulate(sample.gaps_ms.begin(), sample.gaps_ms.end(), 0.0);
    const double mean_gap =
        sample.gaps_ms.empty() ? 0 : gap_sum / static_cast<double>(sample.gaps_ms.size());
    good += sample.ttft_ms <= options.ttft_slo_ms && mean_gap <= options.itl_slo_ms;
  }
  summary["ok"] = ok;
  summary["failed"] = static_cast<int>(samples.size()) - ok;
  summary["wall_s"] = wall_s;
  summary["requests_per_s"] = wall_s > 0 ? ok / wall_s : 0;
  summary["tokens_per_s"] = wall_s > 0 ? static_cast<double>(ttft.size() + itl.size()) / wall_s : 0;
  summary["goodput"] =
      samples.empty() ? 0.0 : static_cast<double>(good) / static_cast<double>(samples.size());
  summary["ttft_ms"] = Percentiles(ttft);
  summary["itl_ms"] = Percentiles(itl);
  summary["e2e_ms"] = Percentiles(e2e);
  return summary;
}

int Bench(const BenchOptions& options) {
  bool all_ok = false;
  const absl::Status status = Run(options, all_ok);
  if (status.ok()) return all_ok ? 0 : 1;
  std::fprintf(stderr, "baton bench: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace baton::cli
