#include <algorithm>
#include <span>

#include "common/base/status.h"
#include "kernels/api/require.h"
#include "kernels/cpu/check_contents.h"

namespace baton {
namespace {

// A row's own error, named only where there is one.
absl::Status OfRow(int64_t row, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("rows[", row, "].", status.message()));
}

absl::Status CheckToken(int32_t token, int32_t vocab_size, FieldName field) {
  if (token >= 0 && token < vocab_size) return absl::OkStatus();
  return Require(false, field, token, absl::StrCat("in [0, ", vocab_size, ")"));
}

absl::Status CheckTop(int32_t num_top, int32_t least, const TopTokens& top, int32_t vocab_size) {
  RETURN_IF_ERROR(RequireAtLeast(num_top, least, "num_top"));
  return Require(std::min(num_top, vocab_size) <= top.stride, "num_top", num_top,
                 "at most top.stride = ", top.stride);
}

// Entries [first, first + count) of what `all` points to.
absl::Status CheckList(absl::string_view name, const void* all, int32_t first, int32_t count) {
  if (count == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequireAtLeast(count, 0, {"num_", name}));
  RETURN_IF_ERROR(RequireAtLeast(first, 0, {"first_", name}));
  return RequirePointer(all, {"the array of first_", name});
}

absl::Status CheckHistory(absl::string_view name, const SampleArgs& args, int32_t first,
                          int32_t count) {
  RETURN_IF_ERROR(CheckList(name, args.history, first, count));
  if (count == 0) return absl::OkStatus();
  const auto [least, greatest] =
      std::ranges::minmax(std::span(args.history + first, static_cast<size_t>(count)));
  RETURN_IF_ERROR(CheckToken(least, args.vocab_size, name));
  return CheckToken(greatest, args.vocab_size, name);
}

absl::Status CheckRow(const SampleArgs& args, const SampleRow& row) {
  RETURN_IF_ERROR(RequireAtLeast(row.logit_row, 0, "logit_row"));
  RETURN_IF_ERROR(RequireAtLeast(row.top_k, 0, "top_k"));
  RETURN_IF_ERROR(CheckTop(row.num_top, -1, args.top, args.vocab_size));
  RETURN_IF_ERROR(CheckList("bias", args.biases, row.first_bias, row.num_bias));
  for (int32_t i = 0; i < row.num_bias; ++i) {
    RETURN_IF_ERROR(CheckToken(args.biases[row.first_bias + i].token, args.vocab_size, "bias"));
  }
  RETURN_IF_ERROR(CheckList("mask", args.masks, row.first_mask, row.num_mask));
  RETURN_IF_ERROR(CheckHistory("prompt", args, row.first_prompt, row.num_prompt));
  return CheckHistory("emitted", args, row.first_emitted, row.num_emitted);
}

absl::Status CheckRow(const ScoreArgs& args, const ScoreRow& row) {
  RETURN_IF_ERROR(RequireAtLeast(row.logit_row, 0, "logit_row"));
  RETURN_IF_ERROR(CheckToken(row.token, args.vocab_size, "token"));
  return CheckTop(row.num_top, 0, args.top, args.vocab_size);
}

template <typename Args>
absl::Status CheckRows(const Args& args) {
  for (int64_t i = 0; i < args.num_rows; ++i) {
    RETURN_IF_ERROR(OfRow(i, CheckRow(args, args.rows[i])));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckContents(const SampleArgs& args) { return CheckRows(args); }

absl::Status CheckContents(const ScoreArgs& args) { return CheckRows(args); }

absl::Status CheckContents(const TakeTokensArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) {
    RETURN_IF_ERROR(OfRow(i, RequireAtLeast(args.taken[i].row, 0, "row")));
    RETURN_IF_ERROR(OfRow(i, RequireAtLeast(args.taken[i].to, 0, "to")));
  }
  return absl::OkStatus();
}

}  // namespace baton
