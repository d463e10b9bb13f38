#include "common/base/status.h"
#include "kernels/api/check_shapes.h"
#include "kernels/api/require.h"

namespace baton {
namespace {

absl::Status CheckTop(const TopTokens& top) {
  RETURN_IF_ERROR(RequireStride(top.stride, 0, "top.stride"));
  if (top.stride == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(top.tokens, "top.tokens"));
  return RequirePointer(top.logits, "top.logits");
}

// What both have.
template <typename Args>
absl::Status CheckLogitRows(const Args& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_rows, 0, "num_rows"));
  RETURN_IF_ERROR(RequireIn(args.vocab_size, 1, kMaxVocabulary, "vocab_size"));
  if (args.num_rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.logits, "logits"));
  RETURN_IF_ERROR(RequireStride(args.logits_stride, args.vocab_size, "logits_stride"));
  RETURN_IF_ERROR(RequirePointer(args.rows, "rows"));
  RETURN_IF_ERROR(RequirePointer(args.results, "results"));
  return CheckTop(args.top);
}

}  // namespace

absl::Status CheckShapes(const SampleArgs& args) {
  RETURN_IF_ERROR(CheckLogitRows(args));
  // One is of no use without the other.
  if (args.adjusted != nullptr) return RequirePointer(args.counts, "counts");
  if (args.counts != nullptr) return RequirePointer(args.adjusted, "adjusted");
  return absl::OkStatus();
}

absl::Status CheckShapes(const ScoreArgs& args) { return CheckLogitRows(args); }

absl::Status CheckShapes(const TakeTokensArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.count, 0, "count"));
  if (args.count == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.results, "results"));
  RETURN_IF_ERROR(RequirePointer(args.taken, "taken"));
  return RequirePointer(args.tokens, "tokens");
}

}  // namespace baton
