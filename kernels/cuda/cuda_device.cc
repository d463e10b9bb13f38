#include "kernels/cuda/cuda_device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/api/sample_args.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_decode_sm90.h"
#include "kernels/cuda/attention_sm90.h"
#include "kernels/cuda/cuda_gpus.h"
#include "kernels/cuda/cuda_lane.h"
#include "kernels/cuda/cuda_library.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_slices.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/cuda_weights.h"
#include "kernels/cuda/piece_sums.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/sm90_check.h"
#include "kernels/cuda/sm90_forms.h"

namespace baton {
namespace cuda {
namespace {

constexpr int64_t kCounterBytes = int64_t{6} << 10;  // A word for a KV head of a sequence.
constexpr int64_t kLeastScratch = int64_t{32} << 20;  // With the counters.
// The version of the kernels' orders of sums.
constexpr const char* kArithmeticVersion = ".1";

// Attention over few long sequences spreads over the whole GPU where its partial results fit here,
// and on sm_90 many long ones have a form that needs room for those of all: 0.2% of its memory is
// enough for 128 sequences of 32,768 tokens of Llama 3 8B. Elsewhere more would be blocks in vain,
// of graphs that are captured for the longest sequences that have room.
int64_t ScratchBytesOf(const cudaDeviceProp& properties, bool emulated) {
  const bool has_form = properties.major == 9 && properties.minor == 0 && !emulated;
  const auto share = static_cast<int64_t>(properties.totalGlobalMem / 512 / 256 * 256);
  return std::max(kLeastScratch, has_form ? share : 0) - kCounterBytes;
}

std::string NameOf(DType dtype) { return std::string(ToString(dtype)); }

// What neither is free nor was taken here, beyond a context of its own: no option of this process
// gives it back.
std::string HeldByOthers(const DeviceMemory& memory) {
  const int64_t others = memory.total - memory.free - memory.taken;
  if (others < memory.total / 8) return "";
  return absl::StrCat(" and ", others,
                      " are held by other programs or CUDA itself, see nvidia-smi");
}

// Of a device, its graphs and its buffers, which may outlive it.
struct DeviceState {
  std::atomic<int64_t> taken = 0;  // Bytes of the buffers.
  std::atomic<bool> hangs = false;
};

class CudaGraph : public Graph {
 public:
  CudaGraph(cudaGraphExec_t exec, std::shared_ptr<const DeviceState> state)
      : exec(exec), state_(std::move(state)) {}
  ~CudaGraph() override {
    if (!state_->hangs) cudaGraphExecDestroy(exec);
  }
  const cudaGraphExec_t exec;

 private:
  const std::shared_ptr<const DeviceState> state_;
};

class CudaDevice : public Device {
 public:
  CudaDevice(int index, const cudaDeviceProp& properties)
      : index_(index),
        emulated_(absl::StartsWith(properties.name, "emulated")),
        architecture_(10 * properties.major + properties.minor),
        shared_bytes_(properties.sharedMemPerBlockOptin),
        scratch_bytes_(ScratchBytesOf(properties, emulated_)),
        info_{.name = properties.name, .has_graphs = true, .row_alignment = 8, .logit_rows = 128} {}

  ~CudaDevice() override {
    Synchronize().IgnoreError();
    if (!state_->hangs) return;
    for (CudaLane& lane : lanes_) lane.Abandon();
  }

