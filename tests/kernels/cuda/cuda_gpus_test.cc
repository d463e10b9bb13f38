#include "kernels/cuda/cuda_gpus.h"

#include <cstdlib>
#include <string>

#include "tests/kernels/cuda/cuda_device_fixture.h"

namespace baton::cuda {
namespace {

#if !defined(BATON_CUDA_DEVICE)

using CudaGpusTest = CudaDeviceTest;

TEST_F(CudaGpusTest, TheListHasWhatTheDriverShows) {
  const GpuReport report = ListCudaGpus();
  EXPECT_EQ(report.driver, "13.0");
  EXPECT_EQ(report.problem, "");
  ASSERT_EQ(report.gpus.size(), 1u);
  const GpuFacts& gpu = report.gpus[0];
  EXPECT_EQ(gpu.index, 0);
  EXPECT_EQ(gpu.name, "emulated sm_90");
  EXPECT_EQ(gpu.architecture, "sm_90");
  EXPECT_EQ(gpu.memory_total, device_->Memory()->total);
  EXPECT_EQ(gpu.memory_free, device_->Memory()->free);
  EXPECT_LT(gpu.memory_free, gpu.memory_total);
  EXPECT_EQ(gpu.unusable, "");
  EXPECT_FALSE(gpu.too_old);
}

// A GPU that another process fills, say.
TEST_F(CudaGpusTest, AGpuThatDoesNotAnswerIsNamedWithTheCure) {
  const auto expect_named = [](absl::string_view text) {
    for (const char* part : {"device = cuda:0: ", "out of GPU memory", "nvidia-smi"}) {
      EXPECT_NE(text.find(part), absl::string_view::npos) << text;
    }
  };
  // Behind the count and its properties: cudaMemGetInfo.
  emulation::FailCall(3, cudaErrorMemoryAllocation);
  const GpuReport report = ListCudaGpus();
  ASSERT_EQ(report.gpus.size(), 1u);
  expect_named(report.gpus[0].unusable);
  EXPECT_FALSE(report.gpus[0].too_old);
  EXPECT_GT(report.gpus[0].memory_total, 0);
  emulation::FailCall(3, cudaErrorMemoryAllocation);
  const absl::Status status = MakeCudaDevice(0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  expect_named(status.message());
}

// `auto` takes the CPU where there is no GPU, and no CPU in place of one that has a fault.
TEST_F(CudaGpusTest, ADriverThatDoesNotWorkIsNotTheLackOfAGpu) {
  emulation::FailCall(1, cudaErrorSystemNotReady);
  const absl::Status status = MakeCudaDevice(0).status();
  EXPECT_FALSE(HasNoGpu(status)) << status;
  for (const char* part : {"error 802", "system not yet initialized", "nvidia-smi"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status;
  }
  emulation::FailCall(1, cudaErrorSystemNotReady);
  GpuReport report = ListCudaGpus();
  EXPECT_TRUE(report.broken);
  ChooseForAuto("", report);
  EXPECT_EQ(report.chosen, "cuda:0");
  EXPECT_EQ(report.reason, status.message());
  emulation::FailCall(1, cudaErrorNoDevice);
  EXPECT_TRUE(HasNoGpu(MakeCudaDevice(0).status()));
  emulation::FailCall(1, cudaErrorNoDevice);
  EXPECT_FALSE(ListCudaGpus().broken);
}

// By who has not been told otherwise; before a GPU is made and before one is listed.
TEST_F(CudaGpusTest, AllKernelsAreLoadedAtTheStart) {
  const std::string name = "CUDA_MODULE_LOADING";
  for (const bool lists : {false, true}) {
    for (const std::string told : {"", "LAZY"}) {
      told.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), told.c_str(), 1);
      lists ? (void)ListCudaGpus() : (void)MakeCudaDevice(0);
      const char* const says = std::getenv(name.c_str());
      ASSERT_NE(says, nullptr);
      EXPECT_EQ(says, told.empty() ? "EAGER" : told) << lists;
    }
  }
  unsetenv(name.c_str());
}

// One that is too old is passed over by `auto`, and refused where it is asked for.
TEST_F(CudaGpusTest, AnOldGpuIsShownAndNotChosen) {
  emulation::SetGpu("sm75");
  GpuReport report = ListCudaGpus();
  const absl::Status status = MakeCudaDevice(0).status();
  emulation::SetGpu("sm90");
  ASSERT_EQ(report.gpus.size(), 1u);
  EXPECT_EQ(report.gpus[0].architecture, "sm_75");
  EXPECT_TRUE(report.gpus[0].too_old);
  EXPECT_EQ(report.gpus[0].unusable,
            "device = cuda:0: emulated sm_75 is sm_75, and sm_80 is needed: use --device cpu");
  ChooseForAuto("", report);
  EXPECT_EQ(report.chosen, "cpu");
  EXPECT_EQ(report.reason, report.gpus[0].unusable);
  EXPECT_EQ(status.message(), report.gpus[0].unusable);
  EXPECT_TRUE(HasNoGpu(status)) << status;
}

TEST_F(CudaGpusTest, AGpuBehindTheLastIsRefusedByTheirNumber) {
  for (const int index : {-1, 1, 2}) {
    EXPECT_EQ(MakeCudaDevice(index).status(),
              absl::InvalidArgumentError("device = cuda:" + std::to_string(index) +
                                         ": must be below 1, the number of GPUs here"));
  }
}

#endif

}  // namespace
}  // namespace baton::cuda
