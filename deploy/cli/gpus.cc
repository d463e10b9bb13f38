#include "deploy/cli/gpus.h"

#include <poll.h>

#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "deploy/cli/child_process.h"
#include "deploy/cli/json_fields.h"
#include "deploy/cli/machine.h"

namespace baton::cli {
namespace {

int64_t BytesOr0(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_integer() ? it->get<int64_t>() : 0;
}

Finding ExamineGpu(const nlohmann::json& gpu) {
  return {.subject = absl::StrCat("GPU ", BytesOr0(gpu, "index")),
          .fact = absl::StrCat(StringOr(gpu, "name"), ", ", StringOr(gpu, "architecture"), ", ",
                               HumanBytes(BytesOr0(gpu, "memory_free")), " free of ",
                               HumanBytes(BytesOr0(gpu, "memory_total"))),
          .cure = StringOr(gpu, "unusable")};
}

Finding ExamineDriver(const nlohmann::json& answer, const std::string& driver) {
  const std::string build = StringOr(answer, "build");
  const std::string cuda = StringOr(answer, "driver");
  std::vector<std::string> facts;
  if (!driver.empty() && build != "emulated") facts.push_back(driver);
  if (!cuda.empty()) facts.push_back("knows CUDA " + cuda);
  if (facts.empty()) facts.push_back("no NVIDIA driver");
  if (build == "emulated") facts.push_back("emulated");
  // A build for CPUs alone lacks nothing.
  return {.subject = "GPU driver",
          .fact = absl::StrJoin(facts, ", "),
          .cure = build == "cpu" ? "" : StringOr(answer, "problem")};
}

}  // namespace

absl::StatusOr<nlohmann::json> AskForGpus(const std::string& program, Duration limit) {
  nlohmann::json answer;
  const auto take = [&answer](const std::string&, absl::string_view line) {
    nlohmann::json json = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
    if (json.is_object() && json.contains("build")) answer = std::move(json);
  };
  ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> child,
                   ChildProcess::Start({.name = "gpus",
                                        .role = "prefill",
                                        .program = program,
                                        .arguments = {"--list-gpus"}},
                                       std::make_unique<LogFile>("/dev/null"), take));
  const Time deadline = SteadyNow() + limit;
  while (child->Pump()) {
    const Duration left = deadline - SteadyNow();
    if (left <= Duration::zero()) {
      return absl::UnavailableError(absl::StrCat(program, " --list-gpus gave no answer in ",
                                                 ToSeconds(limit), " s"));
    }
    pollfd output{.fd = child->output_fd(), .events = POLLIN, .revents = 0};
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    poll(&output, 1, static_cast<int>(wait));
  }
  if (answer.is_object()) return answer;
  const std::string said = child->last_lines().empty() ? "nothing" : child->last_lines().back();
  return absl::UnavailableError(absl::StrCat(program, " --list-gpus said: ", said));
}

std::vector<Finding> ExamineGpus(const absl::StatusOr<nlohmann::json>& answer,
                                 const std::string& driver) {
  if (!answer.ok()) {
    return {{.subject = "GPU driver",
             .fact = std::string(answer.status().message()),
             .cure = "does `nvidia-smi` answer? Workers started with --device cpu need no driver"}};
  }
  std::vector<Finding> findings = {ExamineDriver(*answer, driver)};
  for (const nlohmann::json& gpu : answer->value("gpus", nlohmann::json::array())) {
    findings.push_back(ExamineGpu(gpu));
  }
  findings.push_back({.subject = "device",
                      .fact = absl::StrCat("--device auto takes ", StringOr(*answer, "chosen"),
                                           ": ", StringOr(*answer, "reason"))});
  return findings;
}

}  // namespace baton::cli
