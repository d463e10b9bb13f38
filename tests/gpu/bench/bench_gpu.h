#pragma once

namespace baton::bench {

// The benchmarks for a device as a program: its exit code.
int BenchGpu(int argc, char** argv);

}  // namespace baton::bench
