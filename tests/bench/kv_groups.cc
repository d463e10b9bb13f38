// What groups of layers save: K/V that a decode worker holds of a sequence, and what a handoff
// brings, for models whose layers have a window in part. Counted by the allocator and the rules of
// transfers, not measured; beside it the same with one table for all layers.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/kv_cache/block_allocator.h"
#include "common/kv_cache/layer_groups.h"
#include "common/transport/transfer_plan.h"
#include "tests/bench/report.h"

namespace baton::bench {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr double kMebibyte = 1 << 20;

// As their config.json on Hugging Face.
struct Model {
  const char* name;
  int32_t num_layers;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t window;
  int32_t full_every;  // Of so many layers the last sees all.
};
constexpr Model kModels[] = {
    {"Gemma 2 2B", 26, 4, 256, 4096, 2},   {"Gemma 2 9B", 42, 8, 256, 4096, 2},
    {"Gemma 2 27B", 46, 16, 128, 4096, 2}, {"Gemma 3 1B", 26, 1, 256, 512, 6},
    {"Gemma 3 4B", 34, 4, 256, 1024, 6},   {"Gemma 3 12B", 48, 8, 256, 1024, 6},
    {"Gemma 3 27B", 62, 16, 128, 1024, 6},
};

KvLayout LayoutOf(const Model& model, bool grouped) {
  std::vector<int32_t> windows(model.num_layers, 0);
  for (int32_t i = 0; grouped && i < model.num_layers; ++i) {
    if ((i + 1) % model.full_every != 0) windows[i] = model.window;
  }
  return GroupLayers(windows,
                     {.num_kv_heads = model.num_kv_heads,
                      .k_dim = model.head_dim,
                      .v_dim = model.head_dim,
                      .dtype = DType::kBF16},
                     kBlockSize);
}

// Bytes of the blocks that a decode worker holds after a handoff of so many tokens.
double HeldBytes(const KvLayout& layout, int32_t num_tokens) {
  const int32_t entries = (num_tokens + kBlockSize - 1) / kBlockSize;
  BlockAllocator pool(entries * NumGroups(layout), kBlockSize, 1, WindowsOf(layout));
  BlockTable table;
  pool.Pass(table, num_tokens);
  BATON_CHECK(pool.Grow(table, entries));
  return static_cast<double>(table.num_held()) * static_cast<double>(BlockBytes(layout));
}

// Bytes of the blocks that a prefill worker takes for a prompt before it is computed: all tokens in
// each group. What windows have passed goes back as it is computed.
double PeakBytes(const KvLayout& layout, int32_t num_tokens) {
  const int32_t entries = (num_tokens + kBlockSize - 1) / kBlockSize;
  return static_cast<double>(entries) * NumGroups(layout) * static_cast<double>(BlockBytes(layout));
}

double SentBytes(const KvLayout& layout, int32_t num_tokens) {
  int64_t bytes = 0;
  for (int32_t layer = 0; layer < NumLayers(layout); ++layer) {
    const int64_t tokens = num_tokens - FirstSent(layout, layer, 0, num_tokens);
    for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
      bytes += tokens * HeadTokenBytes(layout, layer, plane) *
               GroupOfLayer(layout, layer).num_kv_heads;
    }
  }
  return static_cast<double>(bytes);
}

std::vector<Row> Count() {
  std::vector<Row> rows;
  for (const Model& model : kModels) {
    const KvLayout grouped = LayoutOf(model, /*grouped=*/true);
    const KvLayout one = LayoutOf(model, /*grouped=*/false);
    for (const int32_t num_tokens : {2048, 8192, 32768, 131072}) {
      if (num_tokens > 8192 && model.window == 4096) continue;  // The model ends there.
      const auto add = [&](const char* what, double (*bytes_of)(const KvLayout&, int32_t)) {
        rows.push_back({.name = absl::StrCat(model.name, ", ", num_tokens, " tokens, ", what),
                        .value = bytes_of(grouped, num_tokens) / kMebibyte,
                        .unit = "MiB",
                        .roof = bytes_of(one, num_tokens) / kMebibyte,
                        .roof_name = "one table"});
      };
      add("held", HeldBytes);
      add("handed over", SentBytes);
      add("P at its peak", PeakBytes);
    }
  }
  return rows;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  using namespace baton::bench;
  return PrintCounted(argc, argv, "kv_groups", "K/V where some layers have a window",
                      "counted, bf16, blocks of 16 tokens", Count);
}
