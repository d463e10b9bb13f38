// Attention out of other operators, of a Device, over arrays that lie in its memory: who reads them
// on the host ends with an error of the emulation.
#include <optional>

#include "kernels/api/cascade_attention.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/cuda/cuda_device_fixture.h"
#include "tests/kernels/cuda/device_operands.h"

namespace baton::cuda {
namespace {

// The arguments of a cascade over a problem, and what they point to.
class CascadeThere {
 public:
  CascadeThere(Device& device, AttentionProblem& p, DType out_type, int32_t prefix_len)
      : out(out_type, p.out_size()),
        lse_(std::vector<float>(p.total_q * p.shape.heads, NAN)),
        q_(p.shape.compute, p.q),
        starts_(p.cu_q),
        lens_(p.seq_lens),
        table_(p.table),
        sinks_(p.sinks),
        k_(p.Args(nullptr).k_cache, 0),
        v_(p.Args(nullptr).v_cache, 0) {
    VarlenAttentionArgs& a = args.attention;
    a = p.Args(nullptr);
    a.q = q_;
    a.cu_seqlens_q = starts_.data();
    a.num_tokens = p.total_q;
    a.seq_lens = lens_.data();
    for (size_t s = 0; s < p.seq_lens.size(); ++s) {
      a.max_seqlen_q = std::max(a.max_seqlen_q, p.shape.sequences[s].first);
      a.max_seqlen_k = std::max(a.max_seqlen_k, p.seq_lens[s]);
    }
    a.block_table = table_.data();
    a.k_cache = k_.plane();
    a.v_cache = v_.plane();
    if (p.shape.sinks) a.scores.sinks = sinks_.data();
    a.out = out;
    a.lse = lse_.data();
    args.common_prefix_len = prefix_len;
    args.workspace_bytes = CascadeWorkspaceBytes(args);
    auto workspace = device.Allocate(args.workspace_bytes, MemoryKind::kDevice);
    EXPECT_TRUE(workspace.ok()) << workspace.status();
    workspace_ = *std::move(workspace);
    args.workspace = workspace_.data();
  }
  std::vector<float> lse() const { return lse_.Read(); }
  void SetLens(const std::vector<int32_t>& lens) {
    ASSERT_EQ(cudaMemcpy(lens_.data(), lens.data(), lens.size() * 4, cudaMemcpyHostToDevice),
              cudaSuccess);
  }

  CascadeAttentionArgs args;
  const DeviceFloats out;

 private:
  const DeviceArray<float> lse_;
  const DeviceFloats q_;
  const DeviceArray<int32_t> starts_, lens_, table_;
  const DeviceArray<float> sinks_;
  const PlaneThere k_, v_;
  Buffer workspace_;
};

class DeviceArraysTest : public CudaDeviceTest {
 protected:
  // By the engine's kernel, or by the one for every layout.
  static AttentionShapes ShapesOf(bool fast) {
    return {.heads = 4,
            .kv_heads = 2,
            .dim = 32,
            .kv = DType::kBF16,
            .sequences = {{1, 70}, {5, 90}, {0, 3}, {2, 66}},
            .compute = DType::kBF16,
            .layout = fast ? CacheLayout::kHnd : CacheLayout::kNhd,
            .sinks = true};
  }
  void Finish(const absl::Status& enqueued) {
    ASSERT_TRUE(enqueued.ok()) << enqueued;
    Await(MarkNow(Lane::kCompute));
  }
};

TEST_F(DeviceArraysTest, ACascadeIsTheAttentionOfTheWhole) {
  for (const bool fast : {true, false}) {
    for (const DType out_type : {DType::kBF16, DType::kF32}) {
      SCOPED_TRACE(testing::Message() << fast << ToString(out_type));
      AttentionProblem p(ShapesOf(fast), 3);
      p.SharePrefix(64);
      const CascadeThere there(*device_, p, out_type, 64);
      Finish(CascadeAttention(device_->ops(), device_->library(), there.args));
      p.Check(there.out.Read(), there.lse(), INT64_MAX, "cascade");
    }
  }
}

// What the device alone knows is read at each launch.
TEST_F(DeviceArraysTest, ARecordedCascadeFollowsTheLengths) {
  AttentionProblem p(ShapesOf(true), 4);
  p.SharePrefix(64);
  CascadeThere there(*device_, p, DType::kF32, 64);
  auto graph = device_->Capture(
      [&] { return CascadeAttention(device_->ops(), device_->library(), there.args); });
  ASSERT_TRUE(graph.ok()) << graph.status();
  // Queries of one token less: other positions, other keys.
  const std::vector<int32_t> lens = p.seq_lens;
  p.seq_lens = {69, 89, 3, 66};
  there.SetLens(p.seq_lens);
  Finish(device_->Launch(**graph));
  p.Check(there.out.Read(), there.lse(), INT64_MAX, "shorter");
  p.seq_lens = lens;
  there.SetLens(lens);
  Finish(device_->Launch(**graph));
  p.Check(there.out.Read(), there.lse(), INT64_MAX, "as recorded");
}

TEST_F(DeviceArraysTest, WhatNobodyCanLookUpIsRefusedBeforeAnythingIsEnqueued) {
  AttentionProblem p(ShapesOf(true), 3);
  p.SharePrefix(64);
  const CascadeThere there(*device_, p, DType::kF32, 64);
  const auto refused = [&](auto spoil, const std::string& message) {
    CascadeAttentionArgs args = there.args;
    spoil(args);
    const absl::Status status = CascadeAttention(device_->ops(), device_->library(), args);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << message;
    EXPECT_EQ(status.message().substr(0, message.size()), message) << status;
    for (const float x : there.out.Read()) ASSERT_TRUE(std::isnan(x)) << message;
  };
  refused([](auto& a) { a.attention.max_seqlen_q = 0; }, "max_seqlen_q = 0: must be at least 1");
  refused([](auto& a) { a.attention.max_seqlen_k = 0; }, "max_seqlen_k = 0: must be at least 1");
  refused([](auto& a) { a.attention.num_tokens = 0; }, "num_tokens = 0");
  refused([](auto& a) { --a.workspace_bytes; }, "workspace_bytes = ");
}

}  // namespace
}  // namespace baton::cuda
