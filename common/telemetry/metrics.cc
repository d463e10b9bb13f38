#include "common/telemetry/metrics.h"

#include <prometheus/client_metric.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace baton {
namespace {

struct Exported {
  std::string name;
  std::string help;
  MetricKind kind = MetricKind::kGauge;
  std::function<std::vector<MetricSample>()> read;
};

prometheus::MetricFamily Collect(const Exported& exported) {
  const bool counter = exported.kind == MetricKind::kCounter;
  prometheus::MetricFamily family;
  family.name = exported.name;
  family.help = exported.help;
  family.type = counter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
  for (const MetricSample& sample : exported.read()) {
    prometheus::ClientMetric metric;
    for (const auto& [name, value] : sample.labels) metric.label.push_back({name, value});
    (counter ? metric.counter.value : metric.gauge.value) = sample.value;
    family.metric.push_back(std::move(metric));
  }
  return family;
}

}  // namespace

class Metrics::Impl {
 public:
  void Export(Exported exported) {
    absl::MutexLock lock(&mutex_);
    exported_.push_back(std::move(exported));
  }

  prometheus::Registry& registry() { return registry_; }

  std::string Render() const {
    std::vector<prometheus::MetricFamily> families = registry_.Collect();
    absl::MutexLock lock(&mutex_);
    for (const Exported& exported : exported_) families.push_back(Collect(exported));
    return prometheus::TextSerializer().Serialize(families);
  }

 private:
  prometheus::Registry registry_{prometheus::Registry::InsertBehavior::Merge};
  mutable absl::Mutex mutex_;
  std::vector<Exported> exported_ ABSL_GUARDED_BY(mutex_);
};

void Histogram::Observe(double value) { histogram_->Observe(value); }

std::vector<double> DoublingBuckets(double first, int count) {
  std::vector<double> buckets;
  for (int i = 0; i < count; ++i, first *= 2) buckets.push_back(first);
  return buckets;
}

Metrics::Metrics(const std::string& role, const std::string& version)
    : impl_(std::make_unique<Impl>()) {
  prometheus::BuildGauge()
      .Name("baton_build_info")
      .Help("Always 1; the labels say what runs.")
      .Register(impl_->registry())
      .Add({{"role", role}, {"version", version}})
      .Set(1);
}

Metrics::~Metrics() = default;

void Metrics::Export(const std::string& name, const std::string& help, MetricKind kind,
                     std::function<std::vector<MetricSample>()> read) {
  impl_->Export({.name = name, .help = help, .kind = kind, .read = std::move(read)});
}

Histogram Metrics::AddHistogram(const std::string& name, const std::string& help,
                                const MetricLabels& labels, const std::vector<double>& buckets) {
  const std::map<std::string, std::string> label_map(labels.begin(), labels.end());
  return Histogram(&prometheus::BuildHistogram()
                        .Name(name)
                        .Help(help)
                        .Register(impl_->registry())
                        .Add(label_map, buckets));
}

std::string Metrics::Render() const { return impl_->Render(); }

}  // namespace baton
