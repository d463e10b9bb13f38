// Random calls of the engine's attention, on GPUs with forms of their own and without: an fp64 loop
// judges the results, and each form, each size of blocks and a sequence alone have the same bits.
// BATON_FUZZ_SEED and BATON_FUZZ_CASES choose others.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/kernels/cuda/decode_fixture.h"
#include "tests/kernels/fuzz_numbers.h"

namespace baton::cuda {
namespace {

class RandomCall {
 public:
  RandomCall(uint64_t seed, bool decodes) : random_(seed) {
    s_.kv_heads = static_cast<int32_t>(1 + Below(3));
    s_.heads = s_.kv_heads * static_cast<int32_t>(1 + Below(Chance(80) ? 16 : 70));
    s_.dim = static_cast<int32_t>(8 * (1 + Below(32)));
    // Mostly such as tensor copies take.
    s_.block_size =
        static_cast<int32_t>(Chance(70) ? 8 * (1 + Below(Chance(70) ? 8 : 40)) : 1 + Below(300));
    s_.compute = Chance(50) ? DType::kBF16 : DType::kF16;
    s_.kv = Chance(65) ? s_.compute : Chance(50) ? DType::kFp8E4M3 : DType::kFp8E5M2;
    s_.kv_scale = Chance(70) ? 0.25f : 0;
    s_.scale_per_head = Chance(50);
    s_.v_scale_per_head = Chance(50);
    s_.sinks = Chance(30);
    s_.alibi = Chance(30);
    s_.alibi_per_sequence = s_.alibi && Chance(50);
    DrawScores();
    DrawSequences(decodes);
    options.scratch = Chance(50);
    options.ragged = Chance(50);
    options.spread = Chance(30);
    options.out = Chance(50) ? DType::kF32 : s_.compute;
    gpu = Chance(70) ? "sm90" : Chance(60) ? "sm80" : "sm100";
  }

  const AttentionShapes& shape() const { return s_; }
  std::string Name() const {
    std::string name = gpu + ", " + std::to_string(s_.heads) + " heads by " +
                       std::to_string(s_.kv_heads) + " of " + std::to_string(s_.dim) + " in " +
                       std::string(ToString(s_.compute)) + ", cache " +
                       std::string(ToString(s_.kv)) + " by " + std::to_string(s_.block_size) + ":";
    for (const auto& [queries, keys] : s_.sequences) {
      name += " " + std::to_string(queries) + "/" + std::to_string(keys);
    }
    return name;
  }

  RunOptions options;
  std::string gpu;

 private:
  int64_t Below(int64_t n) { return static_cast<int64_t>(random_.Below(n)); }
  bool Chance(int percent) { return Below(100) < percent; }

  void DrawScores() {
    ScoreOptions& o = s_.scores;
    o.causal = Chance(75);
    if (Chance(20)) o.scale = 0.3f;
    if (Chance(25)) o.softcap = Chance(50) ? 2 : 30;
    if (Chance(40)) o.window_left = static_cast<int32_t>(NearAnEdge(700));
    if (Chance(15)) o.window_right = static_cast<int32_t>(Below(70));
    if (o.causal && Chance(20)) o.local_chunk = static_cast<int32_t>(1 + NearAnEdge(600));
  }

  // Of steps, partials and blocks, or anywhere.
  int64_t NearAnEdge(int64_t most) {
    const int64_t edges[] = {64, 128, 512, 16, s_.block_size};
    if (Chance(30)) return Below(most);
    const int64_t at = edges[Below(std::size(edges))] * (1 + Below(2)) - 1 + Below(3);
    return std::min(at, most);
  }

  // What a GPU of few warps has the time for: few rows of long sequences.
  void DrawSequences(bool decodes) {
    const int32_t group = s_.heads / s_.kv_heads;
    for (int64_t n = 1 + Below(decodes ? 6 : 3); n > 0; --n) {
      auto keys = static_cast<int32_t>(Chance(15) ? 0 : NearAnEdge(Chance(25) ? 1100 : 300));
      int64_t queries = decodes ? 1 + Below(std::max(1, 16 / group)) : NearAnEdge(90);
      if (!decodes && Chance(20)) queries = Below(2);
      if (queries * group > 300) queries = 300 / group;
      s_.sequences.push_back({static_cast<int32_t>(queries), keys});
    }
  }

  Random random_;
  AttentionShapes s_;
};

class RandomAttentionTest : public DeviceTest, public testing::WithParamInterface<bool> {
 protected:
  void TearDown() override {
    DeviceTest::TearDown();
    emulation::SetGpu("sm90");
  }

  // The first sequence's values are drawn first.
  static void ExpectTheSameAlone(const RandomCall& call, const Result& whole) {
    AttentionShapes shape = call.shape();
    shape.sequences.resize(1);
    shape.block_size = shape.block_size % 24 + 1;
    AttentionProblem problem(shape, 1);
    if (problem.total_q == 0 || problem.total_k == 0) return;
    const Result alone = DeviceProblem(problem).Run({.out = call.options.out});
    EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(), whole.out.begin())) << "alone";
  }

  static void Try(const RandomCall& call, uint64_t seed) {
    emulation::SetGpu(call.gpu);
    emulation::SetSeed(seed);
    AttentionProblem problem(call.shape(), 1);
    if (problem.total_q == 0 || problem.total_k == 0) return;
    const DeviceProblem device(problem);
    const Result whole = device.Run(call.options);  // By both forms for prompts.
    RunOptions own = call.options;
    own.form = VarlenAttention;
    own.scratch = own.counters = true;
    EXPECT_TRUE(BytesOf(device.Run(own)) == BytesOf(whole)) << "the form of its own";
    own.form = MmaVarlenAttention;
    own.counters = false;
    own.shared_bytes = kLeastSharedBytes;
    EXPECT_TRUE(BytesOf(device.Run(own)) == BytesOf(whole)) << "the least shared memory";
    ExpectTheSameAlone(call, whole);
    problem.Check(whole.out, whole.lse, 40, "an fp64 loop");
  }
};

TEST_P(RandomAttentionTest, IsAccurateAndHasTheSameBitsInEveryForm) {
  const uint64_t first = FirstFuzzSeed(), cases = FuzzCasesOrNightly(4, 150);
  for (uint64_t seed = first; seed < first + cases; ++seed) {
    const RandomCall call(seed, GetParam());
    SCOPED_TRACE("BATON_FUZZ_SEED=" + std::to_string(seed) + ": " + call.Name());
    Try(call, seed);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, RandomAttentionTest, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "decode" : "prompts");
});

}  // namespace
}  // namespace baton::cuda
