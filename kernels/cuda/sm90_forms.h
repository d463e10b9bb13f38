#pragma once

namespace baton::cuda {

// Of a process: no machine has as many, and those behind them would not take the forms.
inline constexpr int kMostSm90Devices = 64;

// Whether the thread's device computes by the forms of sm_90a: it is one (gemm_sm90.h), and has not
// been told otherwise (sm90_check.h). From any thread, as what follows.
bool TakesSm90Forms();

// From now on the thread's device computes by the forms for every GPU.
void ForgoSm90Forms();

}  // namespace baton::cuda
