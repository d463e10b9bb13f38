#include "kernels/cpu/moe.h"

#include "kernels/cpu/for_lanes.h"
#include "kernels/cpu/lane_convert.h"
#include "kernels/cpu/lane_math.h"
#include "kernels/cpu/vec.h"

namespace baton::BATON_KERNEL_SET {
namespace {

// Whether a ranks above b.
bool Above(float a, float b) { return a > b || (a == a && b != b); }

// Puts `index` among the `count` best, the greatest key first; of equal ones the first to come.
// Returns how many of `best` there are now.
int64_t Insert(const float* keys, int32_t index, int64_t size, int64_t count, int32_t* best) {
  if (size == count && !Above(keys[index], keys[best[size - 1]])) return size;
  int64_t at = size < count ? size++ : size - 1;
  for (; at > 0 && Above(keys[index], keys[best[at - 1]]); --at) best[at] = best[at - 1];
  best[at] = index;
  return size;
}

void Softmax(const float* logits, int64_t n, float* scores) {
  float greatest = -__builtin_inff();
  for (int64_t e = 0; e < n; ++e) greatest = logits[e] > greatest ? logits[e] : greatest;
  const Vec offset = Broadcast(greatest);
  ForLanes(n, [&](int64_t i, int64_t left) {
    StoreUpTo(scores + i, Exp(LoadUpTo(logits + i, left) - offset), left);
  });
  // Of what was stored: lanes behind the row must not count.
  Vec sum = Zero();
  ForLanes(n, [&](int64_t i, int64_t left) { sum = sum + LoadUpTo(scores + i, left); });
  const Vec total = Broadcast(SumLanes(sum));
  ForLanes(n, [&](int64_t i, int64_t left) {
    StoreUpTo(scores + i, LoadUpTo(scores + i, left) / total, left);
  });
}

void Sigmoid(const float* logits, int64_t n, float* scores) {
  const Vec one = Broadcast(1.0f);
  ForLanes(n, [&](int64_t i, int64_t left) {
    StoreUpTo(scores + i, one / (one + Exp(Zero() - LoadUpTo(logits + i, left))), left);
  });
}

// The experts of the best groups, as one flag per group.
void ChooseGroups(const MoeRoutingArgs& args, const float* keys, bool* chosen) {
  const int64_t size = args.num_experts / args.num_groups;
  const int64_t counted = args.selection_bias == nullptr ? 1 : 2;
  float ranks[kMaxExperts];
  int32_t best[kMaxExperts];
  int64_t num_best = 0;
  for (int64_t g = 0; g < args.num_groups; ++g) {
    int32_t greatest[2] = {};
    int64_t found = 0;
    for (int64_t e = g * size; e < (g + 1) * size; ++e) {
      found = Insert(keys, static_cast<int32_t>(e), found, counted, greatest);
    }
    ranks[g] = keys[greatest[0]] + (found == 2 ? keys[greatest[1]] : 0.0f);
    num_best = Insert(ranks, static_cast<int32_t>(g), num_best, args.top_groups, best);
    chosen[g] = false;
  }
  for (int64_t i = 0; i < num_best; ++i) chosen[best[i]] = true;
}

void RouteToken(const MoeRoutingArgs& args, const float* logits, int32_t* ids, float* weights) {
  float scores[kMaxExperts];
  (args.scoring == MoeScoring::kSoftmax ? Softmax : Sigmoid)(logits, args.num_experts, scores);
  float biased[kMaxExperts];
  const float* keys = logits;
  if (args.selection_bias != nullptr) {
    for (int64_t e = 0; e < args.num_experts; ++e) biased[e] = scores[e] + args.selection_bias[e];
    keys = biased;
  }
  bool chosen[kMaxExperts];
  ChooseGroups(args, keys, chosen);
  const int64_t group_size = args.num_experts / args.num_groups;
  int64_t size = 0;
  for (int64_t g = 0; g < args.num_groups; ++g) {
    if (!chosen[g]) continue;
    for (int64_t e = g * group_size; e < (g + 1) * group_size; ++e) {
      size = Insert(keys, static_cast<int32_t>(e), size, args.top_k, ids);
    }
  }
  float sum = 0;
  for (int64_t c = 0; c < args.top_k; ++c) sum += scores[ids[c]];
  const float divisor = args.renormalize ? sum + 1e-20f : 1.0f;
  for (int64_t c = 0; c < args.top_k; ++c) {
    weights[c] = scores[ids[c]] / divisor * args.scaling_factor;
  }
}

// The choices of token t that have a row, in the order in which they add.
int64_t OrderOf(const MoeCombineArgs& args, int64_t t, int64_t* order) {
  const int32_t* ids = args.expert_ids + t * args.top_k;
  const int32_t* rows = args.row_positions + t * args.top_k;
  int64_t size = 0;
  for (int64_t c = 0; c < args.top_k; ++c) {
    if (rows[c] < 0) continue;
    int64_t at = size++;
    for (; at > 0 && ids[order[at - 1]] > ids[c]; --at) order[at] = order[at - 1];
    order[at] = c;
  }
  return size;
}

}  // namespace

void MoeRouting(const MoeRoutingArgs& args, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    RouteToken(args, args.logits + t * args.logits_stride, args.expert_ids + t * args.top_k,
               args.weights + t * args.top_k);
  }
}

void MoeCombine(const MoeCombineArgs& args, int64_t begin, int64_t end) {
  int64_t order[kMaxExperts];
  const float* all = args.y.f32();
  const float* shared = args.shared.f32();
  float* all_out = args.out.f32();
  for (int64_t t = begin; t < end; ++t) {
    const int64_t size = OrderOf(args, t, order);
    const float* weights = args.weights + t * args.top_k;
    const int32_t* rows = args.row_positions + t * args.top_k;
    float* out = all_out + t * args.out_stride;
    ForLanes(args.dim, [&](int64_t i, int64_t left) {
      Vec sums[kMaxRanks];
      for (int32_t s = 0; s < args.segments; ++s) {
        sums[s] = Zero();
        for (int64_t j = 0; j < size; ++j) {
          const float* y = all + s * args.segment_stride + rows[order[j]] * args.y_stride + i;
          sums[s] = Fma(Broadcast(weights[order[j]]), LoadUpTo(y, left), sums[s]);
        }
      }
      Vec sum = SumAsTree(sums, args.segments);
      if (shared != nullptr) sum = sum + LoadUpTo(shared + t * args.dim + i, left);
      StoreUpTo(out + i, sum, left);
    });
    RoundRow(args.round_to, out, args.dim);
  }
}

}  // namespace baton::BATON_KERNEL_SET
