#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace prometheus {
class Histogram;
}

namespace baton {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// One value of a metric at scrape time.
struct MetricSample {
  MetricLabels labels;
  double value = 0;
};

enum class MetricKind : uint8_t { kCounter, kGauge };

// A distribution. Owned by its Metrics; Observe from any thread.
class Histogram {
 public:
  explicit Histogram(prometheus::Histogram* histogram) : histogram_(histogram) {}
  void Observe(double value);

 private:
  prometheus::Histogram* const histogram_;
};

// Upper bounds that double from `first`, `count` of them.
std::vector<double> DoublingBuckets(double first, int count);

// The metrics of one process, in Prometheus' text format. Label values come
// from fixed lists, never from a client. Thread-safe.
class Metrics {
 public:
  // `role` and `version` go into baton_build_info.
  Metrics(const std::string& role, const std::string& version);
  ~Metrics();

  // `read` is called at each scrape, from the scraping thread, and must not wait: it reads a
  // published snapshot of plain counters.
  void Export(const std::string& name, const std::string& help, MetricKind kind,
              std::function<std::vector<MetricSample>()> read);

  // The same name may be added again with other labels.
  Histogram AddHistogram(const std::string& name, const std::string& help,
                         const MetricLabels& labels, const std::vector<double>& buckets);

  std::string Render() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton
