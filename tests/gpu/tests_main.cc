// gpu_tests [gtest's options]: the tests; gpu_tests bench [options]: the benchmarks.
#include <gmock/gmock.h>

#include <string_view>

#include "tests/gpu/bench/bench_gpu.h"

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "bench") {
    return baton::bench::BenchGpu(argc - 1, argv + 1);
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
