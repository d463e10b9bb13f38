#include "common/model/step_results.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/model/device_memory.h"
#include "common/model/read_results.h"
#include "xxhash.h"

namespace baton {
namespace {

constexpr int64_t kUnit = 8;  // Of pieces.
constexpr int64_t kLogits = 64;
static_assert(sizeof(CopyPiece) <= kLogits);

int64_t Units(int64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

// Hands out a buffer from its start on.
class Places {
 public:
  explicit Places(const Buffer& memory) : memory_(memory) {}
  template <typename T>
  T* Take(int64_t count) {
    const int64_t at = used_;
    used_ += Units(count * static_cast<int64_t>(sizeof(T)));
    BATON_CHECK(used_ <= memory_.size_bytes());
    return reinterpret_cast<T*>(memory_.data() + at);
  }
  int64_t used() const { return used_; }

 private:
  const Buffer& memory_;
  int64_t used_ = 0;
};

// Those of `rows`, which ascend, in [first, end): [begin, begin + count) of the list.
std::pair<int64_t, int64_t> RangeOf(const std::vector<int32_t>& rows, int32_t first, int32_t end) {
  const auto begin = std::ranges::lower_bound(rows, first);
  return {begin - rows.begin(), std::lower_bound(begin, rows.end(), end) - begin};
}

TopTokens Behind(const TopTokens& top, int64_t rows) {
  if (top.stride == 0) return top;
  return {top.tokens + rows * top.stride, top.logits + rows * top.stride, top.stride};
}

// The largest num_top.
template <typename Row>
int64_t TopStride(const std::vector<Row>& rows) {
  int32_t most = 0;
  for (const Row& row : rows) most = std::max(most, row.num_top);
  return most;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepResults>> StepResults::Create(Device& device, ModelOps& cpu,
                                                                 const ModelInfo& info,
                                                                 const StepCapacity& capacity,
                                                                 const StepResults* other) {
  std::unique_ptr<StepResults> made(new StepResults(device, cpu, info));
  if (device.info().unified) return made;
  const int64_t rows = std::min<int64_t>(device.info().logit_rows, capacity.max_tokens);
  const int64_t bytes = Units(rows * info.vocab_size * int64_t{sizeof(float)});
  absl::Status room = made->MakeRoom(capacity);
  if (room.ok() && other == nullptr) room = made->MakeScratch(bytes);
  if (absl::IsResourceExhausted(room)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        room.message(), ", where the tokens of ", device.info().logit_rows,
        " rows at a time are chosen; lower --chunk-tokens below that, or take a larger GPU",
        other == nullptr ? "" : ", or --steps-in-flight 1"));
  }
  RETURN_IF_ERROR(room);
  const StepResults& owner = other == nullptr ? *made : *other;
  made->uploaded_ = owner.memory_.uploaded.data();
  made->on_device_.sample.adjusted = owner.on_device_.sample.adjusted;
  made->on_device_.sample.counts = owner.on_device_.sample.counts;
  return made;
}

StepResults::StepResults(Device& device, ModelOps& cpu, const ModelInfo& info)
    : device_(device),
      cpu_(cpu),
      vocab_size_(info.vocab_size),
      eos_token_ids_(info.eos_token_ids),
      unified_(device.info().unified),
      slice_rows_(device.info().logit_rows) {
  for (Rows* rows : {&on_device_, &on_host_}) {
    rows->sample.logits_stride = rows->score.logits_stride = vocab_size_;
    rows->sample.vocab_size = rows->score.vocab_size = info.vocab_size;
  }
}

absl::Status StepResults::MakeRoom(const StepCapacity& capacity) {
  const int64_t samples = capacity.max_rows, scores = capacity.max_tokens;
  const int64_t top = device_.info().max_top;
  const int64_t slice = std::min(slice_rows_, capacity.max_tokens) * vocab_size_;
  const auto bytes = static_cast<int64_t>(slice * sizeof(float));
  const auto pinned = [&](int64_t size) { return device_.Allocate(size, MemoryKind::kPinned); };
  ASSIGN_OR_RETURN(memory_.logits, pinned(kLogits + Units(bytes)));
  const int64_t list_bytes = samples * int64_t{sizeof(SampleRow)} +
                             Units(scores * int64_t{sizeof(ScoreRow)}) +
                             2 * samples * int64_t{sizeof(TakenToken)} + kListBytes + 3 * kUnit;
  ASSIGN_OR_RETURN(memory_.lists, pinned(list_bytes));
  ASSIGN_OR_RETURN(memory_.results,
                   pinned(samples * int64_t{sizeof(SampleResult)} +
                          scores * int64_t{sizeof(ScoreResult)} +
                          2 * (Units(samples * top * int64_t{sizeof(float)}) +
                               Units(scores * top * int64_t{sizeof(float)}))));
  Places places(memory_.results);
  on_device_.sample.results = places.Take<SampleResult>(samples);
  on_device_.score.results = places.Take<ScoreResult>(scores);
  const auto take_top = [&](int64_t rows) -> TopTokens {
    return {places.Take<int32_t>(rows * top), places.Take<float>(rows * top), top};
  };
  on_device_.sample.top = take_top(samples);
  on_device_.score.top = take_top(scores);
  return absl::OkStatus();
}

absl::Status StepResults::MakeScratch(int64_t bytes) {
  ASSIGN_OR_RETURN(memory_.uploaded,
                   device_.Allocate(memory_.lists.size_bytes(), MemoryKind::kDevice));
  ASSIGN_OR_RETURN(memory_.adjusted, device_.Allocate(bytes, MemoryKind::kDevice));
  ASSIGN_OR_RETURN(memory_.counts,
                   CopyToDevice(device_, std::vector<std::byte>(static_cast<size_t>(bytes))));
  on_device_.sample.adjusted = memory_.adjusted.floats(DType::kF32).f32();
  on_device_.sample.counts = memory_.counts.array<int32_t>();
  return absl::OkStatus();
}

void StepResults::Build(const StepPlan& plan) {
  results_.assign(plan.rows.size(), {});
  wanted_.clear();
  for (Rows* rows : {&on_device_, &on_host_}) {
    rows->lists.Clear();
    rows->sampled.clear();
    rows->scored.clear();
  }
  list_bytes_ = 0;
  taken_.clear();
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    AddRow(plan.rows[r], results_[r]);
    const int32_t follows = plan.rows[r].follows;
    if (follows >= 0) taken_.push_back({.row = follows, .to = static_cast<int32_t>(r)});
  }
  if (!unified_) PackLists();
  PlaceHostRows();
}

bool StepResults::IsForDevice(const StepRow& row) {
  const SamplingParams& params = row.sampling->params;
  if (unified_ || params.logits_digest || params.num_logprobs > device_.info().max_top) {
    return false;
  }
  const int64_t bytes = ListBytes(row, eos_token_ids_);
  if (list_bytes_ + bytes > kListBytes) return false;
  list_bytes_ += bytes;
  return true;
}

void StepResults::AddRow(const StepRow& row, RowResult& result) {
  result.sequence = row.sequence;
  const auto num_tokens = static_cast<int64_t>(row.tokens.size());
  // Sized before any score's place is taken.
  int64_t num_scores = 0;
  for (int64_t i = 0; i < num_tokens; ++i) num_scores += ScoresPrompt(row, i) ? 1 : 0;
  result.prompt_logprobs.resize(num_scores);
  size_t next_score = 0;
  for (int64_t i = 0; i < num_tokens; ++i) {
    const bool scores = ScoresPrompt(row, i), samples = row.sample && i + 1 == num_tokens;
    if (!scores && !samples) continue;
    const auto index = static_cast<int32_t>(wanted_.size());
    const auto logit_row = static_cast<int32_t>(index % slice_rows_);
    const int32_t position = row.context_len + static_cast<int32_t>(i) + 1;
    wanted_.push_back({.row = &row, .result = &result, .position = position});
    if (scores) {
      wanted_.back().score = &result.prompt_logprobs[next_score++];
      const bool fits = row.sampling->params.num_prompt_logprobs <= device_.info().max_top;
      Rows& rows = fits && !unified_ ? on_device_ : on_host_;
      rows.lists.AddScore(row, position, logit_row);
      rows.scored.push_back(index);
    }
    if (samples) {
      Rows& rows = IsForDevice(row) ? on_device_ : on_host_;
      rows.lists.AddSample(row, position, eos_token_ids_, logit_row);
      rows.sampled.push_back(index);
    }
  }
}

void StepResults::PackLists() {
  Places places(memory_.lists);
  const auto pack = [&]<typename T>(const std::vector<T>& list) -> const T* {
    T* const to = places.Take<T>(std::ssize(list));
    std::ranges::copy(list, to);
    const int64_t at = reinterpret_cast<std::byte*>(to) - memory_.lists.data();
    return reinterpret_cast<const T*>(uploaded_ + at);
  };
  const SampleLists& lists = on_device_.lists;
  on_device_.sample.rows = pack(lists.samples);
  on_device_.score.rows = pack(lists.scores);
  on_device_.sample.biases = pack(lists.biases);
  on_device_.sample.masks = pack(lists.masks);
  on_device_.sample.history = pack(lists.history);
  taken_tokens_ = pack(taken_);
  taken_history_ = pack(lists.taken);
  upload_ = {.from = memory_.lists.data(), .to = uploaded_, .bytes = places.used()};
}

bool StepResults::CanBeFollowed() const {
  return !unified_ && on_device_.sampled.size() == results_.size() && num_rows() <= slice_rows_;
}

absl::Status StepResults::TakeTokens(const StepResults& before, int32_t* tokens) {
  // Each row of that step has one sample.
  const SampleResult* const results = before.on_device_.sample.results;
  RETURN_IF_ERROR(device_.ops().TakeTokens(
      {.results = results, .taken = taken_tokens_, .count = std::ssize(taken_), .tokens = tokens}));
  return device_.ops().TakeTokens({.results = results,
                                   .taken = taken_history_,
                                   .count = std::ssize(on_device_.lists.taken),
                                   .tokens = const_cast<int32_t*>(on_device_.sample.history)});
}

void StepResults::PlaceHostRows() {
  const SampleLists& lists = on_host_.lists;
  const size_t samples = lists.samples.size(), scores = lists.scores.size();
  const int64_t sample_stride = TopStride(lists.samples), score_stride = TopStride(lists.scores);
  HostResults& results = host_results_;
  results.samples.resize(samples);
  results.scores.resize(scores);
  results.sample_tokens.resize(samples * sample_stride);
  results.sample_logits.resize(samples * sample_stride);
  results.score_tokens.resize(scores * score_stride);
  results.score_logits.resize(scores * score_stride);
  on_host_.sample.rows = lists.samples.data();
  on_host_.sample.biases = lists.biases.data();
  on_host_.sample.masks = lists.masks.data();
  on_host_.sample.history = lists.history.data();
  on_host_.sample.results = results.samples.data();
  on_host_.sample.top = {results.sample_tokens.data(), results.sample_logits.data(), sample_stride};
  on_host_.score.rows = lists.scores.data();
  on_host_.score.results = results.scores.data();
  on_host_.score.top = {results.score_tokens.data(), results.score_logits.data(), score_stride};
}

absl::Status StepResults::Call(ModelOps& ops, const Rows& rows, const float* logits) const {
  const auto [sample, num_samples] = RangeOf(rows.sampled, first_, end_);
  if (num_samples > 0) {
    SampleArgs args = rows.sample;
    args.logits = logits;
    args.rows += sample;
    args.num_rows = num_samples;
    args.results += sample;
    args.top = Behind(args.top, sample);
    RETURN_IF_ERROR(ops.Sample(args));
  }
  const auto [score, num_scores] = RangeOf(rows.scored, first_, end_);
  if (num_scores == 0) return absl::OkStatus();
  ScoreArgs args = rows.score;
  args.logits = logits;
  args.rows += score;
  args.num_rows = num_scores;
  args.results += score;
  args.top = Behind(args.top, score);
  return ops.Score(args);
}

// From the first to the last row of the slice that goes to the CPU, each to its own place.
absl::Status StepResults::CopySlice(const float* logits) {
  host_logits_ = memory_.logits.floats(DType::kF32, kLogits / int64_t{sizeof(float)}).f32();
  int64_t first = end_, end = first_;
  for (const auto* rows : {&on_host_.sampled, &on_host_.scored}) {
    const auto [begin, count] = RangeOf(*rows, first_, end_);
    if (count == 0) continue;
    first = std::min<int64_t>(first, (*rows)[begin]);
    end = std::max<int64_t>(end, (*rows)[begin + count - 1] + 1);
  }
  if (first >= end) return absl::OkStatus();
  const int64_t row_bytes = vocab_size_ * int64_t{sizeof(float)};
  const int64_t from = (first - first_) * row_bytes / kUnit * kUnit;
  auto* const piece = memory_.logits.array<CopyPiece>();
  *piece = {.from = reinterpret_cast<const std::byte*>(logits) + from,
            .to = memory_.logits.data() + kLogits + from,
            .bytes = Units((end - first_) * row_bytes) - from};
  return device_.CopyPieces(Lane::kCompute, {piece, 1});
}

absl::Status StepResults::Enqueue(int64_t first, int64_t count, Floats logits) {
  BATON_CHECK(first % slice_rows_ == 0 && count <= slice_rows_ && first + count <= num_rows());
  first_ = static_cast<int32_t>(first);
  end_ = static_cast<int32_t>(first + count);
  host_logits_ = logits.f32();
  if (unified_) return absl::OkStatus();
  RETURN_IF_ERROR(Call(device_.ops(), on_device_, logits.f32()));
  return CopySlice(logits.f32());
}

absl::Status StepResults::Finish() {
  DigestSlice();
  return Call(cpu_, on_host_, host_logits_);
}

void StepResults::DigestSlice() {
  const auto [begin, count] = RangeOf(on_host_.sampled, first_, end_);
  for (int64_t i = begin; i < begin + count; ++i) {
    LogitRow& wanted = wanted_[on_host_.sampled[i]];
    if (!wanted.row->sampling->params.logits_digest) continue;
    const float* const row = host_logits_ + on_host_.lists.samples[i].logit_row * vocab_size_;
    wanted.digest = XXH3_64bits(row, vocab_size_ * sizeof(float));
  }
}

void StepResults::ReadRows(const Rows& rows) {
  const auto count = [&](int32_t num_top) {
    return static_cast<int32_t>(std::min<int64_t>(num_top, vocab_size_));
  };
  for (size_t i = 0; i < rows.scored.size(); ++i) {
    const LogitRow& wanted = wanted_[rows.scored[i]];
    const ScoreResult& result = rows.score.results[i];
    const ScoreRow& row = rows.lists.scores[i];
    if (result.is_bad != 0) {
      wanted.result->status = BadLogits(wanted.position);
      continue;
    }
    *wanted.score = ReadScore(result, rows.score.top, static_cast<int64_t>(i), count(row.num_top),
                              wanted.position, row.token);
  }
  for (size_t i = 0; i < rows.sampled.size(); ++i) {
    const LogitRow& wanted = wanted_[rows.sampled[i]];
    const SampleResult& result = rows.sample.results[i];
    if (result.is_bad != 0) {
      wanted.result->status = BadLogits(wanted.position);
      continue;
    }
    TokenOutput& output = wanted.result->output;
    output = ReadSample(result, rows.sample.top, static_cast<int64_t>(i),
                        count(rows.lists.samples[i].num_top), wanted.position);
    output.logits_digest = wanted.digest;
    wanted.result->sampled = true;
  }
}

std::vector<RowResult> StepResults::Take() {
  ReadRows(on_device_);
  ReadRows(on_host_);
  wanted_.clear();
  return std::exchange(results_, {});
}

}  // namespace baton