  absl::Status Open() {
    RETURN_IF_ERROR(Enter());
    int least = 0, greatest = 0;
    RETURN_IF_ERROR(ToStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                             "cudaDeviceGetStreamPriorityRange"));
    for (int lane = 0; lane < kNumLanes; ++lane) {
      const bool transfers = static_cast<Lane>(lane) >= Lane::kTransfer;
      RETURN_IF_ERROR(
          lanes_[lane].Open(static_cast<Lane>(lane), transfers ? greatest : least));
    }
    // Of one lane, so that one comes after the other.
    ASSIGN_OR_RETURN(Buffer memory, Allocate(scratch_bytes_ + kCounterBytes, MemoryKind::kDevice));
    const auto owner = std::make_shared<Buffer>(std::move(memory));
    const auto scratch = [&] { return Buffer(owner->data(), scratch_bytes_, owner); };
    const auto counters = [&] {
      return Buffer(owner->data() + scratch_bytes_, kCounterBytes, owner);
    };
    const cudaStream_t stream = LaneOf(Lane::kCompute).stream();
    RETURN_IF_ERROR(
        ToStatus(cudaMemsetAsync(counters().data(), 0, kCounterBytes, stream), "cudaMemsetAsync"));
    ops_ = std::make_unique<CudaOps>(stream, scratch(), counters(), shared_bytes_);
    library_ = std::make_unique<CudaLibrary>(stream, scratch(), counters(), shared_bytes_);
    ASSIGN_OR_RETURN(info_.foregone,
                     CheckSm90Forms(index_, {.memory = scratch(), .stream = stream, .wait = [&] {
                                               return Synchronize();
                                             }}));
    return absl::OkStatus();
  }

  const DeviceInfo& info() const override { return info_; }

  std::string Arithmetic(DType) const override {
    return absl::StrCat("cuda-", emulated_ ? "emulated-" : "", "sm", architecture_,
                        kArithmeticVersion);
  }
  DType FastestCompute(DType weights) const override {
    return weights == DType::kF16 ? DType::kF16 : DType::kBF16;
  }
  DType Activations(DType compute) const override { return compute; }
  absl::Status CheckModel(const ModelNeeds& needs) const override;
  std::string SlowerFor(const ModelNeeds& needs) const override;

