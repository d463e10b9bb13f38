#include "tests/late_device/late_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/make_device.h"
#include "tests/late_device/late_graph.h"

namespace baton {
namespace {

constexpr std::byte kPoison{0xff};

absl::Status Lost() { return absl::UnavailableError("late: the device is lost"); }

}  // namespace

// The device's memory, which nobody can touch but while it is open. Nothing is given out twice.
class LateDevice::Arena {
 public:
  Arena()
      : mapped_(mmap(nullptr, kSize + kHugePage, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    BATON_CHECK(mapped_ != MAP_FAILED);
    void* at = mapped_;
    size_t space = kSize + kHugePage;
    data_ = static_cast<std::byte*>(std::align(kHugePage, kSize, at, space));
    // Each opening goes through all pages that hold something. Where the system has no large ones
    // it takes the longer.
    madvise(data_, kSize, MADV_HUGEPAGE);
  }
  ~Arena() { munmap(mapped_, kSize + kHugePage); }

  template <typename Body>
  static void WithOpen(std::span<const std::shared_ptr<Arena>> arenas, const Body& body) {
    const std::lock_guard lock(mutex_);
    for (const auto& arena : arenas) arena->Protect(PROT_READ | PROT_WRITE);
    body();
    for (const auto& arena : arenas) arena->Protect(PROT_NONE);
  }
  template <typename Body>
  void WithOpen(const Body& body) {
    const std::lock_guard lock(mutex_);
    Protect(PROT_READ | PROT_WRITE);
    body();
    Protect(PROT_NONE);
  }

  std::byte* Take(int64_t bytes) {
    std::byte* at = nullptr;
    WithOpen([&] {
      BATON_CHECK(used_ + bytes + kLine <= kSize);
      at = data_ + used_;
      used_ += (bytes + kLine) / kLine * kLine;
      std::fill_n(at, bytes, kPoison);
    });
    return at;
  }
  void Bury(std::shared_ptr<Buffer> pinned) {
    const std::lock_guard lock(mutex_);
    graves_.push_back(std::move(pinned));
  }
  void Free(std::byte* at, int64_t bytes) {
    WithOpen([&] { std::fill_n(at, bytes, kPoison); });
  }

 private:
  static constexpr int64_t kSize = int64_t{1} << 29;
  static constexpr int64_t kHugePage = int64_t{1} << 21;
  static constexpr int64_t kLine = 256;

  void Protect(int access) { BATON_CHECK(mprotect(data_, kSize, access) == 0); }

  static inline std::mutex mutex_;
  void* const mapped_;
  std::byte* data_ = nullptr;
  int64_t used_ = 0;
  std::vector<std::shared_ptr<Buffer>> graves_;
};

class LateDevice::Ops : public ModelOps {
 public:
  explicit Ops(LateDevice* device) : device_(device) {}

