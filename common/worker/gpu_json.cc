#include "common/worker/gpu_json.h"

#include "nlohmann/json.hpp"

namespace baton {

std::string ToJson(const GpuReport& report) {
  nlohmann::json gpus = nlohmann::json::array();
  for (const GpuFacts& gpu : report.gpus) {
    gpus.push_back({{"index", gpu.index},
                    {"name", gpu.name},
                    {"architecture", gpu.architecture},
                    {"memory_total", gpu.memory_total},
                    {"memory_free", gpu.memory_free},
                    {"unusable", gpu.unusable}});
  }
  const nlohmann::json json = {{"build", report.build},     {"driver", report.driver},
                               {"problem", report.problem}, {"gpus", gpus},
                               {"chosen", report.chosen},   {"reason", report.reason}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace baton
