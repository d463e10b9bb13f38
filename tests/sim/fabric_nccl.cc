// The part of Fabric and its ports that carries payload over NCCL.
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "tests/sim/fabric.h"

namespace baton::sim {
namespace {

constexpr int kVersion = 22703;
constexpr int kOtherVersion = 22102;
// Shorter than the product's: a communicator that is not there is asked for every 2 ms.
constexpr Duration kInitLimit = std::chrono::seconds(2);

}  // namespace

void Fabric::UseNccl(uint64_t seed) {
  nccl_seed_ = Random::Mix(seed ^ 0x4CC1);
  nccl_ = std::make_unique<SimNccl>(
      world_, [this](Place from, Place to) { return Arrival(from, to, {}); }, violation_);
  nccl_->OnReceived([this](SimGpu* gpu) {
    if (FabricPort* port = Find(gpu->parts().place); port != nullptr) port->OnNcclReceived();
  });
}

int Fabric::NcclVersionOf(Incarnation incarnation) const {
  if (nccl_ == nullptr) return 0;
  switch (Random::Mix(nccl_seed_ ^ incarnation) % 10) {
    case 0:
      return 0;
    case 1:
      return kOtherVersion;
    default:
      return kVersion;
  }
}

// Small ones too, into which some frames do not fit, with short lists of pieces. In a third of the
// worlds all have the same; else each rank, of each start, has its own.
nccl::Staging::Options Fabric::NcclStagingOf(Incarnation incarnation, int rank) const {
  const uint64_t all = Random::Mix(nccl_seed_);
  if (all / 6 % 3 == 0) return {.slot_bytes = int64_t{256} << (all % 6), .max_pieces = 512};
  const uint64_t own = Random::Mix(Random::Mix(nccl_seed_ ^ incarnation) + rank);
  return {.slot_bytes = int64_t{256} << (own % 6), .max_pieces = size_t{64} << (own / 6 % 4)};
}

Fabric::NcclTotals& Fabric::NcclTotals::operator+=(const NcclTotals& other) {
  received += other.received;
  pairs_up += other.pairs_up;
  pairs_failed += other.pairs_failed;
  pairs_stuck += other.pairs_stuck;
  leaked_slots += other.leaked_slots;
  other_version += other.other_version;
  return *this;
}

Fabric::NcclTotals Fabric::nccl() const {
  NcclTotals totals = nccl_totals_;
  if (nccl_ != nullptr) totals.received = nccl_->received();
  for (const auto& [place, port] : ports_) totals += port->nccl();
  return totals;
}

Fabric::NcclTotals FabricPort::nccl() const {
  if (carrier_ == nullptr) return {};
  const nccl::CarrierCounters counters = carrier_->counters();
  return {.pairs_up = counters.pairs_up,
          .pairs_failed = counters.pairs_failed,
          .pairs_stuck = counters.pairs_stuck,
          .leaked_slots = counters.leaked_slots,
          .other_version = told_versions_};
}

std::string FabricPort::DescribeNccl() const {
  if (carrier_ == nullptr) return "";
  const nccl::CarrierCounters counters = carrier_->counters();
  std::string text = absl::StrCat("\n    rank ", place_.rank, ", NCCL: slots held ",
                                  counters.held_slots, " leaked ", counters.leaked_slots, ", ",
                                  gpu_->DescribeState());
  for (const nccl::LinkState& link : carrier_->links()) {
    absl::StrAppend(&text, "; ", link.sends ? "to " : "from ", link.peer,
                    link.is_up ? " up" : " over TCP: ", link.why);
  }
  return text;
}

// Few slots, so that they are waited for.
void FabricPort::AddCarrier() {
  const int version = fabric_.NcclVersionOf(options_.transport.incarnation);
  if (version == 0) return;
  BATON_CHECK(stager_.has_value());  // Else NoteDamaged would take a frame's own bytes for landed.
  gpu_ = std::make_unique<SimGpu>(SimGpu::Parts{.world = world_,
                                                .host = host_,
                                                .memory = memory_,
                                                .place = place_,
                                                .nccl = *fabric_.nccl_,
                                                .version = version,
                                                .turn = [this] { TurnSoon(); },
                                                .violation = fabric_.violation_});
  const auto lost = [this](const absl::Status& status) {
    fabric_.violation_(absl::StrCat("NCCL: ", status.message()));
  };
  nccl::Staging::Options staging =
      fabric_.NcclStagingOf(options_.transport.incarnation, place_.rank);
  staging.slots = 1 + static_cast<int>(world_.random.Below(4));
  auto carrier = nccl::NcclCarrier::Create(
      fabric_.nccl_->LibraryOf(version), *gpu_, memory_.cache(),
      {.staging = staging,
       .limits = {.init_limit = kInitLimit,
                  .post = [this](std::function<void()> call) { gpu_->Post(std::move(call)); }},
       .on_path =
           [this](const std::string& /*peer*/, bool up, const std::string& why) {
             if (up) return;
             ++told_down_;
             if (why.empty()) fabric_.violation_("NCCL: a pair goes by TCP and nobody knows why");
             if (why.starts_with("NCCL is") || why == "the peer has no NCCL") ++told_versions_;
           },
       .on_lost = lost,
       .now = [this] { return host_.LocalNow(); }});
  BATON_CHECK(carrier.ok());
  carrier_ = *std::move(carrier);
  options_.transport.carrier = carrier_.get();
}

// Not under what was judged before and goes on by itself: launched copies, those of other ranks,
// frames that have come in part.
void FabricPort::OnNcclReceived() {
  if (ranks_.size > 1 || expected_.empty() || !stager_->idle() || gpu_->is_moving()) return;
  const auto& [ticket, expected] = *expected_.begin();
  if (expected.is_over_tcp) return;
  const ExpectArgs& args = expected.args;
  if (args.first_token >= args.num_tokens) return;
  if (world_.Hit(Fault::kStaleBlock)) memory_.Overtake(args.blocks.back().block);
}

bool FabricPort::HasLanded(const FrameHeader& frame) const {
  const auto it = expected_.find(frame.ticket);
  if (it == expected_.end()) return false;
  const FrameRange& range = frame.range;
  const int32_t block_size = memory_.block_size();
  const KvLayout& layout = memory_.cache().layout();
  const auto row = RowOf(layout, PlaceOf(layout, range.layer).group, it->second.args.blocks);
  for (int32_t p = range.first_token; p < range.first_token + range.num_tokens; ++p) {
    const BlockId block = row[p / block_size].block;
    for (int32_t h = 0; h < range.num_heads; ++h) {
      const int32_t head = range.first_head - memory_.heads().first + h;
      if (!memory_.HasReceived(range.layer, range.plane, block, head, p % block_size)) return false;
    }
  }
  return true;
}

void FabricPort::CheckLanded(const FrameHeader& frame) {
  if (!expected_.contains(frame.ticket) || HasLanded(frame)) return;
  fabric_.violation_("NCCL: an ack before its scatter has landed");
}

void FabricPort::CheckCarrier() {
  if (carrier_ == nullptr) return;
  const nccl::CarrierCounters counters = carrier_->counters();
  if (counters.pairs_condemned > 0) fabric_.violation_("NCCL: a carrier may not say such words");
  if (counters.pairs_failed + told_versions_ > told_down_) {
    fabric_.violation_("NCCL: a pair goes by TCP from now on and nobody was told");
  }
}

}  // namespace baton::sim