  absl::StatusOr<DeviceMemory> Memory() const override {
    RETURN_IF_ERROR(Enter());
    size_t free = 0, total = 0;
    RETURN_IF_ERROR(ToStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
    return DeviceMemory{.total = static_cast<int64_t>(total),
                        .free = static_cast<int64_t>(free),
                        .taken = state_->taken};
  }
  absl::StatusOr<Buffer> Allocate(int64_t bytes, MemoryKind kind) override;
  absl::StatusOr<PackedMatrix> Pack(const PackWeightsArgs& args) override {
    return weights_.Pack(args, nullptr);
  }
  absl::StatusOr<PackedMatrix> PackBy(ThreadPool& threads, const PackWeightsArgs& args) override {
    return weights_.Pack(args, &threads);
  }
  ModelOps& ops() override {
    Enter().IgnoreError();  // If the device is lost, the operator says so.
    return *ops_;
  }
  OperatorLibrary& library() override {
    Enter().IgnoreError();  // As above.
    return *library_;
  }

  absl::Status CopyPieces(Lane lane, std::span<const CopyPiece> pieces) override {
    RETURN_IF_ERROR(Enter());
    return ToStatus(
        cuda::CopyPieces(pieces.data(), std::ssize(pieces), LaneOf(lane).stream()), "CopyPieces");
  }
  absl::Status SumPieces(Lane lane, std::span<const SummedPiece> pieces) override {
    RETURN_IF_ERROR(Enter());
    return ToStatus(cuda::SumPieces(pieces.data(), std::ssize(pieces), LaneOf(lane).stream()),
                    "SumPieces");
  }
  absl::StatusOr<void*> NativeLane(Lane lane) override {
    RETURN_IF_ERROR(Enter());
    return static_cast<void*>(LaneOf(lane).stream());
  }
  absl::StatusOr<Mark> MarkNow(Lane lane) override {
    RETURN_IF_ERROR(Enter());
    if (lane == Lane::kCompute && is_capturing_) return LaneOf(lane).MarkInGraph();
    return LaneOf(lane).MarkNow();
  }
  absl::Status After(Lane lane, Mark mark) override {
    RETURN_IF_ERROR(Enter());
    return LaneOf(lane).After(LaneOf(mark.lane), mark.number);
  }
  absl::Status EnablePeer(const Device& peer) override;
  absl::Status AfterPeer(Lane lane, const Device& peer, Mark mark) override {
    RETURN_IF_ERROR(Enter());
    return LaneOf(lane).AfterPeer(static_cast<const CudaDevice&>(peer).LaneOf(mark.lane),
                                  mark.number);
  }
  absl::StatusOr<bool> IsDone(Mark mark) override {
    RETURN_IF_ERROR(Enter());
    return LaneOf(mark.lane).IsDone(mark.number);
  }

  int32_t LongestReplay(int32_t rows, const ModelNeeds& needs) const override {
    const int64_t longest = LongestSplit(rows, needs.num_heads, needs.head_dim, scratch_bytes_);
    return static_cast<int32_t>(std::min<int64_t>(longest, INT32_MAX));
  }
  absl::StatusOr<std::unique_ptr<Graph>> Capture(
      absl::FunctionRef<absl::Status()> enqueue) override;
  absl::StatusOr<Mark> Join(const Device& peer, Mark begin,
                            absl::FunctionRef<absl::Status()> enqueue) override;
  absl::Status Launch(const Graph& graph) override {
    RETURN_IF_ERROR(Enter());
    return ToStatus(cudaGraphLaunch(static_cast<const CudaGraph&>(graph).exec,
                                    LaneOf(Lane::kCompute).stream()),
                    "cudaGraphLaunch");
  }
  // CUDA's own call would wait for ever.
  absl::Status Synchronize() override {
    RETURN_IF_ERROR(Enter());
    for (const CudaLane& lane : lanes_) {
      RETURN_IF_ERROR(WaitUntil(*this, info_.limit, [&] { return lane.IsIdle(); }));
    }
    return absl::OkStatus();
  }
  void GiveUp() override { state_->hangs = true; }

 private:
  // Which device a thread's calls go to is the thread's own state.
  absl::Status Enter() const {
    if (state_->hangs) return NotEndedWithin(info_.name, info_.limit);
    return ToStatus(cudaSetDevice(index_), "cudaSetDevice");
  }
  absl::StatusOr<Buffer> AllocateOwn(int64_t bytes, MemoryKind kind);
  CudaLane& LaneOf(Lane lane) { return lanes_[static_cast<int>(lane)]; }
  const CudaLane& LaneOf(Lane lane) const { return lanes_[static_cast<int>(lane)]; }

  const int index_;
  const bool emulated_;
  const int architecture_;
  const size_t shared_bytes_;  // That a block may have.
  const int64_t scratch_bytes_;
  DeviceInfo info_;  // Once it is open, as it stays.
  const std::shared_ptr<DeviceState> state_ = std::make_shared<DeviceState>();
  std::array<CudaLane, kNumLanes> lanes_;
  std::unique_ptr<CudaOps> ops_;
  std::unique_ptr<CudaLibrary> library_;
  bool is_capturing_ = false;  // What kCompute gets now goes into a graph.
  CudaSlices slices_;
  WeightLoader weights_{this};
};

absl::Status CudaDevice::CheckModel(const ModelNeeds& needs) const {
  const auto refuse = [](absl::string_view what) { return absl::InvalidArgumentError(what); };
  if (needs.compute != DType::kBF16 && needs.compute != DType::kF16) {
    return refuse(absl::StrCat("compute_dtype = ", NameOf(needs.compute),
                               ": GPUs compute in bf16 or f16; leave --compute-dtype at auto"));
  }
  if (needs.kv != needs.compute && !IsFp8(needs.kv)) {
    return refuse(absl::StrCat("kv_dtype = ", NameOf(needs.kv),
                               ": a GPU keeps K/V in fp8 or in the compute dtype, ",
                               NameOf(needs.compute), ": leave --kv-dtype at auto"));
  }
  if (needs.head_dim < 8 || needs.head_dim > 256 || needs.head_dim % 8 != 0) {
    return refuse(absl::StrCat("head_dim = ", needs.head_dim,
                               ": GPUs serve multiples of 8 up to 256; use --device cpu"));
  }
  if (needs.num_kv_heads < 1 || needs.num_heads % needs.num_kv_heads != 0) {
    return refuse(absl::StrCat("num_heads = ", needs.num_heads, ": must be a multiple of ",
                               needs.num_kv_heads, ", the heads of K and V"));
  }
  if (needs.vocab_size > kMaxVocabulary) {
    return refuse(absl::StrCat("vocab_size = ", needs.vocab_size, ": must be at most ",
                               kMaxVocabulary));
  }
  return absl::OkStatus();
}

// Asks the forms of sm_90a themselves, about a sequence with one token.
std::string CudaDevice::SlowerFor(const ModelNeeds& needs) const {
  if (!Enter().ok() || !TakesSm90Forms()) return "";
  const CachePlane plane{
      .dtype = needs.kv,
      .num_blocks = 1,
      .num_heads = needs.num_kv_heads,
      .block_size = needs.block_size,
      .dim = needs.head_dim,
      .block_stride = int64_t{needs.num_kv_heads} * needs.block_size * needs.head_dim};
  const int64_t width = int64_t{needs.num_heads} * needs.head_dim;
  const int32_t starts[] = {0, 1};
  const VarlenAttentionArgs prompt{.q = {nullptr, needs.compute},
                                   .q_stride = width,
                                   .num_heads = needs.num_heads,
                                   .num_seqs = 1,
                                   .cu_seqlens_q = starts,
                                   .num_tokens = 1,
                                   .max_seqlen_q = 1,
                                   .max_seqlen_k = 1,
                                   .k_cache = plane,
                                   .v_cache = plane,
                                   .round_to = needs.compute,
                                   .out = {nullptr, needs.compute},
                                   .out_stride = width};
  float scratch = 0;
  attention::Problem decode = attention::ProblemOf(prompt);
  decode.scratch = &scratch;
  std::vector<uint32_t> counters(needs.num_kv_heads);
  const bool has_prompts = AttentionSm90Takes(prompt);
  const bool has_decode = IsDecodeOfSm90(decode, {.counters = counters});
  if (has_prompts && has_decode) return "";
  return absl::StrCat("attention of ", has_prompts ? "" : "prompts",
                      has_prompts || has_decode ? "" : " and ", has_decode ? "" : "decode",
                      ": sm_90a has no form for K/V in ", NameOf(needs.kv), " by blocks of ",
                      needs.block_size, " tokens, ", needs.num_heads / needs.num_kv_heads,
                      " heads of ", needs.head_dim, " on each of K/V");
}

absl::StatusOr<Buffer> CudaDevice::Allocate(int64_t bytes, MemoryKind kind) {
  if (kind == MemoryKind::kPinned || bytes > CudaSlices::kLargestSlice) {
    return AllocateOwn(bytes, kind);
  }
  RETURN_IF_ERROR(Enter());
  RETURN_IF_ERROR(LaneOf(Lane::kCompute).IsIdle().status());  // Whether it is lost, without a wait.
  std::optional<Buffer> slice = slices_.Cut(bytes);
  if (slice.has_value()) return *std::move(slice);
  absl::StatusOr<Buffer> piece = AllocateOwn(CudaSlices::PieceFor(bytes, slices_.taken()), kind);
  if (absl::IsResourceExhausted(piece.status())) {
    piece = AllocateOwn(CudaSlices::Granules(bytes), kind);
  }
  RETURN_IF_ERROR(piece.status());
  return slices_.CutFrom(*std::move(piece), bytes);
}

// CUDA may wait for what runs before it gives or takes memory: where that hangs, for ever.
absl::StatusOr<Buffer> CudaDevice::AllocateOwn(int64_t bytes, MemoryKind kind) {
  RETURN_IF_ERROR(Synchronize());
  const bool pinned = kind == MemoryKind::kPinned;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  void* data = nullptr;
  const cudaError_t error =
      pinned ? cudaHostAlloc(&data, size, cudaHostAllocDefault) : cudaMalloc(&data, size);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // The device goes on.
    if (pinned) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot allocate ", bytes, " bytes of pinned host memory"));
    }
    ASSIGN_OR_RETURN(const DeviceMemory memory, Memory());
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate ", bytes, " bytes of GPU memory, of which ", memory.free,
                     " of ", memory.total, " are free", HeldByOthers(memory)));
  }
  RETURN_IF_ERROR(ToStatus(error, pinned ? "cudaHostAlloc" : "cudaMalloc"));
  const int64_t counted = pinned ? 0 : CudaSlices::Granules(bytes);
  state_->taken += counted;
  // Of a lost device nothing is freed but with the process.
  const auto free = [pinned, counted, state = state_, index = index_](void* memory) {
    if (state->hangs) return;
    cudaSetDevice(index);
    pinned ? cudaFreeHost(memory) : cudaFree(memory);
    state->taken -= counted;
  };
  return Buffer(static_cast<std::byte*>(data), bytes, std::shared_ptr<void>(data, free));
}

