#pragma once

#include <cstdint>
#include <vector>

#include "common/kv_cache/kv_layout.h"
#include "common/transport/transfer_plan.h"

namespace baton {

// Which (layer, plane, head, token) of one ticket have arrived. Ranges given to it lie within the
// layout and the token range.
class Coverage {
 public:
  enum class Overlap : uint8_t { kNone, kPartial, kWhole };

  Coverage(const KvLayout& layout, TokenRange tokens, int32_t first_head);

  Overlap Check(const FrameRange& range) const;
  void Add(const FrameRange& range);
  bool Complete() const;  // Every plane that has bytes, every head, every token.

 private:
  struct Interval {
    int32_t first = 0;
    int32_t end = 0;
    bool operator==(const Interval&) const = default;
  };
  // Disjoint, ascending, never touching.
  using Row = std::vector<Interval>;

  size_t RowIndex(const FrameRange& range) const;  // Of the range's first head.

  TokenRange tokens_;
  int32_t first_head_ = 0;
  std::vector<size_t> layer_row_;     // [num_layers]: row of (layer, K, head 0).
  std::vector<int32_t> layer_heads_;  // [num_layers]
  std::vector<Row> rows_;
  std::vector<bool> needed_;  // [rows]: the plane has bytes.
};

}  // namespace baton
