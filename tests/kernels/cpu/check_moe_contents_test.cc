#include "kernels/cpu/check_args.h"
#include "tests/kernels/moe_problem.h"

namespace baton {
namespace {

template <typename Args>
void ExpectRefused(const Args& args, const std::string& message) {
  const absl::Status status = CheckArgs(args);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find(message), std::string::npos)
      << "wanted: " << message << "\ngot: " << status;
}

float floats[64];
int32_t ints[64];

MoeRoutingArgs Routing() {
  return {.logits = floats,
          .logits_stride = 8,
          .num_tokens = 2,
          .num_experts = 8,
          .top_k = 2,
          .expert_ids = ints,
          .weights = floats};
}

TEST(CheckMoeArgsTest, RoutingNamesTheFieldItRefuses) {
  EXPECT_TRUE(CheckArgs(Routing()).ok());
  const auto refused = [](auto change, const std::string& message) {
    MoeRoutingArgs args = Routing();
    change(args);
    ExpectRefused(args, message);
  };
  using A = MoeRoutingArgs;
  refused([](A& a) { a.num_tokens = -1; }, "num_tokens = -1: must be in [0, 1073741823]");
  refused([](A& a) { a.num_tokens = 1 << 30; },
          "num_tokens = 1073741824: must be in [0, 1073741823]");
  refused([](A& a) { a.num_experts = 0; }, "num_experts = 0: must be in [1, 1024]");
  refused([](A& a) { a.num_experts = 1025; }, "num_experts = 1025: must be in [1, 1024]");
  refused([](A& a) { a.top_k = 0; }, "top_k = 0: must be in [1, 8]");
  refused([](A& a) { a.top_k = 9; }, "top_k = 9: must be in [1, 8]");
  refused([](A& a) { a.scoring = static_cast<MoeScoring>(2); },
          "scoring = 2: must be SOFTMAX or SIGMOID");
  refused([](A& a) { a.num_groups = 3; }, "num_groups = 3: must be a divisor of num_experts = 8");
  refused([](A& a) { a.num_groups = 0; }, "num_groups = 0");
  refused([](A& a) { a.top_groups = 2; }, "top_groups = 2: must be in [1, 1]");
  refused([](A& a) { a.num_groups = 8; },
          "top_k = 2: must be at most the experts of top_groups groups, 1");
  refused([](A& a) { a.scaling_factor = NAN; }, "scaling_factor = nan: must be finite");
  refused([](A& a) { a.logits = nullptr; }, "logits = null");
  refused([](A& a) { a.expert_ids = nullptr; }, "expert_ids = null");
  refused([](A& a) { a.weights = nullptr; }, "weights = null");
  refused([](A& a) { a.logits_stride = 7; }, "logits_stride = 7: must be at least 8");
  EXPECT_TRUE(CheckArgs(A{.num_experts = 8, .top_k = 2}).ok());
}

TEST(CheckMoeArgsTest, AlignNamesTheFieldItRefuses) {
  const int32_t ids[] = {3, 0, -1, 2}, map[] = {0, -1, 1, 2};
  int32_t order[4], positions[4], offsets[5];
  const MoeAlignArgs good{.expert_ids = ids,
                          .num_tokens = 2,
                          .top_k = 2,
                          .num_experts = 4,
                          .num_local_experts = 4,
                          .row_order = order,
                          .row_positions = positions,
                          .expert_offsets = offsets};
  EXPECT_TRUE(CheckArgs(good).ok());
  const auto refused = [&](auto change, const std::string& message) {
    MoeAlignArgs args = good;
    change(args);
    ExpectRefused(args, message);
  };
  using A = MoeAlignArgs;
  refused([](A& a) { a.num_tokens = INT32_MAX; }, "num_tokens = 2147483647: must be in [0, 107374");
  refused([](A& a) { a.top_k = 0; }, "top_k = 0");
  refused([](A& a) { a.num_experts = a.num_local_experts = 3; },
          "expert_ids[0] = 3: must be less than num_experts = 3");
  refused([](A& a) { a.num_local_experts = 3; },
          "num_local_experts = 3: must be num_experts without an expert_map, which is 4");
  const auto mapped = [&](int64_t local) {
    return [&map, local](A& a) {
      a.expert_map = map;
      a.num_local_experts = local;
    };
  };
  refused(mapped(2), "expert_map[3] = 2: must be in [-1, 1]");
  refused(mapped(-1), "num_local_experts = -1");
  const int32_t twice[] = {0, -1, 1, 0}, below[] = {0, -2, 1, 2};
  refused(
      [&](A& a) {
        a.expert_map = twice;
        a.num_local_experts = 2;
      },
      "expert_map[3] = 0: must be a local expert that no other has");
  refused([&](A& a) { a.expert_map = below; }, "expert_map[1] = -2: must be in [-1, 3]");
  refused([](A& a) { a.expert_ids = nullptr; }, "expert_ids = null");
  refused([](A& a) { a.row_order = nullptr; }, "row_order = null");
  refused([](A& a) { a.row_positions = nullptr; }, "row_positions = null");
  refused([](A& a) { a.expert_offsets = nullptr; }, "expert_offsets = null");
}

std::vector<PackedMatrix> TwoMatrices(PackedMatrix second) {
  std::vector<PackedMatrix> out;
  out.push_back(*AllocatePanels(5, 3, DType::kF32));
  out.push_back(std::move(second));
  return out;
}

TEST(CheckMoeArgsTest, ExpertGemmNamesTheFieldItRefuses) {
  const auto weights = TwoMatrices(*AllocatePanels(5, 3, DType::kF32));
  int32_t offsets[] = {0, 2, 3}, order[] = {0, 3, 2};
  const ExpertGemmArgs good{.a = floats,
                            .a_stride = 3,
                            .num_a_rows = 2,
                            .row_order = order,
                            .top_k = 2,
                            .expert_offsets = offsets,
                            .num_experts = 2,
                            .weights = weights.data(),
                            .out = floats,
                            .out_stride = 5};
  EXPECT_TRUE(CheckArgs(good).ok());
  const auto refused = [&](auto change, const std::string& message) {
    ExpertGemmArgs args = good;
    change(args);
    ExpectRefused(args, message);
  };
  using A = ExpertGemmArgs;
  refused([](A& a) { a.num_experts = -1; }, "num_experts = -1: must be in [0, 1024]");
  refused([](A& a) { a.num_a_rows = 1; }, "row_order[1] = 3: must be in [0, num_a_rows * top_k)");
  refused([](A& a) { a.num_a_rows = -1; }, "num_a_rows = -1");
  refused([](A& a) { a.row_order = nullptr; },
          "num_a_rows = 2: must be at least expert_offsets[num_experts] = 3");
  refused([](A& a) { a.top_k = 0; }, "top_k = 0");
  refused([](A& a) { a.a_rounded_to = DType::kFp8E4M3; }, "a_rounded_to");
  refused([](A& a) { a.a_stride = 2; }, "a_stride = 2: must be at least 3");
  refused([](A& a) { a.out_stride = 4; }, "out_stride = 4: must be at least 5");
  refused([](A& a) { a.a = nullptr; }, "a = null");
  refused([](A& a) { a.out = nullptr; }, "out = null");
  refused([](A& a) { a.weights = nullptr; }, "weights = null");
  refused([](A& a) { a.expert_offsets = nullptr; }, "expert_offsets = null");
  refused([](A& a) { a.segments = 3; }, "segments = 3: must be 1, 2, 4 or 8");
  refused([](A& a) { a.segments = 2; },
          "segments = 2: must be 1, or each of a multiple of 32 of weights.k = 3");
  refused([](A& a) { a.first_segment = 1; }, "first_segment = 1: must be in [0, 0]");
  refused([](A& a) { a.first_segment = -1; }, "first_segment = -1: must be in [0, 0]");
  refused([](A& a) { a.num_segments = 2; }, "num_segments = 2: must be in [1, 1]");
  refused([](A& a) { a.num_segments = 0; }, "num_segments = 0: must be in [1, 1]");
  offsets[1] = 4;
  refused([](A&) {}, "expert_offsets[2] = 3: must be at least 4");
  offsets[1] = 2;
  offsets[0] = 1;
  refused([](A&) {}, "expert_offsets[0] = 1: must be 0");
  offsets[0] = 0;
  order[2] = -1;
  refused([](A&) {}, "row_order[2] = -1");
}

TEST(CheckMoeArgsTest, SegmentsOfExpertGemmLieApart) {
  std::vector<PackedMatrix> wide;
  wide.push_back(*AllocatePanels(5, 256, DType::kF32));
  const int32_t offsets[] = {0, 3};
  static float a[3 * 256], out[8 * 3 * 6];
  const ExpertGemmArgs good{.a = a,
                            .a_stride = 256,
                            .num_a_rows = 3,
                            .expert_offsets = offsets,
                            .num_experts = 1,
                            .weights = wide.data(),
                            .out = out,
                            .out_stride = 6,
                            .segments = 8,
                            .first_segment = 2,
                            .num_segments = 6,
                            .segment_stride = 18};
  EXPECT_EQ(CheckArgs(good), absl::OkStatus());
  const auto refused = [&](auto change, const std::string& message) {
    ExpertGemmArgs args = good;
    change(args);
    ExpectRefused(args, message);
  };
  using A = ExpertGemmArgs;
  refused([](A& x) { x.num_segments = 7; }, "num_segments = 7: must be in [1, 6]");
  refused([](A& x) { x.first_segment = 8; }, "first_segment = 8: must be in [0, 7]");
  refused([](A& x) { x.segment_stride = 17; }, "segment_stride = 17: must be at least 3 rows of 6");
  refused([](A& x) { x.segment_stride = 0; }, "segment_stride = 0: must be at least 3 rows of 6");
  refused([](A& x) { x.segment_stride = INT64_MIN; }, "segment_stride = -9223372036854775808");
  refused([](A& x) { x.segment_stride = INT64_MAX; },
          "segment_stride = 9223372036854775807: must be at most");
  refused([](A& x) { x.bias = floats; }, "segments = 8: must be 1 with a bias");
  refused([](A& x) { x.a_stride = 255; }, "a_stride = 255: must be at least 256");
  // One has no next.
  ExpertGemmArgs last = good;
  last.first_segment = 7;
  last.num_segments = 1;
  last.segment_stride = 0;
  EXPECT_EQ(CheckArgs(last), absl::OkStatus());
}

TEST(CheckMoeArgsTest, MatricesThatAreEmptyOrUnlikeTheFirstAreRefused) {
  const int32_t offsets[] = {0, 0, 0};
  const auto refused = [&](PackedMatrix second, const std::string& message) {
    const auto weights = TwoMatrices(std::move(second));
    ExpectRefused(
        ExpertGemmArgs{.expert_offsets = offsets, .num_experts = 2, .weights = weights.data()},
        message);
  };
  refused({}, "weights[1].data = null");
  refused(*AllocatePanels(5, 3, DType::kFp8E4M3), "weights[1].dtype = 3: must be f32, f16 or bf16");
  refused(*AllocatePanels(5, 3, DType::kBF16),
          "weights[1].dtype = 2: must be that of weights[0], 0");
  refused(*AllocatePanels(4, 3, DType::kF32), "weights[1].n = 4: must be that of weights[0], 5");
  refused(*AllocatePanels(5, 2, DType::kF32), "weights[1].k = 2: must be that of weights[0], 3");
  const PackedMatrix fp8 = *AllocatePanels(5, 3, DType::kFp8E5M2);
  ExpectRefused(GemmArgs{.weights = &fp8}, "weights.dtype = 4: must be f32, f16 or bf16");
}

TEST(CheckMoeArgsTest, CombineNamesTheFieldItRefuses) {
  int32_t positions[] = {0, -1, 3, 2};
  const MoeCombineArgs good{.y = floats,
                            .y_stride = 8,
                            .num_rows = 4,
                            .expert_ids = ints,
                            .row_positions = positions,
                            .weights = floats,
                            .num_tokens = 2,
                            .top_k = 2,
                            .dim = 8,
                            .out = floats,
                            .out_stride = 8};
  EXPECT_TRUE(CheckArgs(good).ok());
  const auto refused = [&](auto change, const std::string& message) {
    MoeCombineArgs args = good;
    change(args);
    ExpectRefused(args, message);
  };
  using A = MoeCombineArgs;
  refused([](A& a) { a.num_tokens = -1; }, "num_tokens = -1");
  refused([](A& a) { a.top_k = 1025; }, "top_k = 1025: must be in [1, 1024]");
  refused([](A& a) { a.dim = 0; }, "dim = 0");
  refused([](A& a) { a.num_rows = 3; }, "row_positions[2] = 3: must be less than num_rows = 3");
  refused([](A& a) { a.num_rows = -1; }, "num_rows = -1");
  refused([](A& a) { a.round_to = DType::kFp8E5M2; }, "round_to = 4");
  refused([](A& a) { a.y = nullptr; }, "y = null");
  refused([](A& a) { a.y_stride = 7; }, "y_stride = 7: must be at least 8");
  refused([](A& a) { a.out_stride = 7; }, "out_stride = 7: must be at least 8");
  refused([](A& a) { a.segments = 0; }, "segments = 0: must be 1, 2, 4 or 8");
  refused([](A& a) { a.segments = 16; }, "segments = 16: must be 1, 2, 4 or 8");
  refused([](A& a) { a.segments = 2, a.segment_stride = 31; },
          "segment_stride = 31: must be at least 4 rows of 8");
  refused([](A& a) { a.shared = a.out, a.out_stride = 9; },
          "out_stride = 9: must be dim = 8 where shared is out");
  refused([](A& a) { a.expert_ids = nullptr; }, "expert_ids = null");
  refused([](A& a) { a.row_positions = nullptr; }, "row_positions = null");
  refused([](A& a) { a.weights = nullptr; }, "weights = null");
  refused([](A& a) { a.out = nullptr; }, "out = null");
}

}  // namespace
}  // namespace baton