absl::Status CudaDevice::EnablePeer(const Device& other) {
  RETURN_IF_ERROR(Enter());
  const int peer = static_cast<const CudaDevice&>(other).index_;
  int can = 0;
  RETURN_IF_ERROR(
      ToStatus(cudaDeviceCanAccessPeer(&can, index_, peer), "cudaDeviceCanAccessPeer"));
  if (can == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cuda:", index_, " cannot reach the memory of cuda:", peer,
                     ": see nvidia-smi topo -p2p r for GPUs that can, or use --tp 1"));
  }
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error != cudaErrorPeerAccessAlreadyEnabled) {
    return ToStatus(error, "cudaDeviceEnablePeerAccess");
  }
  cudaGetLastError();  // Another group of this process is on the same GPUs.
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Graph>> CudaDevice::Capture(
    absl::FunctionRef<absl::Status()> enqueue) {
  RETURN_IF_ERROR(Enter());
  const cudaStream_t stream = LaneOf(Lane::kCompute).stream();
  RETURN_IF_ERROR(ToStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                           "cudaStreamBeginCapture"));
  is_capturing_ = true;
  absl::Status enqueued = enqueue();
  is_capturing_ = false;
  enqueued.Update(Enter());  // It may have been with a peer last.
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  cudaGraphExec_t exec = nullptr;
  absl::Status status = enqueued.ok() ? ToStatus(ended, "cudaStreamEndCapture") : enqueued;
  if (status.ok()) status = ToStatus(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  if (graph != nullptr) cudaGraphDestroy(graph);
  RETURN_IF_ERROR(status);
  auto made = std::make_unique<CudaGraph>(exec, state_);
  // What it takes of the device is taken now, not from the first launch.
  RETURN_IF_ERROR(ToStatus(cudaGraphUpload(exec, stream), "cudaGraphUpload"));
  return made;
}

// CUDA takes a stream into the capture of the event that it waits for.
absl::StatusOr<Mark> CudaDevice::Join(const Device& peer, Mark begin,
                                      absl::FunctionRef<absl::Status()> enqueue) {
  RETURN_IF_ERROR(AfterPeer(Lane::kCompute, peer, begin));
  is_capturing_ = true;
  absl::Status enqueued = enqueue();
  absl::StatusOr<Mark> end = enqueued.ok() ? MarkNow(Lane::kCompute) : std::move(enqueued);
  is_capturing_ = false;
  return end;
}

}  // namespace
}  // namespace cuda

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int index) {
  ASSIGN_OR_RETURN(const cudaDeviceProp properties, cuda::PropertiesOf(index));
  auto device = std::make_unique<cuda::CudaDevice>(index, properties);
  const absl::Status opened = device->Open();
  if (!opened.ok()) return cuda::CannotOpen(index, properties.name, opened);
  return device;
}

}  // namespace baton
