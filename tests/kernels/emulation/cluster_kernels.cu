#include "tests/kernels/emulation/cluster_kernels.h"

#include "kernels/cuda/dialect_sm90.h"
#include "kernels/cuda/floats.h"

namespace baton::detectors {

struct Slots {
  float4 told[kClusterThreads];
  float4 told_last[kClusterThreads];
};

BATON_DEVICE void Tell(ClusterFault fault, Slots& s, int cluster) {
  const int rank = static_cast<int>(blockIdx.x) % cluster, thread = static_cast<int>(threadIdx.x);
  const auto value = static_cast<float>(100 * rank + thread);
  const bool is_first = fault == ClusterFault::kTwoStoreOne && rank < 2;
  const int next = is_first ? 2 : (rank + 1) % cluster;
  const int beyond = fault == ClusterFault::kBeyondShared ? 2 * kClusterThreads : 0;
  cuda::StoreRemote(s.told[beyond + thread], fault == ClusterFault::kNoSuchBlock ? cluster : next,
                    make_float4(value, value, value, value));
}

__global__ void ClusterKernel(ClusterFault fault, int cluster, float* out) {
  auto& s = cuda::SharedMemory<Slots>();
  const int thread = static_cast<int>(threadIdx.x);
  s.told[thread] = make_float4(0, 0, 0, 0);
  if (fault != ClusterFault::kNoStartBarrier) {
    if (fault != ClusterFault::kWaitsUnarrived) cuda::ArriveCluster();
    if (fault == ClusterFault::kArrivesTwice) cuda::ArriveCluster();
    cuda::WaitCluster();
  }
  if (fault == ClusterFault::kExitsBefore && thread == 7 && blockIdx.x == 1) return;
  if (fault == ClusterFault::kStoresArrived) cuda::ArriveCluster();
  Tell(fault, s, cluster);
  if (fault == ClusterFault::kBlockBarrier) {
    __syncthreads();
  } else if (fault != ClusterFault::kNoBarrier) {
    if (fault != ClusterFault::kStoresArrived) cuda::ArriveCluster();
    cuda::WaitCluster();
  }
  const float4 told = s.told[thread];
  if (fault == ClusterFault::kStoresLast) {
    cuda::StoreRemote(s.told_last[thread], (static_cast<int>(blockIdx.x) + 1) % cluster, told);
  }
  if (fault == ClusterFault::kExitsUnwaited) cuda::ArriveCluster();
  out[blockIdx.x * kClusterThreads + thread] = told.x + told.y + told.z + told.w;
}

cudaError_t RunClusterFault(ClusterFault fault, int blocks, int cluster, float* out,
                            cudaStream_t stream) {
  return cuda::LaunchClusters(ClusterKernel, cluster, static_cast<unsigned>(blocks),
                              kClusterThreads, sizeof(Slots), stream, fault, cluster, out);
}

}  // namespace baton::detectors
