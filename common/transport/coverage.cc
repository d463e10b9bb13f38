#include "common/transport/coverage.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton {

Coverage::Coverage(const KvLayout& layout, int32_t first_token, int32_t num_tokens,
                   int32_t first_head)
    : num_tokens_(num_tokens), first_head_(first_head) {
  const int32_t layers = NumLayers(layout);
  for (int32_t layer = 0; layer < layers; ++layer) {
    const KvLayerGroup& group = GroupOfLayer(layout, layer);
    const int32_t first = FirstSent(layout, layer, first_token, num_tokens);
    layer_row_.push_back(needed_.size());
    layer_heads_.push_back(group.num_kv_heads);
    needed_.insert(needed_.end(), group.num_kv_heads, group.k_dim > 0 ? first : num_tokens);
    needed_.insert(needed_.end(), group.num_kv_heads, group.v_dim > 0 ? first : num_tokens);
  }
  rows_.resize(needed_.size());
}

size_t Coverage::RowIndex(const FrameRange& range) const {
  const int32_t head = range.first_head - first_head_;
  BATON_CHECK(head >= 0 && head + range.num_heads <= layer_heads_[range.layer]);
  return layer_row_[range.layer] + (range.plane == KvPlane::kV ? layer_heads_[range.layer] : 0) +
         head;
}

Coverage::Overlap Coverage::Check(const FrameRange& range) const {
  const int32_t first = range.first_token;
  const int32_t end = range.first_token + range.num_tokens;
  const size_t row0 = RowIndex(range);
  int32_t whole = 0;
  bool any = false;
  for (int32_t h = 0; h < range.num_heads; ++h) {
    const Row& row = rows_[row0 + h];
    auto it = std::upper_bound(row.begin(), row.end(), first,
                               [](int32_t token, const Interval& i) { return token < i.end; });
    if (it == row.end() || it->first >= end) continue;
    any = true;
    if (it->first <= first && end <= it->end) ++whole;
  }
  if (!any) return Overlap::kNone;
  return whole == range.num_heads ? Overlap::kWhole : Overlap::kPartial;
}

void Coverage::Add(const FrameRange& range) {
  const size_t row0 = RowIndex(range);
  for (int32_t h = 0; h < range.num_heads; ++h) {
    Row& row = rows_[row0 + h];
    Interval merged{range.first_token, range.first_token + range.num_tokens};
    auto from = std::lower_bound(row.begin(), row.end(), merged.first,
                                 [](const Interval& i, int32_t token) { return i.end < token; });
    auto to = from;
    for (; to != row.end() && to->first <= merged.end; ++to) {
      merged.first = std::min(merged.first, to->first);
      merged.end = std::max(merged.end, to->end);
    }
    if (from == to) {
      row.insert(from, merged);
    } else {
      *from = merged;
      row.erase(from + 1, to);
    }
  }
}

bool Coverage::Complete() const {
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (needed_[i] < num_tokens_ && rows_[i] != Row{{needed_[i], num_tokens_}}) return false;
  }
  return true;
}

}  // namespace baton