  absl::Status Embedding(const EmbeddingArgs& args) override {
    return Later("Embedding", &ModelOps::Embedding, args);
  }
  absl::Status RmsNorm(const RmsNormArgs& args) override {
    return Later("RmsNorm", &ModelOps::RmsNorm, args);
  }
  absl::Status LayerNorm(const LayerNormArgs& args) override {
    return Later("LayerNorm", &ModelOps::LayerNorm, args);
  }
  absl::Status Gemm(const GemmArgs& args) override { return Later("Gemm", &ModelOps::Gemm, args); }
  absl::Status FoldPartials(const FoldPartialsArgs& args) override {
    return Later("FoldPartials", &ModelOps::FoldPartials, args);
  }
  absl::Status RotaryTable(const RotaryTableArgs& args) override {
    return Later("RotaryTable", &ModelOps::RotaryTable, args);
  }
  absl::Status Rope(const RopeArgs& args) override { return Later("Rope", &ModelOps::Rope, args); }
  absl::Status ReshapeAndCache(const ReshapeAndCacheArgs& args) override {
    return Later("ReshapeAndCache", &ModelOps::ReshapeAndCache, args);
  }
  absl::Status VarlenAttention(const VarlenAttentionArgs& args) override {
    return Later("VarlenAttention", &ModelOps::VarlenAttention, args);
  }
  absl::Status Activation(const ActivationArgs& args) override {
    return Later("Activation", &ModelOps::Activation, args);
  }
  absl::Status ActivationAndMul(const ActivationAndMulArgs& args) override {
    return Later("ActivationAndMul", &ModelOps::ActivationAndMul, args);
  }
  absl::Status Softcap(const SoftcapArgs& args) override {
    return Later("Softcap", &ModelOps::Softcap, args);
  }
  absl::Status SelectRows(const SelectRowsArgs& args) override {
    return Later("SelectRows", &ModelOps::SelectRows, args);
  }
  absl::Status Sample(const SampleArgs& args) override {
    return Later("Sample", &ModelOps::Sample, args);
  }
  absl::Status Score(const ScoreArgs& args) override {
    return Later("Score", &ModelOps::Score, args);
  }
  absl::Status TakeTokens(const TakeTokensArgs& args) override {
    return Later("TakeTokens", &ModelOps::TakeTokens, args);
  }
  absl::Status MoeRouting(const MoeRoutingArgs& args) override {
    return Later("MoeRouting", &ModelOps::MoeRouting, args);
  }
  absl::Status MoeAlign(const MoeAlignArgs& args) override {
    return Later("MoeAlign", &ModelOps::MoeAlign, args);
  }
  absl::Status ExpertGemm(const ExpertGemmArgs& args) override {
    return Later("ExpertGemm", &ModelOps::ExpertGemm, args);
  }
  absl::Status MoeCombine(const MoeCombineArgs& args) override {
    return Later("MoeCombine", &ModelOps::MoeCombine, args);
  }

 private:
  template <typename Args>
  absl::Status Later(const char* name, absl::Status (ModelOps::*op)(const Args&),
                     const Args& args) {
    ModelOps* const kernels = device_->kernels_.get();
    return device_->EnqueueOp(name, [kernels, op, args] { return (kernels->*op)(args); });
  }

  LateDevice* const device_;
};

class LateDevice::Library : public OperatorLibrary {
 public:
  explicit Library(LateDevice* device) : device_(device) {}

  absl::Status UpdateKvCache(const UpdateKvCacheArgs& args) override {
    return Later("UpdateKvCache", &OperatorLibrary::UpdateKvCache, args);
  }
  absl::Status CopyBlocks(const CopyBlocksArgs& args) override {
    return WithPlanes("CopyBlocks", &OperatorLibrary::CopyBlocks, args);
  }
  absl::Status SwapBlocks(const SwapBlocksArgs& args) override {
    const auto planes = [&](const CachePlane* p) { return std::vector(p, p + args.num_planes); };
    return device_->EnqueueOp(
        "SwapBlocks", [kernels = device_->kernels_.get(), call = args, from = planes(args.sources),
                       to = planes(args.destinations)]() mutable {
          call.sources = from.data();
          call.destinations = to.data();
          return kernels->SwapBlocks(call);
        });
  }
  absl::Status GatherBlocks(const GatherBlocksArgs& args) override {
    return WithPlanes("GatherBlocks", &OperatorLibrary::GatherBlocks, args);
  }
  absl::Status ScatterBlocks(const ScatterBlocksArgs& args) override {
    return WithPlanes("ScatterBlocks", &OperatorLibrary::ScatterBlocks, args);
  }
  absl::Status AdvanceStep(const AdvanceStepArgs& args) override {
    return Later("AdvanceStep", &OperatorLibrary::AdvanceStep, args);
  }
  absl::Status PagedAttention(const PagedAttentionArgs& args) override {
    return Later("PagedAttention", &OperatorLibrary::PagedAttention, args);
  }
  absl::Status PrefixAttention(const PrefixAttentionArgs& args) override {
    return Later("PrefixAttention", &OperatorLibrary::PrefixAttention, args);
  }
  absl::Status AttentionWithKvCache(const AttentionWithKvCacheArgs& args) override {
    return Later("AttentionWithKvCache", &OperatorLibrary::AttentionWithKvCache, args);
  }
  absl::Status MergeAttentionStates(const MergeAttentionStatesArgs& args) override {
    return Later("MergeAttentionStates", &OperatorLibrary::MergeAttentionStates, args);
  }
  absl::Status CascadeLens(const CascadeLensArgs& args) override {
    return Later("CascadeLens", &OperatorLibrary::CascadeLens, args);
  }

