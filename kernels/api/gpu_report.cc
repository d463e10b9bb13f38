#include "kernels/api/gpu_report.h"

namespace baton {

bool HasNoGpu(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsFailedPrecondition(status);
}

void ChooseForAuto(absl::string_view never, GpuReport& report) {
  report.chosen = "cpu";
  if (!never.empty()) {
    report.reason = std::string(never);
  } else if (report.broken) {
    report.chosen = "cuda:0";
    report.reason = report.problem;
  } else if (report.gpus.empty()) {
    report.reason = report.problem;
  } else if (report.gpus[0].too_old) {
    report.reason = report.gpus[0].unusable;
  } else {
    report.chosen = "cuda:0";
    report.reason = report.gpus[0].unusable.empty() ? "the first GPU" : report.gpus[0].unusable;
  }
}

}  // namespace baton
