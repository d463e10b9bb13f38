#include <bit>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "tests/gpu/bench/gpu_bench.h"

namespace baton::bench {
namespace {

constexpr int32_t kVocab = 128256, kQuickVocab = 512;
constexpr int64_t kChoiceRows[] = {1, 8, 64, 128};
constexpr int64_t kQuickChoiceRows[] = {2};
constexpr int32_t kHistory = 512;  // Tokens that penalties look at.

struct Way {
  const char* name;
  SamplingParams params;
};

// Normal, with a deviation of 2.5: thousands of tokens within reach of a draw. By their bits, for
// only bits are uploaded.
std::vector<uint32_t> Logits(int64_t n) {
  Random random(17);
  std::vector<uint32_t> logits(n);
  for (uint32_t& x : logits) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += random.Unit();
    x = std::bit_cast<uint32_t>(static_cast<float>(sum * 2.5));
  }
  return logits;
}

class ChoiceBench {
 public:
  static absl::StatusOr<ChoiceBench> Create(GpuBench* bench) {
    ChoiceBench choices(bench);
    const int64_t most = choices.counts_of_rows_.back(), vocab = choices.vocab_;
    // All rows alike, but each in its own place: to make them takes the host longest.
    const std::vector<uint32_t> row = Logits(vocab);
    std::vector<uint32_t> logits;
    for (int64_t i = 0; i < most; ++i) logits.insert(logits.end(), row.begin(), row.end());
    ASSIGN_OR_RETURN(choices.logits_, bench->Upload(logits));
    ASSIGN_OR_RETURN(
        choices.results_,
        bench->device().Allocate(most * int64_t{sizeof(SampleResult)}, MemoryKind::kDevice));
    ASSIGN_OR_RETURN(choices.adjusted_,
                     bench->device().Allocate(most * vocab * 4, MemoryKind::kDevice));
    ASSIGN_OR_RETURN(choices.counts_, bench->Upload(std::vector<int32_t>(most * vocab, 0)));
    Random random(18);
    std::vector<int32_t> history(kHistory);
    for (int32_t& token : history) token = static_cast<int32_t>(random.Below(vocab));
    ASSIGN_OR_RETURN(choices.history_, bench->Upload(history));
    return choices;
  }

  absl::Status Measure() {
    const Way ways[] = {
        {"greedy", {.temperature = 0}},
        {"temperature 0.8", {.temperature = 0.8f}},
        {"top-p 0.95", {.temperature = 0.8f, .top_p = 0.95f}},
        {"top-k 50, top-p 0.95", {.temperature = 0.8f, .top_k = 50, .top_p = 0.95f}},
        {"min-p 0.05", {.temperature = 0.8f, .min_p = 0.05f}},
        {"top-p 0.95, penalties",
         {.temperature = 0.8f, .top_p = 0.95f, .repetition_penalty = 1.1f}},
    };
    for (const int64_t n : counts_of_rows_) {
      for (const Way& way : ways) RETURN_IF_ERROR(MeasureWay(way, n));
      RETURN_IF_ERROR(MeasureScore(n));
    }
    return absl::OkStatus();
  }

 private:
  explicit ChoiceBench(GpuBench* bench)
      : bench_(*bench),
        vocab_(bench->quick() ? kQuickVocab : kVocab),
        counts_of_rows_(bench->quick() ? std::span<const int64_t>(kQuickChoiceRows)
                                       : std::span<const int64_t>(kChoiceRows)) {}

  // Beside one look at each logit.
  GpuWork Work(absl::string_view name, int64_t n) const {
    return {.name = absl::StrCat(name, " ", n, " x ", vocab_),
            .bytes = 4.0 * static_cast<double>(n) * vocab_};
  }

  absl::Status MeasureWay(const Way& way, int64_t n) {
    std::vector<SampleRow> rows;
    for (int64_t i = 0; i < n; ++i) {
      SampleRow row = MakeSampleRow(way.params, static_cast<int32_t>(i));
      row.num_prompt = kHistory;
      row.logit_row = static_cast<int32_t>(i);
      rows.push_back(row);
    }
    ASSIGN_OR_RETURN(const Buffer there, bench_.Upload(rows));
    return bench_.Measure(Work(absl::StrCat("sample ", way.name), n), [&](int64_t) {
      return bench_.ops().Sample({.logits = logits_.floats(DType::kF32).f32(),
                                  .logits_stride = vocab_,
                                  .vocab_size = vocab_,
                                  .rows = there.array<SampleRow>(),
                                  .num_rows = n,
                                  .history = history_.array<int32_t>(),
                                  .results = results_.array<SampleResult>(),
                                  .adjusted = adjusted_.floats(DType::kF32).f32(),
                                  .counts = counts_.array<int32_t>()});
    });
  }

  absl::Status MeasureScore(int64_t n) {
    std::vector<ScoreRow> rows;
    for (int64_t i = 0; i < n; ++i) {
      rows.push_back({.logit_row = static_cast<int32_t>(i), .token = 1});
    }
    ASSIGN_OR_RETURN(const Buffer there, bench_.Upload(rows));
    return bench_.Measure(Work("score", n), [&](int64_t) {
      return bench_.ops().Score({.logits = logits_.floats(DType::kF32).f32(),
                                 .logits_stride = vocab_,
                                 .vocab_size = vocab_,
                                 .rows = there.array<ScoreRow>(),
                                 .num_rows = n,
                                 .results = results_.array<ScoreResult>()});
    });
  }

  GpuBench& bench_;
  const int32_t vocab_;
  const std::span<const int64_t> counts_of_rows_;
  Buffer logits_, results_, adjusted_, counts_, history_;
};

}  // namespace

absl::Status MeasureChoices(GpuBench& bench) {
  ASSIGN_OR_RETURN(ChoiceBench choices, ChoiceBench::Create(&bench));
  return choices.Measure();
}

}  // namespace baton::bench