 private:
  template <typename Args>
  absl::Status Later(const char* name, absl::Status (OperatorLibrary::*op)(const Args&),
                     const Args& args) {
    OperatorLibrary* const kernels = device_->kernels_.get();
    return device_->EnqueueOp(name, [kernels, op, args] { return (kernels->*op)(args); });
  }

  // Which are the caller's, for the call alone.
  template <typename Args>
  absl::Status WithPlanes(const char* name, absl::Status (OperatorLibrary::*op)(const Args&),
                          Args args) {
    const std::vector<CachePlane> planes(args.planes, args.planes + args.num_planes);
    return device_->EnqueueOp(name,
                              [kernels = device_->kernels_.get(), op, args, planes]() mutable {
                                args.planes = planes.data();
                                return (kernels->*op)(args);
                              });
  }

  LateDevice* const device_;
};

LateDevice::LateDevice(const LateOptions& options)
    : options_(options),
      info_{.name = "late",
            .has_graphs = options.graphs,
            .row_alignment = options.row_alignment,
            .logit_rows = options.logit_rows,
            .limit = options.limit},
      kernels_(*MakeCpuKernels({})),
      arena_(std::make_shared<Arena>()),
      ops_(std::make_unique<Ops>(this)),
      library_(std::make_unique<Library>(this)),
      random_(options.seed),
      open_{arena_},
      thread_([this](const std::stop_token& ending) { RunLanes(ending); }) {}

LateDevice::~LateDevice() {
  thread_.request_stop();
  thread_.join();
}

ModelOps& LateDevice::ops() { return *ops_; }
OperatorLibrary& LateDevice::library() { return *library_; }

void LateDevice::FailNext(const std::string& op, int skip) {
  const std::lock_guard lock(mutex_);
  failing_[op] = skip;
}

void LateDevice::LoseAfter(int works) {
  const std::lock_guard lock(mutex_);
  lose_at_ = num_works_ + works;
  lost_ = works == 0;
}

void LateDevice::Lose() {
  std::unique_lock lock(mutex_);
  lost_ = true;
  changed_.wait(lock, [this] { return !running_; });
}

void LateDevice::HangAfter(int works) {
  const std::lock_guard lock(mutex_);
  hang_at_ = num_works_ + works;
}

bool LateDevice::idle() const {
  const std::lock_guard lock(mutex_);
  return IsIdle();
}

bool LateDevice::IsIdle() const {
  return !running_ && std::ranges::all_of(lanes_, [](const auto& l) { return l.works.empty(); });
}

std::vector<std::byte> LateDevice::Read(const std::byte* from, int64_t bytes) {
  std::vector<std::byte> out;
  arena_->WithOpen([&] { out.assign(from, from + bytes); });
  return out;
}

void LateDevice::Fill(std::byte* to, int64_t bytes, std::byte value) {
  arena_->WithOpen([&] { std::fill_n(to, bytes, value); });
}

std::string LateDevice::Arithmetic(DType compute) const {
  return std::string(kernels_->numerics(compute));
}

absl::StatusOr<DeviceMemory> LateDevice::Memory() const {
  return DeviceMemory{.total = int64_t{1} << 32, .free = int64_t{1} << 31, .taken = *taken_};
}

absl::StatusOr<Buffer> LateDevice::Allocate(int64_t bytes, MemoryKind kind) {
  {
    const std::lock_guard lock(mutex_);
    RETURN_IF_ERROR(MayCall(Lane::kCompute));
    ++num_allocations_;
  }
  if (kind == MemoryKind::kPinned) {
    ASSIGN_OR_RETURN(Buffer pinned, AllocateHost(bytes));
    std::byte* const at = pinned.data();
    std::fill_n(at, bytes, kPoison);
    // What is enqueued may still read it: it gets to see poison.
    const auto bury = [arena = arena_, grave = std::make_shared<Buffer>(std::move(pinned))](
                          std::byte* p) {
      std::fill_n(p, grave->size_bytes(), kPoison);
      arena->Bury(grave);
    };
    return Buffer(at, bytes, std::shared_ptr<std::byte>(at, bury));
  }
  std::byte* const at = arena_->Take(bytes);
  *taken_ += bytes;
  const auto free = [arena = arena_, bytes, taken = taken_](std::byte* p) {
    arena->Free(p, bytes);
    *taken -= bytes;
  };
  return Buffer(at, bytes, std::shared_ptr<std::byte>(at, free));
}

// Weights are poison until they land.
absl::StatusOr<PackedMatrix> LateDevice::Pack(const PackWeightsArgs& args) {
  ASSIGN_OR_RETURN(PackedMatrix packed, kernels_->PackWeights(args));
  const auto from = std::make_shared<PackedMatrix>(std::move(packed));
  ASSIGN_OR_RETURN(Buffer memory, AllocateHost(from->size_bytes()));
  const auto to = std::make_shared<Buffer>(std::move(memory));
  std::fill_n(to->data(), to->size_bytes(), kPoison);
  RETURN_IF_ERROR(Enqueue(Lane::kCopies, {.run = [from, to] {
                            std::copy_n(from->data(), from->size_bytes(), to->data());
                          }}));
  return PackedMatrix(from->n(), from->k(), from->dtype(), from->format(),
                      Buffer(to->data(), to->size_bytes(), to));
}

absl::Status LateDevice::MayCall(Lane lane) const {
  if (lost_) return Lost();
  if (lane != Lane::kCompute || recording_ == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError("late: no such call amid a capture");
}

absl::Status LateDevice::Enqueue(Lane lane, Work work) {
  const std::lock_guard lock(mutex_);
  if (lost_) return Lost();
  if (lane == Lane::kCompute && recording_ != nullptr) {
    // Another's capture goes on; it has waited for what was there by now.
    if (!is_amid_) return MayCall(lane);
    recording_->parts[part_].works.push_back({.run = std::move(work.run)});
    return absl::OkStatus();
  }
  EnqueueLocked(lane, std::move(work));
  return absl::OkStatus();
}

void LateDevice::EnqueueLocked(Lane lane, Work work) {
  LaneState& state = lanes_[static_cast<int>(lane)];
  state.works.push_back(std::move(work));
  ++state.enqueued;
  changed_.notify_all();
}

absl::Status LateDevice::FailIfTold(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto it = failing_.find(name);
  if (it == failing_.end() || it->second-- > 0) return absl::OkStatus();
  failing_.erase(it);
  return absl::InvalidArgumentError(absl::StrCat("late: ", name, " fails"));
}

absl::Status LateDevice::EnqueueOp(const char* name, std::function<absl::Status()> op) {
  RETURN_IF_ERROR(FailIfTold(name));
  return Enqueue(Lane::kCompute, {.run = [op = std::move(op)] { BATON_CHECK(op().ok()); }});
}

absl::Status LateDevice::CopyPieces(Lane lane, std::span<const CopyPiece> pieces) {
  for (const CopyPiece& piece : pieces) {
    const auto from = reinterpret_cast<uintptr_t>(piece.from);
    const auto to = reinterpret_cast<uintptr_t>(piece.to);
    BATON_CHECK((from | to | static_cast<uintptr_t>(piece.bytes)) % 8 == 0);
  }
  return Enqueue(lane, {.run = [pieces] {
                   for (const CopyPiece& piece : pieces) {
                     std::memcpy(piece.to, piece.from, static_cast<size_t>(piece.bytes));
                   }
                 }});
}

absl::StatusOr<Mark> LateDevice::MarkNow(Lane lane) {
  const std::lock_guard lock(mutex_);
  if (lane == Lane::kCompute && is_amid_ && !lost_) return MarkInGraph();
  RETURN_IF_ERROR(MayCall(lane));
  return Mark{.lane = lane, .number = lanes_[static_cast<int>(lane)].enqueued};
}

absl::Status LateDevice::After(Lane lane, Mark mark) {
  {
    const std::lock_guard lock(mutex_);
    RETURN_IF_ERROR(MayCall(lane));
  }
  return Enqueue(lane, {.run = nullptr, .after = mark});
}

absl::Status LateDevice::EnablePeer(const Device& peer) {
  const std::lock_guard lock(mutex_);
  open_.push_back(static_cast<const LateDevice&>(peer).arena_);
  return absl::OkStatus();
}

absl::Status LateDevice::AfterPeer(Lane lane, const Device& peer, Mark mark) {
  const auto& other = static_cast<const LateDevice&>(peer);
  {
    const std::lock_guard lock(mutex_);
    if (mark.number >= kInGraph) return FollowInGraph(other, mark);
    RETURN_IF_ERROR(MayCall(lane));
    BATON_CHECK(mark.number <= other.lanes_[static_cast<int>(mark.lane)].enqueued);
  }
  return Enqueue(lane, {.run = nullptr, .after = mark, .of = other.ends_});
}

absl::StatusOr<bool> LateDevice::IsDone(Mark mark) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(MayCall(mark.lane));
  LaneState& lane = lanes_[static_cast<int>(mark.lane)];
  if (mark.number <= lane.told) return true;
  // What has ended may be told later.
  const bool ended = Ended(*ends_, mark), done = ended && random_.Below(4) != 0;
  if (done) {
    lane.told = mark.number;
  } else if (!ended) {
    permits_ = std::max(permits_, 1);  // However often it is asked meanwhile.
    changed_.notify_all();
  }
  return done;
}

absl::Status LateDevice::Synchronize() {
  std::unique_lock lock(mutex_);
  RETURN_IF_ERROR(MayCall(Lane::kCompute));
  permits_ = 1 << 30;
  changed_.notify_all();
  const bool ended = changed_.wait_for(lock, options_.limit, [this] { return lost_ || IsIdle(); });
  permits_ = 0;
  if (!ended) {
    // It counts as lost: who hears it frees memory, which a work that is only slow may still touch.
    lost_ = true;
    changed_.wait(lock, [this] { return !running_; });
    return NotEndedWithin(info_.name, options_.limit);
  }
  return lost_ ? Lost() : absl::OkStatus();
}

LateDevice::LaneState* LateDevice::PickLane() {
  if (lost_ || (options_.only_when_asked && permits_ == 0)) return nullptr;
  if (hang_at_ >= 0 && num_works_ >= hang_at_) return nullptr;
  const uint64_t first = random_.Below(lanes_.size());
  LaneState* last = nullptr;
  for (uint64_t i = 0; i < lanes_.size(); ++i) {
    LaneState& lane = lanes_[(first + i) % lanes_.size()];
    if (lane.works.empty()) continue;
    const Work& next = lane.works.front();
    if (!Ended(next.of == nullptr ? *ends_ : *next.of, next.after)) continue;
    const bool is_copies = &lane == &lanes_[static_cast<int>(Lane::kCopies)];
    if (!options_.copies_last || !is_copies) return &lane;
    last = &lane;
  }
  return last;
}

void LateDevice::RunLanes(const std::stop_token& ending) {
  std::unique_lock lock(mutex_);
  LaneState* lane = nullptr;
  while (changed_.wait(lock, ending, [&] { return (lane = PickLane()) != nullptr; })) {
    Work work = std::move(lane->works.front());
    lane->works.pop_front();
    running_ = true;
    const std::vector<std::shared_ptr<Arena>> open = open_;
    const uint64_t pause = options_.only_when_asked ? 0 : random_.Below(4) * random_.Below(10000);
    lock.unlock();
    for (std::atomic<uint64_t> spun = 0; spun < pause;) ++spun;
    if (work.run != nullptr) Arena::WithOpen(open, work.run);
    lock.lock();
    running_ = false;
    ++(*ends_)[lane - lanes_.data()];
    // Questions about what has ended let nothing run that comes later.
    permits_ = IsIdle() ? 0 : std::max(permits_ - 1, 0);
    if (++num_works_ == lose_at_) lost_ = true;
    changed_.notify_all();
  }
}

}  // namespace baton
