#include "tests/kernels/api/shapes_fixture.h"

namespace baton {
namespace {

template <typename Args>
Args LogitRows() {
  Args args;
  args.logits = Nowhere<float>();
  args.logits_stride = 40;
  args.vocab_size = 40;
  args.rows = Nowhere<std::remove_pointer_t<decltype(args.rows)>>();
  args.num_rows = 3;
  args.results = Nowhere<std::remove_pointer_t<decltype(args.results)>>();
  return args;
}

template <typename Args>
void ExpectLogitRowsChecked() {
  const auto args = LogitRows<Args>();
  ExpectRefused(args, [](auto& a) { a.num_rows = -1; }, "num_rows = -1: must be at least 0");
  ExpectRefused(args, [](auto& a) { a.vocab_size = 0; }, "vocab_size = 0: must be in [1, 524288]");
  ExpectRefused(args, [](auto& a) { a.vocab_size = kMaxVocabulary + 1; }, "vocab_size = 524289");
  ExpectRefused(args, [](auto& a) { a.logits = nullptr; }, "logits = null");
  ExpectRefused(
      args, [](auto& a) { a.logits_stride = 39; }, "logits_stride = 39: must be at least 40");
  ExpectRefused(args, [](auto& a) { a.rows = nullptr; }, "rows = null");
  ExpectRefused(args, [](auto& a) { a.results = nullptr; }, "results = null");
  ExpectRefused(args, [](auto& a) { a.top.stride = -1; }, "top.stride = -1");
  ExpectRefused(args, [](auto& a) { a.top = {nullptr, Nowhere<float>(), 1}; }, "top.tokens = null");
  ExpectRefused(
      args,
      [](auto& a) {
        a.top = {Nowhere<int32_t>(), nullptr, 1};
      },
      "top.logits = null");
  ExpectAllowed(Args{.vocab_size = 40});  // No rows, and nothing that they need.
}

TEST(CheckSampleShapesTest, RowsOfLogitsAreCheckedWithoutTheirMemory) {
  ExpectLogitRowsChecked<SampleArgs>();
  ExpectLogitRowsChecked<ScoreArgs>();
}

TEST(CheckSampleShapesTest, TokensToTakeAreCheckedWithoutTheirMemory) {
  const TakeTokensArgs args{.results = Nowhere<SampleResult>(),
                            .taken = Nowhere<TakenToken>(),
                            .count = 2,
                            .tokens = Nowhere<int32_t>()};
  ExpectRefused(args, [](auto& a) { a.count = -1; }, "count = -1: must be at least 0");
  ExpectRefused(args, [](auto& a) { a.results = nullptr; }, "results = null");
  ExpectRefused(args, [](auto& a) { a.taken = nullptr; }, "taken = null");
  ExpectRefused(args, [](auto& a) { a.tokens = nullptr; }, "tokens = null");
  ExpectAllowed(TakeTokensArgs{});
}

TEST(CheckSampleShapesTest, ScratchOfADeviceIsWholeOrThereIsNone) {
  auto args = LogitRows<SampleArgs>();
  args.adjusted = Nowhere<float>();
  args.counts = Nowhere<int32_t>();
  ExpectRefused(args, [](auto& a) { a.counts = nullptr; }, "counts = null");
  ExpectRefused(args, [](auto& a) { a.adjusted = nullptr; }, "adjusted = null");
}

}  // namespace
}  // namespace baton
