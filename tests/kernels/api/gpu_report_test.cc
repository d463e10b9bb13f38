#include "kernels/api/gpu_report.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

std::string Chosen(GpuReport report, absl::string_view never = "") {
  ChooseForAuto(never, report);
  return report.chosen + ": " + report.reason;
}

TEST(GpuReportTest, AutoTakesTheFirstGpuOrSaysWhyNone) {
  EXPECT_EQ(Chosen({.gpus = {{.index = 0}, {.index = 1}}}), "cuda:0: the first GPU");
  EXPECT_EQ(Chosen({.problem = "no driver"}), "cpu: no driver");
  EXPECT_EQ(Chosen({.gpus = {{.unusable = "sm_75", .too_old = true}, {.index = 1}}}), "cpu: sm_75");
  // It is there: workers say what is wrong with it and do not start.
  EXPECT_EQ(Chosen({.gpus = {{.unusable = "full"}}}), "cuda:0: full");
  EXPECT_EQ(Chosen({.gpus = {{.index = 0}}}, "emulated"), "cpu: emulated");
}

TEST(GpuReportTest, OnlyAGpuThatIsNotThereIsPassedOver) {
  EXPECT_TRUE(HasNoGpu(absl::FailedPreconditionError("no driver")));
  EXPECT_TRUE(HasNoGpu(absl::NotFoundError("no GPU in this build")));
  EXPECT_FALSE(HasNoGpu(absl::ResourceExhaustedError("full")));
  EXPECT_FALSE(HasNoGpu(absl::UnavailableError("busy")));
  EXPECT_FALSE(HasNoGpu(absl::OkStatus()));
}

}  // namespace
}  // namespace baton
