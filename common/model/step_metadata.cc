#include "common/model/step_metadata.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/api/row_args.h"

namespace baton {
namespace {

// Arrays begin at lines of a cache, and the first behind the pieces that describe their copy.
constexpr int64_t kLine = 64;
constexpr int64_t kArrays = kLine;
static_assert(2 * sizeof(CopyPiece) <= kArrays);

// More would be gigabytes for tables that no step fills.
constexpr int64_t kMaxTableEntries = int64_t{64} << 20;

// Of each group of layers.
size_t EntriesOf(const StepRow& row, const StepBounds& bounds) {
  return row.block_table.size() / bounds.windows.size();
}

// Leading entries of a group that none of the row's queries sees: the first sees the farthest back.
int32_t NumPassed(const StepRow& row, const StepBounds& bounds, size_t group) {
  return TokensBehindWindow(bounds.windows[group], row.context_len) / bounds.block_size;
}

void CheckRow(const StepRow& row, const StepBounds& bounds) {
  const auto num_tokens = static_cast<int64_t>(row.tokens.size());
  BATON_CHECK(num_tokens >= 1 && row.context_len >= 0);
  BATON_CHECK(row.context_len + num_tokens <= bounds.max_model_len);
  const size_t entries = EntriesOf(row, bounds);
  BATON_CHECK(entries * bounds.windows.size() == row.block_table.size());
  BATON_CHECK(row.context_len + num_tokens <= static_cast<int64_t>(entries) * bounds.block_size);
  for (size_t g = 0; g < bounds.windows.size(); ++g) {
    const size_t num_passed = NumPassed(row, bounds, g);
    for (size_t i = 0; i < entries; ++i) {
      const BlockId block = row.block_table[g * entries + i];
      BATON_CHECK(block < bounds.num_blocks && (block >= 0 || i < num_passed));
    }
  }
  for (const int32_t token : row.tokens) BATON_CHECK(token >= 0 && token < bounds.vocab_size);
  BATON_CHECK(!row.sample || row.sampling != nullptr);
}

// A row's runs of wanted tokens: those of its prompt, and its last.
constexpr int64_t kWantedRunsOfARow = 2;

int64_t WantedRows(const StepCapacity& capacity) { return kWantedRunsOfARow * capacity.max_rows; }

}  // namespace

bool ScoresPrompt(const StepRow& row, int64_t index) {
  if (row.sampling == nullptr || row.sampling->params.num_prompt_logprobs < 0) return false;
  const int64_t position = row.context_len + index + 1;
  return position >= row.scores_from && position < std::ssize(row.sampling->prompt);
}

bool WantsLogits(const StepRow& row, int64_t index) {
  return ScoresPrompt(row, index) || (row.sample && index + 1 == std::ssize(row.tokens));
}

StepMetadata::Places StepMetadata::PlacesOf(const StepCapacity& capacity) {
  Places places;
  const auto take = [&places](int64_t count, size_t size) {
    const int64_t at = places.end;
    places.end += (count * static_cast<int64_t>(size) + kLine - 1) / kLine * kLine;
    return at;
  };
  const int64_t wanted_rows = WantedRows(capacity);
  places.tokens = take(capacity.max_tokens, sizeof(int32_t));
  places.positions = take(capacity.max_tokens, sizeof(int32_t));
  places.slots = take(capacity.num_groups * capacity.max_tokens, sizeof(int64_t));
  places.cu_seqlens_q = take(capacity.max_rows + 1, sizeof(int32_t));
  places.seq_lens = take(capacity.max_rows, sizeof(int32_t));
  places.table_starts = take(capacity.num_groups * capacity.max_rows, sizeof(int32_t));
  places.wanted_tokens = take(capacity.max_tokens, sizeof(int32_t));
  places.wanted_positions = take(capacity.max_tokens, sizeof(int32_t));
  places.wanted_cu_seqlens_q = take(wanted_rows + 1, sizeof(int32_t));
  places.wanted_seq_lens = take(wanted_rows, sizeof(int32_t));
  places.wanted_table_starts = take(capacity.num_groups * wanted_rows, sizeof(int32_t));
  places.block_table = take(capacity.max_rows * capacity.max_row_entries, sizeof(int32_t));
  return places;
}

absl::StatusOr<StepMetadata> StepMetadata::Create(Device& device, const StepCapacity& capacity) {
  BATON_CHECK(capacity.max_tokens > 0 && capacity.max_rows > 0 && capacity.max_row_blocks > 0);
  BATON_CHECK(capacity.num_groups > 0 && capacity.max_row_entries >= capacity.max_row_blocks);
  if (capacity.max_rows > kMaxTableEntries / capacity.max_row_entries) {
    return absl::ResourceExhaustedError(
        absl::StrCat("steps of ", capacity.max_rows, " sequences with ", capacity.max_row_entries,
                     " blocks each are more than a step can hold: lower --max-batch-sequences or "
                     "--max-model-len"));
  }
  const auto allocate = [&](int64_t bytes, MemoryKind kind) -> absl::StatusOr<Buffer> {
    absl::StatusOr<Buffer> memory = device.Allocate(bytes, kind);
    if (!absl::IsResourceExhausted(memory.status())) return memory;
    return absl::ResourceExhaustedError(
        absl::StrCat("for steps of ", capacity.max_rows, " sequences: ", memory.status().message(),
                     "; lower --max-batch-sequences or --max-model-len"));
  };
  const int64_t bytes = PlacesOf(capacity).end;
  ASSIGN_OR_RETURN(Buffer host, allocate(kArrays + bytes, MemoryKind::kPinned));
  Buffer on_device;
  if (!device.info().unified) {
    ASSIGN_OR_RETURN(on_device, allocate(bytes, MemoryKind::kDevice));
  }
  return StepMetadata(device, capacity, std::move(host), std::move(on_device));
}

StepMetadata::StepMetadata(Device& device, const StepCapacity& capacity, Buffer host,
                           Buffer on_device)
    : device_(&device),
      capacity_(capacity),
      places_(PlacesOf(capacity)),
      host_(std::move(host)),
      on_device_(std::move(on_device)) {}

template <typename T>
T* StepMetadata::Host(int64_t place) const {
  return host_.array<T>(kArrays + place);
}

template <typename T>
const T* StepMetadata::OnDevice(int64_t place) const {
  return on_device_.data() == nullptr ? Host<T>(place) : on_device_.array<T>(place);
}

void StepMetadata::AppendRow(const StepRow& row, const StepBounds& bounds) {
  AppendTable(row, bounds);
  const auto num_tokens = static_cast<int32_t>(row.tokens.size());
  for (int32_t i = 0; i < num_tokens; ++i) {
    const int64_t at = all_.num_tokens++;
    if (WantsLogits(row, i)) {
      Host<int32_t>(places_.wanted_tokens)[wanted_.num_tokens++] = static_cast<int32_t>(at);
    }
    Host<int32_t>(places_.tokens)[at] = row.tokens[i];
    const int32_t position = row.context_len + i;
    Host<int32_t>(places_.positions)[at] = row.is_long ? OtherRotation(position) : position;
  }
  Host<int32_t>(places_.seq_lens)[all_.num_seqs++] = row.context_len + num_tokens;
  Host<int32_t>(places_.cu_seqlens_q)[all_.num_seqs] = static_cast<int32_t>(all_.num_tokens);
  all_.max_seqlen_q = std::max(all_.max_seqlen_q, num_tokens);
  all_.max_seqlen_k = std::max(all_.max_seqlen_k, row.context_len + num_tokens);
}

// The row's blocks, and of each group where they begin and where the row's tokens go.
void StepMetadata::AppendTable(const StepRow& row, const StepBounds& bounds) {
  const auto entries = static_cast<int64_t>(EntriesOf(row, bounds));
  for (int64_t g = 0; g < capacity_.num_groups; ++g) {
    const BlockId* const table = row.block_table.data() + g * entries;
    int64_t* const slots = Host<int64_t>(places_.slots) + g * capacity_.max_tokens;
    for (int64_t i = 0; i < std::ssize(row.tokens); ++i) {
      const int64_t position = row.context_len + i;
      slots[all_.num_tokens + i] =
          int64_t{table[position / bounds.block_size]} * bounds.block_size +
          position % bounds.block_size;
    }
    // The first group's entries are all there, so those of others do not begin before the array.
    const int64_t first = g == 0 ? 0 : NumPassed(row, bounds, g);
    BATON_CHECK(num_table_entries_ >= first);
    Host<int32_t>(places_.table_starts)[g * capacity_.max_rows + all_.num_seqs] =
        static_cast<int32_t>(num_table_entries_ - first);
    std::copy(table + first, table + entries,
              Host<int32_t>(places_.block_table) + num_table_entries_);
    num_table_entries_ += entries - first;
  }
  BATON_CHECK(num_table_entries_ <= capacity_.max_rows * capacity_.max_row_entries);
}

// As kernels/api/batch.h pads a batch.
void StepMetadata::PadTo(int32_t rows, const StepBounds& bounds) {
  BATON_CHECK(all_.num_tokens == all_.num_seqs && all_.num_seqs <= rows);
  while (all_.num_seqs < rows) {
    const int64_t at = all_.num_seqs++;
    Host<int32_t>(places_.tokens)[at] = 0;
    Host<int32_t>(places_.positions)[at] = 0;
    for (int64_t g = 0; g < capacity_.num_groups; ++g) {
      Host<int64_t>(places_.slots)[g * capacity_.max_tokens + at] = -1;
      Host<int32_t>(places_.table_starts)[g * capacity_.max_rows + at] = 0;
    }
    Host<int32_t>(places_.seq_lens)[at] = 0;
    Host<int32_t>(places_.cu_seqlens_q)[at + 1] = static_cast<int32_t>(at) + 1;
  }
  all_.num_tokens = rows;
  all_.max_blocks = capacity_.max_row_blocks;
  all_.max_seqlen_q = 1;
  all_.max_seqlen_k = bounds.max_model_len;
}

// A wanted row's blocks are those of its sequence: no copy of them.
void StepMetadata::TakeTable(int64_t sequence, int64_t wanted_row) {
  for (int64_t g = 0; g < capacity_.num_groups; ++g) {
    Host<int32_t>(places_.wanted_table_starts)[g * WantedRows(capacity_) + wanted_row] =
        Host<int32_t>(places_.table_starts)[g * capacity_.max_rows + sequence];
  }
}

void StepMetadata::SelectWanted() {
  const int32_t* const cu = Host<int32_t>(places_.cu_seqlens_q);
  const int32_t* const positions = Host<int32_t>(places_.positions);
  int32_t* const wanted_cu = Host<int32_t>(places_.wanted_cu_seqlens_q);
  int32_t* const lens = Host<int32_t>(places_.wanted_seq_lens);
  wanted_cu[0] = 0;
  int64_t sequence = 0;
  int32_t next = -1;  // The token that would go on with the row.
  for (int64_t i = 0; i < wanted_.num_tokens; ++i) {
    const int32_t token = Host<int32_t>(places_.wanted_tokens)[i];
    const int64_t row_of = sequence;
    while (token >= cu[sequence + 1]) ++sequence;
    if (token != next || sequence != row_of) TakeTable(sequence, wanted_.num_seqs++);
    Host<int32_t>(places_.wanted_positions)[i] = positions[token];
    wanted_cu[wanted_.num_seqs] = static_cast<int32_t>(i) + 1;
    const int32_t length = std::max(positions[token], OtherRotation(positions[token])) + 1;
    lens[wanted_.num_seqs - 1] = length;
    const int32_t count = wanted_cu[wanted_.num_seqs] - wanted_cu[wanted_.num_seqs - 1];
    wanted_.max_seqlen_q = std::max(wanted_.max_seqlen_q, count);
    wanted_.max_seqlen_k = std::max(wanted_.max_seqlen_k, length);
    next = token + 1;
  }
  BATON_CHECK(wanted_.num_seqs <= kWantedRunsOfARow * all_.num_seqs);
}

absl::Status StepMetadata::Build(const StepPlan& plan, const StepBounds& bounds,
                                 int32_t padded_rows) {
  // The copy of the step before reads this memory until it has landed.
  ASSIGN_OR_RETURN(const bool landed, HasLanded());
  BATON_CHECK(landed);
  all_ = wanted_ = {};
  num_table_entries_ = 0;
  num_plan_tokens_ = 0;
  BATON_CHECK(std::ssize(bounds.windows) == capacity_.num_groups);
  for (const StepRow& row : plan.rows) {
    CheckRow(row, bounds);
    num_plan_tokens_ += static_cast<int64_t>(row.tokens.size());
    all_.max_blocks = std::max(all_.max_blocks, static_cast<int64_t>(EntriesOf(row, bounds)));
  }
  BATON_CHECK(std::max<int64_t>(num_plan_tokens_, padded_rows) <= capacity_.max_tokens);
  BATON_CHECK(std::max<int64_t>(std::ssize(plan.rows), padded_rows) <= capacity_.max_rows);
  BATON_CHECK(all_.max_blocks <= capacity_.max_row_blocks);
  Host<int32_t>(places_.cu_seqlens_q)[0] = 0;
  for (const StepRow& row : plan.rows) AppendRow(row, bounds);
  if (padded_rows > 0) PadTo(padded_rows, bounds);
  all_.tokens = OnDevice<int32_t>(places_.tokens);
  all_.positions = OnDevice<int32_t>(places_.positions);
  all_.all_slots = OnDevice<int64_t>(places_.slots);
  all_.slots_stride = capacity_.max_tokens;
  all_.cu_seqlens_q = OnDevice<int32_t>(places_.cu_seqlens_q);
  all_.seq_lens = OnDevice<int32_t>(places_.seq_lens);
  all_.block_table = wanted_.block_table = OnDevice<int32_t>(places_.block_table);
  all_.all_starts = OnDevice<int32_t>(places_.table_starts);
  all_.starts_stride = capacity_.max_rows;
  wanted_tokens_ = OnDevice<int32_t>(places_.wanted_tokens);
  SelectWanted();
  wanted_.max_blocks = all_.max_blocks;
  wanted_.positions = OnDevice<int32_t>(places_.wanted_positions);
  wanted_.cu_seqlens_q = OnDevice<int32_t>(places_.wanted_cu_seqlens_q);
  wanted_.seq_lens = OnDevice<int32_t>(places_.wanted_seq_lens);
  wanted_.all_starts = OnDevice<int32_t>(places_.wanted_table_starts);
  wanted_.starts_stride = WantedRows(capacity_);
  return absl::OkStatus();
}

absl::Status StepMetadata::Upload(const CopyPiece& also) {
  if (on_device_.data() == nullptr) return absl::OkStatus();
  constexpr int64_t kUnit = 8;
  const int64_t table = num_table_entries_ * int64_t{sizeof(int32_t)};
  auto* const pieces = host_.array<CopyPiece>();
  pieces[0] = {.from = host_.data() + kArrays,
            .to = on_device_.data(),
            .bytes = places_.block_table + (table + kUnit - 1) / kUnit * kUnit};
  pieces[1] = also;
  RETURN_IF_ERROR(device_->CopyPieces(Lane::kCompute, {pieces, also.bytes > 0 ? size_t{2} : 1}));
  ASSIGN_OR_RETURN(uploaded_, device_->MarkNow(Lane::kCompute));
  return absl::OkStatus();
}

}  // namespace baton
