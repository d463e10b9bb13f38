#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_runner.h"
#include "kernels/api/device.h"

namespace baton {

// The bounds that a plan must keep; a plan that does not is our own bug and ends the process before
// anything is computed.
struct StepBounds {
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;
  int32_t block_size = 0;
  int32_t num_blocks = 0;
  std::vector<int32_t> windows = {0};  // Of each group of layers, as in KvLayerGroup.
};

// The largest step.
struct StepCapacity {
  int64_t max_tokens = 0;
  int64_t max_rows = 0;
  int64_t max_row_blocks = 0;  // Of a row's block table, for one group of layers.
  int64_t num_groups = 1;
  // Of a row's tables, of all groups; but for the first one's without what lies behind a window.
  int64_t max_row_entries = max_row_blocks;
};

// Whether row token `index` predicts a prompt token whose log probability was asked for.
bool ScoresPrompt(const StepRow& row, int64_t index);

// Whether a logit row is wanted for row token `index`.
bool WantsLogits(const StepRow& row, int64_t index);

// T tokens of S sequences as operators take them: counts for the host, arrays in the memory of the
// device.
struct BatchView {
  int64_t num_tokens = 0;
  int64_t num_seqs = 0;
  int64_t max_blocks = 0;  // Of a sequence's table, for one group of layers.
  int32_t max_seqlen_q = 0;
  int32_t max_seqlen_k = 0;
  const int32_t* tokens = nullptr;        // [T]
  const int32_t* positions = nullptr;     // [T]; as RotaryTableArgs, of long rows by the other.
  const int32_t* cu_seqlens_q = nullptr;  // [S + 1]
  const int32_t* seq_lens = nullptr;      // [S]: with the tokens of this pass.
  // Of all sequences, one after the other; of each the groups', whose entries behind a window are
  // left out but for the first group's.
  const int32_t* block_table = nullptr;

  // Of a group of layers, in each array that has one of each group behind the other:
  const int64_t* slots(int32_t group) const { return all_slots + group * slots_stride; }
  const int32_t* table_starts(int32_t group) const { return all_starts + group * starts_stride; }
  const int64_t* all_slots = nullptr;   // [T] each: block * block_size + offset.
  const int32_t* all_starts = nullptr;  // [S] each: where in block_table a sequence's entry 0 is,
                                        // or would be.
  int64_t slots_stride = 0;
  int64_t starts_stride = 0;
};

// All that the kernels of a step read beside weights and cache: built on the host, copied in one
// piece, read by every layer. Its arrays have their places for good: the capacity decides them.
class StepMetadata {
 public:
  // The device outlives it. RESOURCE_EXHAUSTED when the memory cannot be had.
  static absl::StatusOr<StepMetadata> Create(Device& device, const StepCapacity& capacity);

  // Flattens a plan. Logits are wanted for the last token of rows that sample and for the tokens of
  // rows whose prompt is to be scored. What was uploaded before must have landed.
  //
  // With `padded_rows`, for a graph of that size: each row has one token; rows behind the plan's,
  // of which nothing is wanted, fill all() up to that size: they see no key and are written
  // nowhere. What is not read from the device's memory, counts and bounds of lengths, is then the
  // same for every plan.
  absl::Status Build(const StepPlan& plan, const StepBounds& bounds, int32_t padded_rows = 0);

  // Enqueues the copy on kCompute, and with it `also`, which may be of no bytes. Nothing where host
  // and device memory are one.
  absl::Status Upload(const CopyPiece& also = {});
  // What was uploaded before.
  absl::StatusOr<bool> HasLanded() const { return device_->IsDone(uploaded_); }

  // Where kernels find the tokens of all(), for who writes some there after the upload.
  int32_t* tokens_on_device() const { return on_device_.array<int32_t>(places_.tokens); }

  const BatchView& all() const { return all_; }

  // What is left to attend once the pass has written all its K/V: the tokens whose logits are
  // wanted, in their order. Neighbours of one sequence are one row, whose keys end with the last of
  // them. Has neither tokens nor slots.
  const BatchView& wanted() const { return wanted_; }
  // Indexes into all()'s, ascending.
  const int32_t* wanted_tokens() const { return wanted_tokens_; }
  // Padding aside.
  bool wants_all() const { return wanted_.num_tokens == num_plan_tokens_; }

 private:
  // Bytes from the start of the arrays to each.
  struct Places {
    int64_t tokens = 0, positions = 0, slots = 0, cu_seqlens_q = 0, seq_lens = 0, table_starts = 0;
    int64_t wanted_tokens = 0, wanted_positions = 0, wanted_cu_seqlens_q = 0, wanted_seq_lens = 0;
    int64_t wanted_table_starts = 0;
    int64_t block_table = 0;  // The last: only what is used of it is copied.
    int64_t end = 0;
  };
  static Places PlacesOf(const StepCapacity& capacity);

  StepMetadata(Device& device, const StepCapacity& capacity, Buffer host, Buffer on_device);

  template <typename T>
  T* Host(int64_t place) const;
  template <typename T>
  const T* OnDevice(int64_t place) const;

  void AppendRow(const StepRow& row, const StepBounds& bounds);
  void AppendTable(const StepRow& row, const StepBounds& bounds);
  void PadTo(int32_t rows, const StepBounds& bounds);
  void TakeTable(int64_t sequence, int64_t wanted_row);
  void SelectWanted();

  Device* device_;
  StepCapacity capacity_;
  Places places_;
  Buffer host_;       // The pieces that are copied, then the arrays. Pinned.
  Buffer on_device_;  // The arrays; empty where memory is one.
  Mark uploaded_;
  BatchView all_;
  BatchView wanted_;
  const int32_t* wanted_tokens_ = nullptr;
  int64_t num_plan_tokens_ = 0;
  int64_t num_table_entries_ = 0;
};

}  // namespace baton
