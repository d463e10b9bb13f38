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

  // Of a handoff of tokens [first_token, num_tokens), in each layer from FirstSent on.
  Coverage(const KvLayout& layout, int32_t first_token, int32_t num_tokens, int32_t first_head);

  Overlap Check(const FrameRange& range) const;
  void Add(const FrameRange& range);
  bool Complete() const;  // Every plane that has bytes, every head, every token of its layer.

 private:
  struct Interval {
    int32_t first = 0;
    int32_t end = 0;
    bool operator==(const Interval&) const = default;
  };
  // Disjoint, ascending, never touching.
  using Row = std::vector<Interval>;

  size_t RowIndex(const FrameRange& range) const;  // Of the range's first head.

  int32_t num_tokens_ = 0;
  int32_t first_head_ = 0;
  std::vector<size_t> layer_row_;     // [num_layers]: row of (layer, K, head 0).
  std::vector<int32_t> layer_heads_;  // [num_layers]
  std::vector<Row> rows_;
  std::vector<int32_t>
      needed_;  // [rows]: from this token on; num_tokens_ where there are no bytes.
};

}  // namespace baton
