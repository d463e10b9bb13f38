#include "kernels/cuda/sm90_forms.h"

#include <array>
#include <atomic>
#include <cstddef>

#include "kernels/cuda/dialect.h"
#include "kernels/cuda/gemm_sm90.h"

namespace baton::cuda {
namespace {

// Of the devices of the process: launches ask from threads of several.
std::array<std::atomic<bool>, kMostSm90Devices> forgoes;

// Of the thread; behind the last of the array where nobody can tell.
size_t CurrentDevice() {
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess ? static_cast<size_t>(device) : forgoes.size();
}

}  // namespace

bool TakesSm90Forms() {
  const size_t device = CurrentDevice();
  return device < forgoes.size() && !forgoes[device] && IsSm90();
}

void ForgoSm90Forms() {
  const size_t device = CurrentDevice();
  if (device < forgoes.size()) forgoes[device] = true;
}

}  // namespace baton::cuda
